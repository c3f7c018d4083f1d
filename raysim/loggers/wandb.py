"""Logs to Weights & Biases: a run of the project `raysim`, or `WANDB_PROJECT`; figures by round, settings as config.

`WANDB_MODE=offline` keeps it in the folder `wandb` of the run; `wandb sync` sends it later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raysim.errors import RunFolderError
from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, scalars, store_id, stored_id
from raysim.loggers.wandb_sessions import Left, left_by
from raysim.storage.inside import inside

if TYPE_CHECKING:
    import wandb as service

SERVICE, PROJECT = "wandb", "raysim"


@contextmanager
def wandb(run: Logged) -> Iterator[Log]:
    """Log to Weights & Biases; its lines on the console are off, because progress is shown there.

    The service takes rounds in order, each once. A session begins with the first round that no earlier session has
    left. A run that is complete there is left as it is.
    """
    # The service makes this folder, with links of its own that lead out, such as one to its cache.
    folder = inside(run.path, SERVICE, run.path, RunFolderError)
    known = stored_id(run.path, SERVICE)
    left = Left(0, False) if known is None else left_by(folder, known)
    opened: service.Run | None = None
    first = left.rounds

    def log(row: Row) -> None:
        nonlocal opened, first
        if row["round"] >= first and opened is None:
            opened = _session(run, known)
            # Online the service says what it has.
            first = max(first, opened.starting_step)
        if row["round"] >= first and opened is not None:
            opened.log(scalars(row), step=row["round"])

    code = 1
    try:
        yield log
        code = 0
    finally:
        if opened is None and code == 0 and not left.is_finished:
            opened = _session(run, known)
        if opened is not None:
            opened.finish(exit_code=code)


def _session(run: Logged, known: str | None) -> service.Run:
    import wandb as service

    opened = service.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.path.name,
        group=run.experiment.name,
        id=known,
        resume="allow" if known else None,
        dir=str(run.path),
        config=json.loads(run.experiment.to_json()),
        settings=service.Settings(console="off", silent=True),
    )
    store_id(run.path, SERVICE, str(opened.id))
    return opened
