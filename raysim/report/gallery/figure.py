"""A picture of a report before it is drawn: what it shows, the data behind it, and how they are put on axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT_IN = 2.9
"""Of the axes and their labels, in inches; a legend below comes on top."""


@dataclass(frozen=True)
class Figure:
    """name: of its files, without suffix. says: in one or two sentences, what it shows and what to see in it.

    data: what is drawn, a row a point, with the column `group` first. draw: puts it on empty axes; artists with a label
    enter the legend. height_in: of the picture without its legend.
    """

    name: str
    title: str
    says: str
    data: pa.Table
    draw: Callable[[Axes], None]
    height_in: float = HEIGHT_IN


class Kind(NamedTuple):
    """A kind of figure: which section of the page it belongs to, what it needs, and how to make what there is of it.

    `make` yields nothing where the groups lack what is needed.
    """

    section: str
    title: str
    needs: str
    make: Callable[[Sequence[Group]], Iterator[Figure]]
