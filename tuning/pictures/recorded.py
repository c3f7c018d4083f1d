"""Curves from the folders of a study's runs: the mean over the seeds, by round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from raysim.report.series import Series, over_trials


def mean_curve(folder: Path, column: str) -> Series | None:
    """Of a trial's folder, or of one of final runs: the rounds that all seeds have.

    None where there is none, or the folder is elsewhere.
    """
    seeds = [pq.read_table(file) for file in sorted(folder.glob("seed-*/rounds.parquet"))]
    found = over_trials(seeds, column)
    if found is None:
        return None
    common = found.at(np.flatnonzero(found.trials == len(seeds)))
    return common if len(common.rounds) else None
