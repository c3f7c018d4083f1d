"""Filters the log while many runs are under way: messages about rounds are expected, all others are shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import optuna

_ROUND = "round "
"""Prefix of messages about a run's rounds, such as rejected updates: a study tries values that fail."""


@contextmanager
def quiet_rounds() -> Iterator[None]:
    """Drop raysim's messages about rounds, and Optuna's below warnings: `progress` has a line for each trial."""
    before, log = optuna.logging.get_verbosity(), logging.getLogger("raysim")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log.addFilter(_is_no_round)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
        log.removeFilter(_is_no_round)


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


def _is_no_round(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ROUND)
