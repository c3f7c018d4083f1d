"""Reads TOML text; everything that is wrong with it is one kind of error, which shows the place and names a remedy."""

from __future__ import annotations

import codecs
import re
import tomllib
import unicodedata
from types import MappingProxyType
from typing import Any

TomlError = tomllib.TOMLDecodeError


def decoded(content: bytes) -> str:
    r"""Return the text in a TOML file, which is in UTF-8, without the mark that some editors put before it.

    >>> decoded(b"\xef\xbb\xbfrounds = 3")
    'rounds = 3'

    Raises:
        TomlError: it is another encoding, or no text; says which, the place, and what to do.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    if (encoding := _wide_encoding(content)) is not None:
        raise TomlError(f"it is text in {encoding}, but TOML is text in UTF-8: {_converted(encoding)}")
    if b"\0" in content:
        raise TomlError(
            f"it has a byte 0 in line {_line(content, content.index(0))}, which no text has: it is not text, or damaged"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TomlError(
            f"it is not text in UTF-8: line {_line(content, error.start)} has the byte "
            f"0x{content[error.start]:02x} ({error.reason}); {_converted('ISO-8859-1')}, if that is what it is in"
        ) from None


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        TomlError: it is none, or has an integer or a depth that Python's parser cannot take. The message is the
            parser's, with the likely remedy, the line, and a mark below the place.
    """
    try:
        return tomllib.loads(text)
    except TomlError as error:
        raise TomlError(_located(str(error), text)) from None
    except ValueError:
        raise TomlError("an integer has too many digits") from None
    except RecursionError:
        raise TomlError("its lists or tables are nested too deep") from None


_WIDE = MappingProxyType(
    {
        # The mark of UTF-32 begins with that of UTF-16.
        "UTF-32LE": codecs.BOM_UTF32_LE,
        "UTF-32BE": codecs.BOM_UTF32_BE,
        "UTF-16LE": codecs.BOM_UTF16_LE,
        "UTF-16BE": codecs.BOM_UTF16_BE,
    }
)
"""Encodings with several bytes for each letter, by their names for iconv, and their marks."""

_PROBE_BYTES = 400
"""A multiple of the bytes of a letter in any encoding."""


def _wide_encoding(content: bytes) -> str | None:
    """Return the encoding of a text that has several bytes for each letter; None for any other content."""
    for name, mark in _WIDE.items():
        if content.startswith(mark):
            return name
    probe = content[:_PROBE_BYTES]
    for name in _WIDE if b"\0" in probe else ():
        letters = probe[: len(probe) // 4 * 4].decode(name, "replace")
        # Most of TOML is ASCII; in a wrong encoding next to nothing is.
        if "\0" not in letters and 2 * sum(map(str.isascii, letters)) > len(letters):
            return name
    return None


def _converted(encoding: str) -> str:
    return f"save it as UTF-8 in your editor, or by iconv -f {encoding} -t UTF-8 OLD > NEW"


def _line(content: bytes, place: int) -> int:
    return content.count(b"\n", 0, place) + 1


_BACKSLASHES = "a text with backslashes has single quotation marks, 'C:\\data', or two of each, \"C:\\\\data\""

_MARKED = "a text ends with its quotation mark, in the same line"

_TWICE = "this table is there twice: write its keys below one heading"

_REMEDIES = MappingProxyType(
    {
        "Unclosed array": "a list has commas between its values and ends with ]",
        "Unclosed inline table": "a table in braces has commas between its entries, is in one line and ends with }",
        "Invalid initial character for a key part": "a key has letters, digits, - and _; a table in braces is in one "
        "line, without a comma before its end",
        "Invalid statement": "a line is key = value, or a heading such as [client.optimizer]; a key with anything but "
        "letters from a to z, digits, - and _ is quoted",
        "Expected '=' after a key": "a line is key = value, and a key has no blanks",
        "Expected newline or end of document": "a key and its value have a line of their own, and texts are quoted",
        "Cannot overwrite a value": "this key is there twice",
        "Duplicate inline table key": "this key is there twice",
        "Cannot declare": _TWICE,
        "Cannot redefine": _TWICE,
        "Cannot mutate": "this table or list has its values already: write all of them in one place",
        "Illegal character '\\n'": _MARKED,
        "Found invalid character '\\n'": _MARKED,
        'Expected "\'"': _MARKED,
        "Expected \"'''\"": "a text of several lines ends with its three quotation marks",
        "Unescaped '\\'": _BACKSLASHES,
        "Invalid hex value": _BACKSLASHES,
        "Escaped character is not": _BACKSLASHES,
        "Unterminated string": "a text ends with its quotation mark",
        "Expected ']' at the end of a table": "a table's heading has brackets: [client.optimizer]",
        "Expected ']]' at the end of an array": "the heading of a table in a list has two brackets on either side",
        "Invalid date": "a date is year-month-day, as 2026-01-31",
    }
)
"""How a message of the parser begins, and what is to be done; a message of another version has no remedy."""

_OPENED = re.compile(
    r"""(?:Expected "(?P<closing>'+)"|(?:Found invalid|Illegal) character '\\n'|(?P<basic>Unterminated string))"""
)
"""A text that does not end: the parser names the place where it stopped looking, people look for its beginning."""

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

_AROUND = 60
"""Characters that are shown on either side of a place: a line may be long."""


def _located(message: str, text: str) -> str:
    if (place := _PLACE.search(message)) is None:
        return message
    # As the parser counts.
    text = text.replace("\r\n", "\n")
    if place[1] is None:
        at = len(text.rstrip())
    else:
        lines = text.split("\n")
        at = sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2]) - 1
    odd = _of_character(text[at : at + 1])
    at = _beginning(message, text, at)
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line, column = text[start : end if end >= 0 else len(text)], at - start
    before, after = line[max(0, column - _AROUND) : column], line[column : column + _AROUND]
    remedy = _of_value(before, after) if message.startswith("Invalid value") else _of_message(message, before, after)
    hint = odd or remedy
    line, margin = _printable(before + after).rstrip(), " " * _width(_printable(before))
    return f"{message}{f': {hint}' if hint else ''}\n  {line}\n  {margin}^"


def _beginning(message: str, text: str, at: int) -> int:
    """Return where a text begins that does not end; else the place itself."""
    if (opened := _OPENED.match(message)) is None:
        return at
    if opened["basic"]:
        found = text.rfind('"""' if '"""' in text else '"')
    elif opened["closing"]:
        # Behind its beginning there is no such mark up to the end of the file, or else it would end there.
        found = text.rfind(opened["closing"])
    else:
        found = text.rfind("'" if message.startswith("Found") else '"', text.rfind("\n", 0, at) + 1, at)
    return found if found >= 0 else at


def _printable(line: str) -> str:
    """Return text as it is shown: a blank for what cannot be printed; without marks that choose a letter's style."""
    shown = (each for each in line if each not in "\ufe0e\ufe0f")
    return "".join(each if each.isprintable() else " " for each in shown)


def _width(text: str) -> int:
    """Return the columns that text takes in a terminal.

    >>> _width("ab"), _width("日本"), _width("e\u0301")
    (2, 4, 1)
    """
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _of_character(odd: str) -> str:
    """Return what to do about a character that looks like another one, or like nothing; "" for any other."""
    if not odd or odd in "\n\t " or (odd.isascii() and odd.isprintable()):
        return ""
    named = f"{unicodedata.name(odd, 'a control character')} (U+{ord(odd):04X})"
    if odd in "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb\u2032\u2033`":
        return f"{named} is not a quotation mark of TOML: write \" or '"
    if unicodedata.category(odd) == "Pd" or odd == "\u2212":
        return f"{named} is not a minus of TOML: write -"
    if unicodedata.category(odd)[0] in "ZC":
        return f"{named} cannot stand here: delete it"
    return ""


def _of_message(message: str, before: str, after: str) -> str:
    if message.startswith("Expected newline") and before.endswith("'") and after[:1].isalnum():
        return "a text with ' in it has double quotation marks around it"
    return next((remedy for begins, remedy in _REMEDIES.items() if message.startswith(begins)), "")


def _of_value(before: str, after: str) -> str:
    """Return what to write in place of what is not a value: the texts of its line before it, and from it on."""
    word = re.split(r"[],}#]", after, maxsplit=1)[0].strip()
    key = re.search(r"[\w.\-\"']+\s*=\s*$", before)
    to_write = key[0] if key else ""
    if not word:
        return "a value is missing here"
    if word.lower() in ("true", "false"):
        return f"truth values have small letters: {to_write}{word.lower()}"
    if word in ("None", "null", "nil"):
        return "a key without a value is left out"
    if re.fullmatch(r"[+-]?\.\d.*", word):
        return f"a number has a digit before its point: {to_write}{word.replace('.', '0.', 1)}"
    if not re.match(r"[\w./~]", word) or not word.isprintable():
        return "a value is a number, true, false, a list, a table in braces, or a quoted text"
    mark = "'" if "\\" in word else '"'
    return f"texts are quoted: {to_write}{mark}{word}{mark}"
