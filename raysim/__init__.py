"""raysim: cross-device federated learning, simulated at cohort scale on Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api import Result, Round, replay, resume, rounds, run
    from raysim.attached import attach, launch, stop, under_way
    from raysim.central_training import centralized
    from raysim.data.dataset import FederatedDataset
    from raysim.differences import differing
    from raysim.engine.replay import ClientUpdate
    from raysim.engine.under_way import UnderWay
    from raysim.errors import (
        CheckpointError,
        ClientError,
        DataError,
        ExperimentError,
        MissingFileError,
        ModelError,
        RaysimError,
        RemoteError,
        ResourceError,
        RunFolderError,
        UnknownRunError,
        WorkerLostError,
    )
    from raysim.experiment import Experiment, load
    from raysim.prepared import dataset_of
    from raysim.rewrite import rewritten
    from raysim.runs import Report, Runs
    from raysim.section import Section
    from raysim.sweep_runs import SweepPoint, SweepResult, run_sweep
    from raysim.trial_runs import TrialsResult, run_trials
    from raysim.trials import trials_of

__all__ = [
    "CheckpointError",
    "ClientError",
    "ClientUpdate",
    "DataError",
    "Experiment",
    "ExperimentError",
    "FederatedDataset",
    "MissingFileError",
    "ModelError",
    "RaysimError",
    "RemoteError",
    "Report",
    "ResourceError",
    "Result",
    "Round",
    "RunFolderError",
    "Runs",
    "Section",
    "SweepPoint",
    "SweepResult",
    "TrialsResult",
    "UnderWay",
    "UnknownRunError",
    "WorkerLostError",
    "attach",
    "centralized",
    "dataset_of",
    "differing",
    "launch",
    "load",
    "replay",
    "resume",
    "rewritten",
    "rounds",
    "run",
    "run_sweep",
    "run_trials",
    "stop",
    "trials_of",
    "under_way",
]

_HOMES = {
    "FederatedDataset": "raysim.data.dataset",
    "ClientUpdate": "raysim.engine.replay",
    "UnderWay": "raysim.engine.under_way",
    "Experiment": "raysim.experiment",
    "Section": "raysim.section",
    "dataset_of": "raysim.prepared",
    "differing": "raysim.differences",
    "Report": "raysim.runs",
    "Runs": "raysim.runs",
    "TrialsResult": "raysim.trial_runs",
    "centralized": "raysim.central_training",
    "load": "raysim.experiment",
    "rewritten": "raysim.rewrite",
    "run_trials": "raysim.trial_runs",
    "trials_of": "raysim.trials",
    **dict.fromkeys(("SweepPoint", "SweepResult", "run_sweep"), "raysim.sweep_runs"),
    **dict.fromkeys(("attach", "launch", "stop", "under_way"), "raysim.attached"),
    **dict.fromkeys(("Result", "Round", "replay", "resume", "rounds", "run"), "raysim.api"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and `raysim --help` needs none of it: names are imported when they are first used.
    if name not in __all__:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "raysim.errors")), name)


def __dir__() -> list[str]:
    return __all__
