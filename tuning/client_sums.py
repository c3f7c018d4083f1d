"""Adds up what each validation client scored, over the evaluations of which a value is the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysim.experiment.row import Row

ClientSums = Mapping[str, tuple[float, int]]
"""Client -> hits (or summed loss), and examples."""


def sums(tables: Sequence[Iterable[Row]], figure: str) -> ClientSums:
    """Return each client's mean over evaluations, each of which has a row for each client.

    >>> sums([[{"client": "a", "examples": 4, "loss": 1.0}], [{"client": "a", "examples": 4, "loss": 2.0}]], "loss")
    {'a': (6.0, 4)}
    """
    found: dict[str, tuple[float, int]] = {}
    for rows in tables:
        for row in rows:
            before, _ = found.get(row["client"], (0.0, 0))
            found[row["client"]] = before + row[figure] * row["examples"] / len(tables), row["examples"]
    return found
