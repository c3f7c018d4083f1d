"""Formats a study's values for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.report import figures
from tuning.objective import Objective


def figure(objective: Objective, value: float) -> str:
    """Return a value of the objective: a share in percent, or a loss."""
    return figures.share(value) if objective.is_share else figures.loss(value)


def with_error(objective: Objective, value: float, error: float | None) -> str:
    """Return a value and its standard error, if it has one."""
    return figure(objective, value) + ("" if error is None else f" +- {figure(objective, error)}")


def settings(values: Mapping[str, Any]) -> str:
    """Return a trial's settings: "client.optimizer.lr = 0.1, server.optimizer.lr = 0.01"."""
    return ", ".join(f"{key} = {number(value)}" for key, value in values.items())


def number(value: Any) -> str:
    """Return a setting's value; numbers with four significant digits at most."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
