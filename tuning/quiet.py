"""The log while many runs go on at once: what is expected of some of them is no news, everything else is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import optuna

_ROUND = "round "
"""How the messages of a run's rounds begin, such as those about rejected updates: what a study tries goes wrong."""


@contextmanager
def quiet_rounds() -> Iterator[None]:
    """Keep raysim's log to what is not about a round, and Optuna's to warnings: `progress` has a line for a trial."""
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
    """Around where runs are opened: the processes that they start there take over the log's level, but no filter."""
    log = logging.getLogger("raysim")
    level = log.level
    log.setLevel(max(log.getEffectiveLevel(), logging.ERROR))
    try:
        yield
    finally:
        log.setLevel(level)


def _is_no_round(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ROUND)
