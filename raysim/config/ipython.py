"""Lets results show themselves on an interactive terminal as they are printed."""

from __future__ import annotations

from typing import Any, Protocol


class Printer(Protocol):
    """What IPython hands to `_repr_pretty_`."""

    def text(self, text: str) -> Any:
        """Write a text."""
        ...


def as_printed(self: object, printer: Printer, cycle: bool) -> None:
    """Write `str(self)`: IPython would show the `repr`, which is for code. A class has it as `_repr_pretty_`."""
    printer.text(str(self))
