"""Curves from the folders of a study's runs: the mean over the seeds, by round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Mean:
    """rounds: how many are behind each point. values: the mean over the seeds, of the rounds that all of them have."""

    rounds: list[int]
    values: list[float]


def mean_curve(folder: Path, column: str) -> Mean | None:
    """Of a trial's folder, or of one of final runs; None where no round has the figure, or the folder is elsewhere."""
    seeds: list[dict[int, float]] = []
    for file in sorted(folder.glob("seed-*/rounds.parquet")):
        table = pq.read_table(file)
        if column not in table.column_names:
            return None
        pairs = zip(table["round"].to_pylist(), table[column].to_pylist(), strict=True)
        seeds.append({index: value for index, value in pairs if value is not None and np.isfinite(value)})
    common = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    if not common:
        return None
    return Mean([index + 1 for index in common], [float(np.mean([seed[index] for seed in seeds])) for index in common])
