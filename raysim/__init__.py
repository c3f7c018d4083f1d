"""raysim: cross-device federated learning, simulated at cohort scale on Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api import Result, Round, resume, rounds, run
    from raysim.data.dataset import FederatedDataset
    from raysim.errors import (
        CheckpointError,
        ClientError,
        DataError,
        ExperimentError,
        ModelError,
        RaysimError,
        ResourceError,
        RunFolderError,
        WorkerLostError,
    )
    from raysim.experiment import Experiment, load

__all__ = [
    "CheckpointError",
    "ClientError",
    "DataError",
    "Experiment",
    "ExperimentError",
    "FederatedDataset",
    "ModelError",
    "RaysimError",
    "ResourceError",
    "Result",
    "Round",
    "RunFolderError",
    "WorkerLostError",
    "load",
    "resume",
    "rounds",
    "run",
]

_HOMES = {
    "FederatedDataset": "raysim.data.dataset",
    "Experiment": "raysim.experiment",
    "load": "raysim.experiment",
    **dict.fromkeys(("Result", "Round", "resume", "rounds", "run"), "raysim.api"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and `raysim --help` needs none of it: names are imported when they are first used.
    if name not in __all__:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "raysim.errors")), name)


def __dir__() -> list[str]:
    return __all__
