"""The experiments of scripts/same-numbers: settings, data and what a script passes, as small as they can be.

A setting is a dotted key of the experiment. `engine.trainer` stands for the key that says how local training is
computed, whatever its name at a revision.
"""

from __future__ import annotations

from collections.abc import Callable

from .case import TRAINER, UNUSED, Case, experiment
from .client import of_clients, of_personal_models
from .cohort import of_cohorts, of_ends
from .compression import of_compressors
from .data import datasets
from .kinds import of_kinds, on_ray
from .own_parts import of_own_parts
from .privacy import of_privacy
from .server import of_servers
from .sources import of_sources
from .training import of_models, of_trainers

__all__ = ["TRAINER", "UNUSED", "Case", "cases", "datasets", "experiment"]


def cases() -> dict[str, Case]:
    """Every case by its name, those on Ray last."""
    makers: list[Callable[[], dict[str, Case]]] = [
        of_servers, of_privacy, of_clients, of_personal_models, of_cohorts, of_ends,
        of_trainers, of_models, of_own_parts, of_sources, of_kinds,
        of_compressors,
    ]  # fmt: skip
    local = {name: case for make in makers for name, case in make().items()}
    return {**local, **on_ray(local)}
