"""Names the arguments and options that several commands share, and loads the experiment that they name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from raysim.api.preflight import ExecutorName
    from raysim.experiment.experiment import Experiment
    from raysim.loggers.open import LoggerName

File = Annotated[Path, typer.Argument(metavar="FILE", help="An experiment, in TOML.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as client.optimizer.lr=0.1.")
]
Unset = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove a key.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A running Ray cluster: auto or host:port. [default: this machine]"),
]
Local = Annotated[bool, typer.Option("--local", help="Train in this process, without Ray.")]
Cluster = Annotated[str, typer.Option("--address", metavar="ADDRESS", help="The Ray cluster: auto or host:port.")]
Folder = Annotated[
    Path | None, typer.Option("--path", metavar="DIR", help="The run's folder, or its URI. [default: runs/NAME]")
]
StudyFolder = Annotated[
    Path | None, typer.Option("--path", metavar="DIR", help="The study's folder. [default: runs/NAME-tuning]")
]
GridTable = Annotated[Path, typer.Option("--table", metavar="FILE", help="A table of `raysim table`.")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders with runs, or URIs.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show the run's progress on stderr.")]
Loggers = Annotated[
    list[str] | None,
    typer.Option("--logger", metavar="NAME", help="Also log every round: tensorboard, mlflow or wandb; repeatable."),
]


SetReport = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of pictures, such as report.width_cm=8."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="TEXT=NAME",
        help="Name a method, by its folder or a text of its label: runs/a=FedAvg, cohort.size=5=small; repeatable.",
    ),
]


def loggers_of(names: list[str] | None) -> Sequence[LoggerName]:
    """Return the names of --logger; runs refuse unknown names."""
    return cast("Sequence[LoggerName]", names or ())


def executor_of(local: bool) -> ExecutorName | None:
    """Return the `executor=` of --local."""
    return "local" if local else None


def training(local: bool, address: str | None, progress: bool) -> dict[str, Any]:
    """Return the keywords of --local, --address and --progress."""
    return {"executor": executor_of(local), "address": address, "progress": progress}


def load(file: Path, changes: list[str] | None, removals: list[str] | None) -> Experiment:
    """Load the experiment of FILE, with the changes of --set and --unset."""
    from raysim.cli import begin
    from raysim.errors import ExperimentError
    from raysim.experiment import experiment_file
    from raysim.run_folder import not_a_run

    if file.is_dir():
        raise ExperimentError(f"{file} is not an experiment's file: {not_a_run.in_place_of_a_file(file)}")
    if not os.path.lexists(file) and (name := begin.published(file)) is not None:
        raise ExperimentError(
            f"There is no experiment file {file}: `raysim configs {name}` copies it here, as {Path(name).name}.toml."
        )
    return experiment_file.load(file, changes or (), removals or ())


def text_of(file: Path) -> str:
    """Return the text of FILE, as `load` reads it."""
    from raysim.experiment import experiment_file

    return experiment_file.text_of(file)
