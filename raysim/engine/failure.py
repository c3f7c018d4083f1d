"""Decides after a failure whether work runs again or the run ends. The mechanism is elsewhere.

Each cause has a budget. User errors are raised at once, without this decision: the same code on the same client would
fail again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from raysim.errors import DeviceMemoryError, RaysimError, WorkerLostError

Cause = Literal["worker_lost", "hung", "out_of_memory"]

BUDGETS: Mapping[Cause, int] = MappingProxyType({"worker_lost": 3, "hung": 1, "out_of_memory": 1})
"""Number of times that the same unit may run again, or a worker start again, after a failure of that cause."""


@dataclass(frozen=True)
class Decision:
    """Whether to run the work again. reason: for the log if so, else for the error that ends the work."""

    retry: bool
    reason: str


def decide(cause: Cause, failures_before: int, what: str) -> Decision:
    """Decide on one failure.

    Args:
        cause: why the work failed.
        failures_before: the largest number of earlier failures of that cause among the units concerned.
        what: says which worker failed, how, and with which work.
    """
    limit = BUDGETS[cause]
    count = failures_before + 1
    if count <= limit:
        return Decision(True, f"{what}: retry {count} of {limit}")
    return Decision(False, f"{what}: giving up after {failures_before} of {limit} retries")


def given_up(cause: Cause, decision: Decision) -> RaysimError:
    """Return the error of a run whose budget is spent."""
    if cause == "out_of_memory":
        advice = "Lower engine.chunk_size, or give each worker a larger share of the card (engine.gpus_per_worker)."
        return DeviceMemoryError(f"{decision.reason}. {advice}")
    return WorkerLostError(decision.reason)
