"""raysim: cross-device federated learning, simulated at cohort scale on Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api.attach import attach, launch, stop, under_way
    from raysim.api.many import Report, Runs
    from raysim.api.run import Result, Round, replay, resume, rounds, run
    from raysim.api.sweeps import SweepPoint, SweepResult, run_sweep
    from raysim.api.trials import TrialsResult, run_trials
    from raysim.config.overrides import rewritten
    from raysim.config.section import Section
    from raysim.data.dataset import FederatedDataset
    from raysim.engine.parts import Parts
    from raysim.engine.rounds.replay import ClientUpdate
    from raysim.engine.rounds.under_way import UnderWay
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
    from raysim.experiment.differences import differing
    from raysim.experiment.expand import centralized, dataset_of, trials_of
    from raysim.experiment.experiment import Experiment, load

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
    "Parts",
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
    "ClientUpdate": "raysim.engine.rounds.replay",
    "UnderWay": "raysim.engine.rounds.under_way",
    "Experiment": "raysim.experiment.experiment",
    "Section": "raysim.config.section",
    "differing": "raysim.experiment.differences",
    "Parts": "raysim.engine.parts",
    "load": "raysim.experiment.experiment",
    "rewritten": "raysim.config.overrides",
    **dict.fromkeys(("Report", "Runs"), "raysim.api.many"),
    **dict.fromkeys(("centralized", "dataset_of", "trials_of"), "raysim.experiment.expand"),
    **dict.fromkeys(("Result", "Round", "replay", "resume", "rounds", "run"), "raysim.api.run"),
    **dict.fromkeys(("SweepPoint", "SweepResult", "run_sweep"), "raysim.api.sweeps"),
    **dict.fromkeys(("TrialsResult", "run_trials"), "raysim.api.trials"),
    **dict.fromkeys(("attach", "launch", "stop", "under_way"), "raysim.api.attach"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and `raysim --help` needs none of it: names are imported when they are first used.
    if name not in __all__:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "raysim.errors")), name)


def __dir__() -> list[str]:
    return __all__
