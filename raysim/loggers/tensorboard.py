"""Logs to TensorBoard: every figure as a scalar, in the folder `tensorboard` of the run; the step is the round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, own_folder, scalars

FOLDER = "tensorboard"


@contextmanager
def tensorboard(run: Logged) -> Iterator[Log]:
    """Write event files; after a resume, the figures of repeated rounds are replaced."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(own_folder(run.path, FOLDER), purge_step=run.first_round)

    def log(row: Row) -> None:
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, row["round"])

    try:
        yield log
    finally:
        writer.close()
