"""Logs to Weights & Biases: a run of the project `raysim`, or `WANDB_PROJECT`; figures by round, settings as config.

`WANDB_MODE=offline` keeps it in the folder `wandb` of the run; `wandb sync` sends it later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from raysim.errors import RunFolderError
from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, scalars, store_id, stored_id
from raysim.storage.inside import inside

SERVICE, PROJECT = "wandb", "raysim"


@contextmanager
def wandb(run: Logged) -> Iterator[Log]:
    """Log to Weights & Biases; its lines on the console are off, because progress is shown there."""
    import wandb as service

    # The service makes this folder, with links of its own that lead out, such as one to its cache.
    inside(run.path, SERVICE, run.path, RunFolderError)
    known = stored_id(run.path, SERVICE)
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

    def log(row: Row) -> None:
        opened.log(scalars(row), step=row["round"])

    code = 1
    try:
        yield log
        code = 0
    finally:
        opened.finish(exit_code=code)
