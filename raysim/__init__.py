"""raysim: cross-device federated learning, simulated at cohort scale on Ray."""

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
