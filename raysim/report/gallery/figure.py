"""Defines a figure of a report before it is rendered: its caption, its data, and its drawing function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT_IN = 2.9
"""Of the axes and their labels, in inches, at the usual width; a legend below comes on top."""


class Panel(NamedTuple):
    """A part of a figure with axes of its own; `title` stands above them."""

    title: str
    draw: Callable[[Axes], None]


_NO_LETTER = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|#%]")
"""What a name has that file systems, or the address of a link, take for something else."""
_MOST_BYTES, _END_BYTES = 120, 40
"""Of a whole name, and of each end of one that is cut; a number and a suffix come on top."""


def _file_name(name: str) -> str:
    """Return a name for files: those of splits, metrics and keys may have any letters.

    >>> _file_name("eval/test/accuracy"), _file_name("eval/50%/loss"), len(_file_name("long" * 100))
    ('eval-test-accuracy', 'eval-50_-loss', 83)
    """
    text = name.encode(errors="replace").decode()
    plain = _NO_LETTER.sub("_", text.replace("/", "-"))
    stored = plain.encode()
    if len(stored) <= _MOST_BYTES:
        return plain
    # A cut may fall into a letter, which is left out.
    first, last = (end.decode(errors="ignore") for end in (stored[:_END_BYTES], stored[-_END_BYTES:]))
    return f"{first}...{last}"


@dataclass(frozen=True)
class Figure:
    """name: of its files, without suffix; see `_file_name`. caption: one or two sentences about the content and
    how to read it.

    data: one row per drawn point, with the column `group` first. draw: draws on empty axes; artists with a label enter
    the legend. Panels stand two in a row, share an axis if `shares_x` or `shares_y`, and have one legend; a name in
    several is in it once.
    height_in: of a picture with rows of text, without the legend, at letters of 9 points; None: by the width.
    """

    name: str
    title: str
    caption: str
    data: pa.Table
    draw: Callable[[Axes], None] | tuple[Panel, ...]
    height_in: float | None = None
    shares_y: bool = True
    shares_x: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _file_name(self.name))

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels; a figure without panels is one that has no title."""
        return self.draw if isinstance(self.draw, tuple) else (Panel("", self.draw),)


class Kind(NamedTuple):
    """A kind of figure: its section of the page, its requirement, and the function that yields its figures.

    `make` yields nothing if the groups do not meet the requirement.
    """

    section: str
    title: str
    needs: str
    make: Callable[[Sequence[Group]], Iterator[Figure]]
