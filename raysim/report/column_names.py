"""Says what a column of the records is by its name: a headline, a percentile, a share, and its name for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEADLINE = re.compile(r"eval/(?P<split>.+)/(?P<metric>accuracy|loss)")
_PERCENTILE = re.compile(r"eval/(?P<split>.+)/p(?P<percentile>[0-9]+(\.[0-9]+)?)")


def headlines(names: Iterable[str]) -> dict[str, str]:
    """Return the main column of each split: its accuracy, or its loss for regression."""
    found: dict[str, str] = {}
    for name in names:
        match = _HEADLINE.fullmatch(name)
        if match and (match["metric"] == "accuracy" or match["split"] not in found):
            found[match["split"]] = name
    return found


def percentiles(names: Iterable[str], split: str) -> dict[float, str]:
    """Return the column of each percentile over the split's clients, in rising order."""
    matches = [match for name in names if (match := _PERCENTILE.fullmatch(name)) and match["split"] == split]
    return dict(sorted((float(match["percentile"]), match[0]) for match in matches))


def is_share(column: str) -> bool:
    """Return whether a column holds fractions of 1, which are written in percent."""
    return column.endswith(("accuracy", "_fraction", "accuracy_range")) or _PERCENTILE.fullmatch(column) is not None


def spoken(column: str) -> str:
    """Return a column's name for people: "eval/test/accuracy" is "test accuracy"."""
    words = column.removeprefix("eval/").replace("/", " ").replace("_", " ")
    return words.replace("pseudo gradient", "pseudo-gradient")
