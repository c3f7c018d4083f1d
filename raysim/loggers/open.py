"""Checks and opens loggers, and passes rows to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, NamedTuple, Self, get_args

from raysim.config.plain import shown
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, Logger
from raysim.loggers.mlflow import mlflow
from raysim.loggers.tensorboard import tensorboard
from raysim.loggers.wandb import wandb

log = logging.getLogger("raysim")

LoggerName = Literal["tensorboard", "mlflow", "wandb"]

_LOGGERS: Mapping[str, Logger] = MappingProxyType({"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb})


def check(loggers: Sequence[LoggerName | Log]) -> None:
    """Check before a run that its loggers are available.

    Raises:
        ExperimentError: no logger has that name, or its package is not installed.
    """
    if not isinstance(loggers, Sequence) or isinstance(loggers, str):
        # What an iterator yields here would be missing later.
        raise ExperimentError(f"loggers= must be a list of names and functions, but got {shown(loggers)}.")
    for name in loggers:
        if callable(name):
            continue
        if name not in _LOGGERS:
            raise ExperimentError(
                f"there is no logger {name!r}: they are {', '.join(get_args(LoggerName))}, or a function of the row"
            )
        if find_spec(name) is None:
            raise ExperimentError(f"the logger {name!r} needs its package: pip install 'raysim[{name}]'")


class _Open(NamedTuple):
    name: str
    log: Log
    stack: ExitStack


class Loggers(AbstractContextManager["Loggers"]):
    """Passes rows to loggers. They open with the first row, when the run's folder exists, and close at the end.

    A logger that fails is left out with one warning: the run and the other loggers continue.
    """

    def __init__(self, loggers: Sequence[LoggerName | Log], path: Path, experiment: Experiment) -> None:
        self._loggers, self._path, self._experiment = loggers, path, experiment
        self._open: list[_Open] | None = None

    def row(self, row: Row) -> None:
        """Log a finished round."""
        if self._open is None:
            run = Logged(self._path, self._experiment, row["round"])
            self._open = [opened for logger in self._loggers if (opened := _opened(logger, run)) is not None]
        self._open = [opened for opened in self._open if _handed(opened, row)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, _, stack in self._open or ():
            try:
                stack.__exit__(kind, error, trace)
            except Exception as failure:
                if failure is not error:
                    _warn(name, failure)


def _opened(logger: LoggerName | Log, run: Logged) -> _Open | None:
    stack = ExitStack()
    if callable(logger):
        return _Open(getattr(logger, "__name__", "user-defined"), logger, stack)
    try:
        return _Open(logger, stack.enter_context(_LOGGERS[logger](run)), stack)
    except Exception as error:
        _warn(logger, error)
        return None


def _handed(opened: _Open, row: Row) -> bool:
    """Pass a row to a logger; return whether it succeeded. A logger that fails is closed."""
    try:
        opened.log(row)
    except Exception as error:
        _warn(opened.name, error)
        try:
            opened.stack.close()
        except Exception as again:
            _warn(opened.name, again)
        return False
    return True


def _warn(name: str, error: Exception) -> None:
    log.warning("The logger %s failed, and is left out from here on: %s: %s", name, type(error).__name__, error)
