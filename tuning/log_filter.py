"""Filters the log while many runs are under way: messages about rounds are expected, all others are shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import optuna

_ROUND = "round "
"""Prefix of messages about a run's rounds, such as rejected updates: a study tries values that fail."""

_BEGINNINGS = "beginnings"
"""The module that says what is to be known of a run that begins."""


@contextmanager
def quiet_rounds() -> Iterator[None]:
    """Drop raysim's messages about rounds, and Optuna's below warnings: `progress` has a line for each trial.

    What is said of runs that begin is said once in the block: trials and final runs have workers of their own.
    """
    before, log, kept = optuna.logging.get_verbosity(), logging.getLogger("raysim"), _NoRounds()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log.addFilter(kept)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
        log.removeFilter(kept)


@contextmanager
def quiet_hosts() -> Iterator[None]:
    """Raise the log's level while runs open: the processes that they start inherit the level, but no filter."""
    log = logging.getLogger("raysim")
    level = log.level
    log.setLevel(max(log.getEffectiveLevel(), logging.ERROR))
    try:
        yield
    finally:
        log.setLevel(level)


class _NoRounds(logging.Filter):
    """Lets a record through unless it is about a round, or says of a run that begins what was said before."""

    def __init__(self) -> None:
        super().__init__()
        self._said = set[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.module != _BEGINNINGS:
            return not text.startswith(_ROUND)
        is_new = text not in self._said
        self._said.add(text)
        return is_new
