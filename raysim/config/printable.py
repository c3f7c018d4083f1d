"""Makes text fit for a terminal: what a file from elsewhere says must not move the cursor, nor name the window."""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    r"""Return a text whose control characters, except for ends of lines and tabs, are written as Python writes them.

    >>> printable("red: \x1b[31m\nnext")
    'red: \\x1b[31m\nnext'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def in_one_line(text: str) -> str:
    r"""Return a text whose control characters, ends of lines and tabs are written as Python writes them.

    >>> print(in_one_line("red: \x1b[31m\nnext"))
    red: \x1b[31m\nnext
    """
    return text if text.isprintable() else "".join(e if e.isprintable() else ascii(e)[1:-1] for e in text)


def of_record(record: logging.LogRecord) -> bool:
    """Make a log record's message printable; a filter of loggers, which keeps every record."""
    try:
        message = record.getMessage()
    except Exception:
        # The handler reports what does not fit together.
        return True
    if printable(message) != message:
        record.msg, record.args = printable(message), ()
    return True
