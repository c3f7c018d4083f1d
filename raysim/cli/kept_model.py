"""Defines the commands that use a recorded run's model: `raysim export` and `raysim evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.output import print_text

Run = Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or its URI.")]
Best = Annotated[bool, typer.Option("--best", help="The model that checkpoint.best keeps. [default: the newest]")]


def export(
    folder: Run,
    best: Best = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the adapters of model.lora: a folder that peft reads.")
    ] = False,
    merged: Annotated[
        bool,
        typer.Option("--merged", help="The module without adapters: those of model.lora are added to their layers."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="[default: model.safetensors or best.safetensors, or adapter or best-adapter, in DIR]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run's model as safetensors, with the names that module.load_state_dict takes."""
    from raysim.api import kept_model
    from raysim.errors import RunFolderError
    from raysim.storage.inside import inside
    from raysim.storage.remote.uri import uri_of

    names = ("best-adapter", "adapter") if adapter else ("best.safetensors", "model.safetensors")
    name = names[0] if best else names[1]
    file = out or (inside(folder, name, folder, RunFolderError) if uri_of(folder) is None else Path(name))
    rounds = kept_model.export(folder, file, best=best, adapter=adapter, merged=merged)
    if as_json:
        print_json({"file": file, "rounds": rounds})
    else:
        print_text(f"{file}, the {'adapters' if adapter else 'model'} after {rounds:,} rounds")


def evaluate(
    folder: Run,
    best: Best = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE_OR_FOLDER", help="Other data: an experiment's, or a prepared dataset or its URI."
        ),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A split; repeatable. [default: those of the experiment]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a run's model again, on its own data with the numbers on record, or on other data."""
    from raysim.api import kept_model
    from raysim.cli.data import dataset_at
    from raysim.report import column_names, number_formats

    other = None if data is None else dataset_at(data, None)
    scores = kept_model.evaluate(folder, best=best, data=other, split=split or ())
    if as_json:
        print_json({"folder": folder, "rounds": scores.rounds, "metrics": scores.metrics})
        return
    print_text(f"the model after {scores.rounds:,} rounds")
    for name, value in scores.metrics.items():
        print_text(
            f"{name}  {number_formats.share(value) if column_names.is_share(name) else number_formats.loss(value)}"
        )
