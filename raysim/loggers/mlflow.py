"""Logs to MLflow: a run in the MLflow experiment of that name, with settings as parameters, figures as metrics.

The target is `MLFLOW_TRACKING_URI`, else the SQLite file `mlflow.db` beside the run's folder: MLflow no longer
maintains its store of plain files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.errors import RunFolderError
from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, scalars, settings, store_id, stored_id
from raysim.storage.sqlite_url import sqlite_url

if TYPE_CHECKING:
    from mlflow import MlflowClient

SERVICE, FILE = "mlflow", "mlflow.db"
FINISHED = "FINISHED"
MOST_PARAMS = 100
"""MLflow's limit for one call."""


@contextmanager
def mlflow(run: Logged) -> Iterator[Log]:
    """Log to MLflow; a run that an error ends is marked as failed.

    MLflow keeps every value that it receives, so a figure that it has is not sent again. A finished run of which it has
    all figures is left as it is.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri(run.path))
    known = stored_id(run.path, SERVICE)
    run_id = known or _create(client, run)
    is_open = False

    def set_open() -> None:
        nonlocal is_open
        if not is_open:
            client.update_run(run_id, status="RUNNING")
            is_open = True

    @cache
    def logged(name: str) -> frozenset[int]:
        return frozenset(metric.step for metric in client.get_metric_history(run_id, name)) if known else frozenset()

    def log(row: Row) -> None:
        now_ms, step = int(time.time() * 1000), row["round"]
        named = apart(scalars(row)).items()
        metrics = [Metric(name, value, now_ms, step) for name, value in named if step not in logged(name)]
        if metrics:
            set_open()
            client.log_batch(run_id, metrics=metrics)

    if client.get_run(run_id).info.status != FINISHED:
        set_open()
    try:
        yield log
    except BaseException:
        if is_open:
            client.set_terminated(run_id, status="FAILED")
        raise
    if is_open:
        client.set_terminated(run_id, status=FINISHED)


def apart(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures; if parameter groups have a figure (gsi/fc.weight), the model's (gsi) becomes gsi/model.

    In MLflow's store of files a name is a path, which cannot be both a file and a folder.
    """
    folders = {name[:place] for name in figures for place, sign in enumerate(name) if sign == "/"}
    return {f"{name}/model" if name in folders else name: value for name, value in figures.items()}


def tracking_uri(path: Path) -> str:
    """Return the tracking URI of the run in this folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_url(path.absolute().parent / FILE, RunFolderError)


def _create(client: MlflowClient, run: Logged) -> str:
    from mlflow.entities import Param

    name = run.experiment.name
    known = client.get_experiment_by_name(name)
    created = client.create_run(
        client.create_experiment(name) if known is None else known.experiment_id, run_name=run.path.name
    )
    run_id = str(created.info.run_id)
    params = [Param(key, value) for key, value in settings(run.experiment).items()]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
    store_id(run.path, SERVICE, run_id)
    return run_id
