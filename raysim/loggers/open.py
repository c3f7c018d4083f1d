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
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row
from raysim.loggers.logger import Log, Logged, Logger
from raysim.loggers.mlflow import mlflow
from raysim.loggers.tensorboard import tensorboard
from raysim.loggers.wandb import wandb
from raysim.run_folder import round_table

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
    is_function: bool = False


class Loggers(AbstractContextManager["Loggers"]):
    """Passes rows to loggers. They open with the first row, when the run's folder exists, and close at the end.

    The session before may have ended without a logger's last calls, or without loggers. So a logger with a name first
    receives all rounds that are on record, and sends what its service lacks. A function cannot know what it had.
    A logger that fails is left out with one warning: the run and the other loggers continue.

    Args:
        loggers: names and functions.
        path: the run's folder.
        experiment: the run's.
        first: functions receive the rounds from this one on.
    """

    def __init__(self, loggers: Sequence[LoggerName | Log], path: Path, experiment: Experiment, first: int = 0) -> None:
        self._loggers, self._path, self._experiment, self._first = loggers, path, experiment, first
        self._open: list[_Open] | None = None

    def row(self, row: Row) -> None:
        """Log a finished round."""
        if self._open is None:
            self._begin(self._recorded(row["round"]), row["round"])
        self._hand(row, to_functions=row["round"] >= self._first)

    def no_more(self) -> None:
        """Say that the run is complete; if no round has come, loggers with a name receive what is on record."""
        if self._open is None and (rows := self._recorded(None)):
            self._begin(rows, len(rows))

    def _begin(self, recorded: Sequence[Row], first_round: int) -> None:
        run = Logged(self._path, self._experiment, first_round)
        self._open = [opened for logger in self._loggers if (opened := _opened(logger, run)) is not None]
        for row in recorded:
            self._hand(row, to_functions=False)

    def _hand(self, row: Row, to_functions: bool) -> None:
        self._open = [
            opened for opened in self._open or () if (opened.is_function and not to_functions) or _handed(opened, row)
        ]

    def _recorded(self, before: int | None) -> list[Row]:
        """Return the rounds on record before this one, or all, if a logger with a name is to receive them."""
        if before == 0 or all(map(callable, self._loggers)):
            return []
        try:
            rows: list[Row] = round_table.read_rounds(self._path).slice(0, before).to_pylist()
        except RunFolderError as error:
            log.warning("The loggers do not receive earlier rounds: %s", error)
            return []
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, _, stack, _ in self._open or ():
            try:
                stack.__exit__(kind, error, trace)
            except Exception as failure:
                if failure is not error:
                    _warn(name, failure)


def _opened(logger: LoggerName | Log, run: Logged) -> _Open | None:
    stack = ExitStack()
    if callable(logger):
        return _Open(getattr(logger, "__name__", "user-defined"), logger, stack, is_function=True)
    try:
        return _Open(logger, stack.enter_context(_LOGGERS[logger](run)), stack)
    except Exception as error:
        _warn(logger, error)
        return None


def _handed(opened: _Open, row: Row) -> bool:
    """Pass a row to a logger; return whether it succeeded. A logger that fails is closed."""
    # A copy: a function may change its row, which other loggers are handed too.
    own = {name: list(value) if isinstance(value, list) else value for name, value in row.items()}
    try:
        opened.log(own)
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
