"""Shows runs in a notebook: progress below a cell, then the closing table and the learning curve."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from raysim.report import curve
from raysim.report.closing import Line
from raysim.report.standing import Standing

DPI = 80


def html(lines: Sequence[Line], rounds: pa.Table, title: str, deviations: pa.Table | None = None) -> str:
    """Return an HTML fragment without external resources.

    Args:
        lines: of the closing table.
        rounds, title, deviations: as for the learning curve; without a figure to draw there is no picture.
    """
    drawn = curve.figure(rounds, title, deviations)
    if drawn is None:
        return _table(lines)
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=DPI)
    return _table(lines) + _image(file.getvalue(), f"{title}: learning curve")


def html_of_folder(lines: Sequence[Line], path: Path) -> str:
    """Return an HTML fragment without external resources: the lines, but those that name files, and the pictures."""
    return _table([line for line in lines if line[0] != "picture"]) + "".join(map(_file, sorted(path.glob("*.png"))))


def html_of_text(text: str, pictures: Sequence[Path]) -> str:
    """Return an HTML fragment without external resources: a text, and those of the PNG files that exist."""
    return f"<pre>{escape(text)}</pre>" + "".join(_file(path) for path in pictures if path.exists())


def _file(path: Path) -> str:
    return _image(path.read_bytes(), path.stem, "display:block;max-width:60em;width:100%")


def _table(lines: Sequence[Line]) -> str:
    rows = "".join(
        # Several blanks in a row divide figures.
        f'<tr><th style="text-align:left">{escape(label)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{escape(text)}</td></tr>'
        for label, text in lines
    )
    return f"<table>{rows}</table>"


def _image(png: bytes, alt: str, style: str = "") -> str:
    content = base64.b64encode(png).decode()
    return f'<img alt="{escape(alt)}" style="{style}" src="data:image/png;base64,{content}">'


EVERY_S = 0.25
"""Least seconds between two updates, because a notebook keeps every message."""


class NotebookBar:
    """A display for kernels. A console, which shows no HTML, shows its text."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._handle: Any = None
        self._shown_s: float | None = None
        self._unshown: Standing | None = None

    def __enter__(self) -> Self:
        from IPython.display import display

        self._handle = display(self._content(None), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unshown is not None:
            self._update(self._unshown)

    def print_line(self, text: str) -> None:
        """Show a line above the bar from now on."""
        self._lines.append(text)
        self._handle.update(self._content(None), raw=True)

    def show(self, standing: Standing) -> None:
        """Show the standing if enough time has passed, else with the next one."""
        now_s = standing.finishes[-1].at_s
        if self._shown_s is None or now_s - self._shown_s >= EVERY_S or standing.done >= standing.total:
            self._update(standing)
        else:
            self._unshown = standing

    def _update(self, standing: Standing) -> None:
        self._handle.update(self._content(standing), raw=True)
        self._shown_s, self._unshown = standing.finishes[-1].at_s, None

    def _content(self, standing: Standing | None) -> dict[str, str]:
        above = "".join(f"{line}\n" for line in self._lines)
        if standing is None:
            return {"text/plain": f"{above}starting ...", "text/html": f"<pre>{escape(above)}starting ...</pre>"}
        rounds = f"round {standing.done:,}/{standing.total:,}"
        figures = "   ".join([*standing.quality(), *standing.trouble(), *standing.pace()])
        bar = f'<progress max="{standing.total}" value="{standing.done}" style="width: 24em"></progress>'
        return {
            "text/plain": f"{above}{rounds}: {figures}",
            "text/html": f"<pre>{escape(above)}{rounds}  {bar}\n{escape(figures)}</pre>",
        }
