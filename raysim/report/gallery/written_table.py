"""Draws a table of texts on empty axes: it is then a picture like the others, and its letters stay letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raysim.report.gallery import text_room
from raysim.report.looks import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN, SMALLEST_PT = 0.21, 5.0
LETTER_EM = 0.54
"""Width of a letter in sizes of one; longer rows than fit the figure's width have smaller letters."""
GAP, BOLD = 2, 1.15
"""Letters between columns; the width of a letter of the head in letters of the rows."""


def height_in(num_rows: int) -> float:
    """Return the height of a table with these rows and two lines of head."""
    return 0.2 + ROW_IN * (num_rows + 2)


def draw(head: Sequence[str], rows: Sequence[Sequence[str]], axes: Axes) -> None:
    """Draw a head, broken at its dots and spaces, and rows; each column is as wide as its longest text."""
    import matplotlib

    heads = [_broken(text) for text in head]
    columns = list(zip(*rows, strict=True))
    widths = [
        GAP + max(*map(len, column), *(BOLD * len(part) for part in title.split("\n")))
        for title, column in zip(heads, columns, strict=True)
    ]
    letters = sum(widths)
    usual_pt = float(matplotlib.rcParams["font.size"])
    fitting = text_room.width_in(axes) * 72 / LETTER_EM / usual_pt
    size = max(SMALLEST_PT, usual_pt * min(1.0, fitting / letters))
    axes.set_axis_off()
    axes.set_xlim(0, max(letters, fitting))
    axes.set_ylim(len(rows), -2)
    axes.hlines([-0.05], 0, letters, color=INK, linewidth=0.8)
    axes.hlines(range(1, len(rows)), 0, letters, color=FAINT, linewidth=0.6)
    right = 0.0
    for width, title, column in zip(widths, heads, columns, strict=True):
        right += width
        axes.text(right - GAP / 2, -0.25, title, ha="right", va="bottom", fontsize=size, fontweight="bold")
        for row, text in enumerate(column):
            axes.text(right - GAP / 2, row + 0.5, text, ha="right", va="center", fontsize=size)


def _broken(text: str) -> str:
    """Return a head in two lines: a key at its last dot, a phrase after its "to".

    >>> _broken("client.optimizer.lr"), _broken("rounds to 99.0 %")
    ('client.optimizer.\\nlr', 'rounds to\\n99.0 %')
    """
    return text.replace(" to ", " to\n", 1) if " " in text else ".\n".join(text.rsplit(".", 1))
