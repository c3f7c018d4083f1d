"""Formats a study's values for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raysim.report import number_formats
from tuning.objective import Objective


def figure(objective: Objective, value: float) -> str:
    """Return a value of the objective: a share in percent, or a loss."""
    return number_formats.share(value) if objective.is_share else number_formats.loss(value)


def with_error(objective: Objective, value: float, error: float | None) -> str:
    """Return a value and its standard error, if it has one."""
    return figure(objective, value) + ("" if error is None else f" +- {figure(objective, error)}")


def sentence(text: str) -> str:
    r"""Return the first line of an error, without a traceback, as a sentence.

    >>> sentence("a.py, line 3: ValueError\nTraceback ..."), sentence("It failed.")
    ('a.py, line 3: ValueError.', 'It failed.')
    """
    first = text.partition("\n")[0]
    return first if first.endswith((".", "!", "?")) else f"{first}."


def settings(values: Mapping[str, Any]) -> str:
    """Return a trial's settings: "client.optimizer.lr = 0.1, server.optimizer.lr = 0.01"."""
    return ", ".join(f"{key} = {number(value)}" for key, value in values.items())


def short(values: Mapping[str, Any], keys: Iterable[str] = ()) -> str:
    """Return settings for a picture's legend; `keys`: those of them that count, none for all.

    >>> short({"client.optimizer.lr": 0.1, "server.optimizer.lr": 1.0, "rounds": 5})
    'client lr 0.1, server lr 1, rounds 5'
    """
    return ", ".join(f"{_short(key)} {number(values[key])}" for key in keys or values)


def _short(key: str) -> str:
    return " ".join(dict.fromkeys((key.partition(".")[0], key.rpartition(".")[2])))


def number(value: Any) -> str:
    """Return a setting's value; numbers with four significant digits at most."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
