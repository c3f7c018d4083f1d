"""Logs to TensorBoard: every figure as a scalar, in the folder `tensorboard` of the run; the step is the round."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, own_folder, scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER, EVENTS = "tensorboard", "events.*"

SECOND = re.compile(r"events\.out\.tfevents\.(\d+)\.")


@contextmanager
def tensorboard(run: Logged) -> Iterator[Log]:
    """Write event files.

    The library writes up to two minutes late, so a process that is killed loses rounds. Its readers drop what lies
    behind a step that is written again. So the figures are replaced from the first round on that lacks one.
    """
    folder = own_folder(run.path, FOLDER)
    written = _written(folder) if run.first_round and folder.is_dir() else {}
    writer: SummaryWriter | None = None

    def is_written(row: Row) -> bool:
        step = row["round"]
        return step < run.first_round and scalars(row).keys() <= written.get(step, set())

    def log(row: Row) -> None:
        nonlocal writer
        if writer is None:
            if is_written(row):
                return
            _wait_for_later_name(folder)
            writer = _writer(folder, row["round"])
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, row["round"])

    try:
        yield log
    finally:
        if writer is not None:
            writer.close()


def _writer(folder: Path, step: int) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder, purge_step=step)


def _wait_for_later_name(folder: Path) -> None:
    """Wait until the name of a new event file is behind those that are there: readers take them in this order.

    Names begin with the second in which the file was made: events.out.tfevents.1767225600.
    """
    seconds = [int(found[1]) for file in folder.glob(EVENTS) if (found := SECOND.match(file.name))]
    wait_s = max(seconds, default=0) + 1 - time.time()
    if 0 < wait_s <= 1:
        time.sleep(wait_s)


def _written(folder: Path) -> dict[int, set[str]]:
    """Return the names of the figures in a folder's event files, by step."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    written: dict[int, set[str]] = {}
    for file in sorted(folder.glob(EVENTS)):
        for event in LegacyEventFileLoader(str(file)).Load():
            if event.session_log.status == SessionLog.START:
                written = {step: names for step, names in written.items() if step < event.step}
            for value in event.summary.value:
                written.setdefault(event.step, set()).add(value.tag)
    return written
