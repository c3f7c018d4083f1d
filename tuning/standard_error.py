"""Computes the standard errors of a trial's figure, over validation clients and over seeds.

Over clients: the evaluated clients are treated as a simple random sample of many more. Accuracy and loss are ratios of
sums over clients, R = sum_k a_k / sum_k n_k, and so

    se = sqrt( K / (K - 1) * sum_k (a_k - R n_k)^2 ) / sum_k n_k

with a_k the hits (or summed loss) and n_k the examples of client k, K clients; of texts, whose figures are means over
places, n_k are those that count. Source: Cochran, Sampling Techniques,
1977, equation 6.13 without the correction for finite populations: even if all validation clients are evaluated, the
error measures how much other clients would have changed the figure. Of a mean over several evaluations, a_k is the
client's mean over them.

Over seeds: s / sqrt(R), with s the sample standard deviation of the R seeds' values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from raysim.experiment.row import Row
from raysim.run_folder import files
from raysim.run_folder.run_table import read_table
from raysim.run_folder.tables import deviation
from tuning.client_sums import sums, weight


def over_clients(sums: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Return the standard error of sum(sums) / sum(sizes), one row per client; None for fewer than two clients.

    >>> over_clients([1.0, 0.0], [1, 1])
    0.5
    """
    clients, total = len(sizes), sum(sizes)
    if clients < 2 or not total:
        return None
    ratio = math.fsum(sums) / total
    squares = math.fsum((a - ratio * n) ** 2 for a, n in zip(sums, sizes, strict=True))
    return math.sqrt(clients / (clients - 1) * squares) / total


def over_seeds(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of the seeds' values; None for one seed.

    >>> over_seeds([1.0, 3.0]), over_seeds([1.0])
    (1.0, None)
    """
    return deviation(values) / math.sqrt(len(values)) if len(values) > 1 else None


def root_mean_square(errors: Sequence[float | None]) -> float | None:
    """Return the root of the mean square of a trial's errors; None if one is not defined.

    >>> root_mean_square([3.0, 4.0, 0.0]) == (25 / 3) ** 0.5, root_mean_square([1.0, None])
    (True, None)
    """
    known = [error for error in errors if error is not None]
    return math.sqrt(math.fsum(error**2 for error in known) / len(known)) if 0 < len(known) == len(errors) else None


def of_evaluations(tables: Sequence[Iterable[Row]], column: str) -> float | None:
    """Return the error over clients of the mean of "accuracy" or "loss" over evaluations, from their rows of clients.

    None for fewer than two clients with examples, without an evaluation, or if a client has no such figure.
    """
    counted = [[row for row in rows if weight(row, column)] for rows in tables]
    if any(row[column] is None for rows in counted for row in rows):
        return None
    by_client = sums(counted, column).values()
    return over_clients([total for total, _ in by_client], [size for _, size in by_client])


def of_run(run: Path, column: str, rounds: range) -> float | None:
    """Return the error over clients of the mean of "accuracy" or "loss" over a run's evaluations in these rounds.

    Raises:
        RunFolderError: an evaluation's file is damaged, or of another run.
    """
    parts = files.client_files(run)
    tables = [read_table(run, parts[index]).to_pylist() for index in rounds if index in parts]
    return of_evaluations([[row for row in rows if row["split"] == "validation"] for rows in tables], column)
