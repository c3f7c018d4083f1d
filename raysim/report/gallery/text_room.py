"""Measures the room that texts have in a picture, and breaks them into lines that fit."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER_EM = 0.55
"""Mean width of a letter in sizes of one."""


def width_in(axes: Axes) -> float:
    """Return the width of the whole picture, in inches."""
    return float(axes.figure.bbox.width / axes.figure.dpi)


def letter_in() -> float:
    """Return the size of letters, in inches."""
    import matplotlib

    return float(matplotlib.rcParams["font.size"]) / 72


def broken(text: str, room_em: float) -> str:
    """Return a text in lines that fit; "cohort.size = 5" and "95 %" stay whole, if they fit."""
    width = max(8, round(room_em / LETTER_EM))

    def kept(setting: re.Match[str]) -> str:
        whole = setting[0]
        return whole.replace(" ", "\N{NO-BREAK SPACE}") if len(whole) <= width else whole

    whole = re.sub(r"\S+(?: = \S+| %)", kept, text)
    return textwrap.fill(whole, width).replace("\N{NO-BREAK SPACE}", " ")
