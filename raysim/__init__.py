"""raysim: cross-device federated learning, simulated at cohort scale on Ray."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api.attach import attach, launch, stop, under_way
    from raysim.api.interpolation import interpolate
    from raysim.api.kept_model import ModelScores, evaluate, export
    from raysim.api.many import Report, Runs
    from raysim.api.recorded import read
    from raysim.api.reports import best, compare, make_report
    from raysim.api.run import Result, Round, replay, resume, rounds, run
    from raysim.api.sweeps import SweepPoint, SweepResult, run_sweep
    from raysim.api.trials import TrialsResult, run_trials
    from raysim.client.corrections.correction import (
        ClientEnd,
        ClientHalf,
        ClientStart,
        Correction,
        Exchange,
        LocalGradient,
        Requires,
        ServerHalf,
        ServerResult,
        ServerStepped,
    )
    from raysim.client.objective import ObjectiveAt
    from raysim.client.optimizers.optimizer import ClientOptimizer
    from raysim.client.transform import Transform, TransformAt, Transformed
    from raysim.cohort.sampler import CohortAt, Participant, Sampler
    from raysim.config.overrides import rewritten
    from raysim.config.own_part import OwnPart
    from raysim.config.part import Part
    from raysim.config.section import Section
    from raysim.data.dataset import FederatedDataset
    from raysim.engine.parts import Parts
    from raysim.engine.rounds.replay import ClientUpdate
    from raysim.engine.rounds.run_status import UnderWay
    from raysim.errors import (
        CheckpointError,
        ClientError,
        DataError,
        DeviceMemoryError,
        DiskError,
        DivergedError,
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
    from raysim.evaluation.metric import Metric
    from raysim.experiment.differences import differing
    from raysim.experiment.expand import centralized, dataset_of, trials_of
    from raysim.experiment.experiment import Experiment
    from raysim.experiment.experiment_file import load
    from raysim.experiment.stopping import StopReason
    from raysim.server.aggregators.rule import Coefficients, Coordinatewise
    from raysim.server.weighting import ClientFacts

__all__ = [
    "CheckpointError",
    "ClientEnd",
    "ClientError",
    "ClientFacts",
    "ClientHalf",
    "ClientOptimizer",
    "ClientStart",
    "ClientUpdate",
    "Coefficients",
    "CohortAt",
    "Coordinatewise",
    "Correction",
    "DataError",
    "DeviceMemoryError",
    "DiskError",
    "DivergedError",
    "Exchange",
    "Experiment",
    "ExperimentError",
    "FederatedDataset",
    "LocalGradient",
    "Metric",
    "MissingFileError",
    "ModelError",
    "ModelScores",
    "ObjectiveAt",
    "OwnPart",
    "Part",
    "Participant",
    "Parts",
    "RaysimError",
    "RemoteError",
    "Report",
    "Requires",
    "ResourceError",
    "Result",
    "Round",
    "RunFolderError",
    "Runs",
    "Sampler",
    "Section",
    "ServerHalf",
    "ServerResult",
    "ServerStepped",
    "StopReason",
    "SweepPoint",
    "SweepResult",
    "Transform",
    "TransformAt",
    "Transformed",
    "TrialsResult",
    "UnderWay",
    "UnknownRunError",
    "WorkerLostError",
    "attach",
    "best",
    "centralized",
    "compare",
    "dataset_of",
    "differing",
    "evaluate",
    "export",
    "interpolate",
    "launch",
    "load",
    "make_report",
    "read",
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

_HOMES = MappingProxyType(
    {
        name: home
        for home, names in {
            "raysim.api.attach": "attach launch stop under_way",
            "raysim.api.interpolation": "interpolate",
            "raysim.api.kept_model": "ModelScores evaluate export",
            "raysim.api.many": "Report Runs",
            "raysim.api.recorded": "read",
            "raysim.api.reports": "best compare make_report",
            "raysim.api.run": "Result Round replay resume rounds run",
            "raysim.api.sweeps": "SweepPoint SweepResult run_sweep",
            "raysim.api.trials": "TrialsResult run_trials",
            "raysim.client.corrections.correction": "ClientEnd ClientHalf ClientStart Correction "
            "LocalGradient Requires Exchange ServerHalf ServerResult ServerStepped",
            "raysim.client.objective": "ObjectiveAt",
            "raysim.client.optimizers.optimizer": "ClientOptimizer",
            "raysim.client.transform": "Transform TransformAt Transformed",
            "raysim.cohort.sampler": "CohortAt Participant Sampler",
            "raysim.config.overrides": "rewritten",
            "raysim.config.own_part": "OwnPart",
            "raysim.config.part": "Part",
            "raysim.config.section": "Section",
            "raysim.data.dataset": "FederatedDataset",
            "raysim.engine.parts": "Parts",
            "raysim.engine.rounds.replay": "ClientUpdate",
            "raysim.engine.rounds.run_status": "UnderWay",
            "raysim.evaluation.metric": "Metric",
            "raysim.experiment.differences": "differing",
            "raysim.experiment.expand": "centralized dataset_of trials_of",
            "raysim.experiment.experiment": "Experiment",
            "raysim.experiment.experiment_file": "load",
            "raysim.experiment.stopping": "StopReason",
            "raysim.server.aggregators.rule": "Coefficients Coordinatewise",
            "raysim.server.weighting": "ClientFacts",
        }.items()
        for name in names.split()
    }
)


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and `raysim --help` needs none of it: names are imported when they are first used.
    if name == "__version__":
        return import_module("importlib.metadata").version("raysim")
    if name not in __all__:
        hint = ": it is tuning.tune, of the package tuning beside raysim" if name == "tune" else ""
        raise AttributeError(f"module 'raysim' has no attribute {name!r}{hint}")
    return getattr(import_module(_HOMES.get(name, "raysim.errors")), name)


def __dir__() -> list[str]:
    return __all__
