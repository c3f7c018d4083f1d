"""Adds up what each validation client scored, over the evaluations of which a value is the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysim.experiment.row import Row

ClientSums = Mapping[str, tuple[float, float]]
"""Client -> hits (or summed loss), and what it weighs in the figure: its examples, or the places that count."""


def weight_column(figure: str) -> str:
    """Return the column of what clients weigh in a figure, "accuracy" or "loss", where that is not their examples."""
    return f"{figure}_weight"


def weight(row: Row, figure: str) -> float:
    """Return what a client weighs in the figure of all, so that this is a ratio of sums over clients.

    >>> weight({"examples": 4, "loss": 1.0}, "loss"), weight({"examples": 4, "loss_weight": 9.0}, "loss")
    (4, 9.0)
    """
    known, examples = row.get(weight_column(figure)), row["examples"]
    found: float = examples if known is None else known
    return found


def sums(tables: Sequence[Iterable[Row]], figure: str) -> ClientSums:
    """Return each client's mean over evaluations, each of which has a row for each client.

    A client that weighs nothing has no figure, and is left out.

    >>> sums([[{"client": "a", "examples": 4, "loss": 1.0}], [{"client": "a", "examples": 4, "loss": 2.0}]], "loss")
    {'a': (6.0, 4)}
    """
    found: dict[str, tuple[float, float]] = {}
    for rows in tables:
        for row in rows:
            if not (size := weight(row, figure)):
                continue
            before, _ = found.get(row["client"], (0.0, 0))
            found[row["client"]] = before + row[figure] * size / len(tables), size
    return found
