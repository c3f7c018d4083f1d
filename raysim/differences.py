"""Where two records differ, key by key: what a person needs to see when a run is not the one that was meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.experiment import Experiment


def settings(stored: Experiment, asked: Experiment) -> list[str]:
    """One line per key whose value is another, such as "client.optimizer.lr was 0.1, and is 0.5".

    How long to go on, where it is placed and how it is called may differ between a run and its continuation.
    """
    return differing(stored.determining(), asked.determining())


def differing(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[str]:
    """Likewise of any two records; `path` goes before every key."""
    lines: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differing(old, new, f"{path}{key}.")
        elif old != new:
            lines.append(f"{path}{key} was {_written(old)}, and is {_written(new)}")
    return lines


def _written(value: Any) -> str:
    return "absent" if value is None else repr(value)
