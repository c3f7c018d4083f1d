"""Defines `raysim data`: look at datasets, and prepare them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.options import Set, load
from raysim.cli.output import print_text, say
from raysim.errors import ExperimentError, MissingFileError

if TYPE_CHECKING:
    from raysim.data.dataset import FederatedDataset
    from raysim.experiment.experiment import Experiment


def inspect(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="An experiment, a run's folder or a prepared dataset (or its URI), or a source such as mnist.",
        ),
    ],
    changes: Set = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="PNG", help="Also draw labels by client, of --split.")
    ] = None,
    histograms: Annotated[
        Path | None,
        typer.Option("--histograms", metavar="PNG", help="Also draw histograms of clients' sizes and labels."),
    ] = None,
    split: Annotated[str, typer.Option(help="The split that --picture and --histograms show.")] = "train",
    as_json: Json = False,
) -> None:
    """Describe a dataset: clients, examples, sizes, labels."""
    from raysim.data.describe import describe
    from raysim.report import client_histograms, label_picture
    from raysim.storage.remote.uri import check_is_path

    for option, file in (("--picture", picture), ("--histograms", histograms)):
        if file is not None:
            check_is_path(file, f"The picture of {option}")
        if file is not None and file.suffix != ".png":
            raise typer.BadParameter(f"{option} draws a PNG: name a file that ends in .png, not {file.name!r}.")
    dataset = dataset_at(source, changes)
    if as_json:
        print_json(_record(dataset))
    else:
        print_text(describe(dataset))
    if picture is not None:
        label_picture.draw(dataset, split, picture)
        (say if as_json else print_text)(f"\npicture      {picture}")
    if histograms is not None:
        client_histograms.draw(dataset, split, histograms)
        (say if as_json else print_text)(f"\nhistograms   {histograms}")


def prepare(
    source: Annotated[str, typer.Argument(metavar="FILE_OR_NAME", help="An experiment, or a source such as mnist.")],
    changes: Set = None,
    root: Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the source's files.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="First fetch what is missing from the publisher's address.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put data into the cache, where runs find them: an experiment's, or a source's as --set data.KEY=VALUE has it.

    A source that has no clients of its own is dealt to 100, unless data.clients says otherwise.
    """
    import time

    from raysim.data.describe import summary
    from raysim.experiment import experiment_file
    from raysim.report import number_formats

    start_s = time.monotonic()
    if source.endswith(".toml") or Path(source).is_file():
        experiment = load(Path(source), [*(changes or ()), *([f"data.root={root}"] if root else ())], None)
    else:
        experiment = experiment_file.of_source(source, root, changes or ())
    dataset = _downloaded(experiment, Path(source)) if download else _prepared(experiment, Path(source))
    if as_json:
        print_json(_record(dataset))
        return
    took = number_formats.duration(time.monotonic() - start_s)
    print_text(summary(dataset))
    print_text(f"fingerprint  {dataset.fingerprint}")
    print_text(f"cache        {_whereabouts(dataset)}, ready after {took}")


def dataset_at(source: Path, changes: list[str] | None) -> FederatedDataset:
    """Return the data of an experiment's file, of a run or a prepared dataset, at a path or URI, or a source's."""
    from raysim.experiment import experiment_file
    from raysim.run_folder import files
    from raysim.storage.remote.folder import read_only_copy
    from raysim.storage.remote.remote import Remote
    from raysim.storage.remote.uri import uri_of

    uri = uri_of(source)
    if uri is None and _is_name(source):
        return _prepared(experiment_file.of_source(str(source), None, changes or ()), source)
    if uri is None and not source.is_dir():
        return _prepared(load(source, changes, None), source)
    if changes:
        raise typer.BadParameter("--set changes an experiment, and this is a prepared folder, which cannot change.")
    if (source / files.RECORD).exists() if uri is None else Remote(uri).has(files.RECORD):
        from raysim.run_folder import experiment_record

        with read_only_copy(source) as here:
            experiment = experiment_record.stored_experiment(here)
        return _prepared(experiment, source)
    from raysim.data.dataset import FederatedDataset

    return FederatedDataset.open(uri or source)


def _is_name(source: Path) -> bool:
    """Whether a source is meant: nothing of that name is there, or a folder that may have the source's files."""
    from raysim.data import manifest
    from raysim.experiment import experiment_file
    from raysim.run_folder import files

    if source.suffix or len(source.parts) != 1:
        return False
    is_prepared = (source / files.RECORD).exists() or (source / manifest.FILE).exists()
    return not source.exists() or (source.is_dir() and str(source) in experiment_file.sources() and not is_prepared)


def _record(dataset: FederatedDataset) -> dict[str, Any]:
    """Return what a dataset is, for other programs."""
    from raysim.data.describe import split_facts

    splits = {
        name: split_facts(split, dataset.num_classes, dataset.y.padding).record()
        for name, split in dataset.splits.items()
    }
    return {
        "fingerprint": dataset.fingerprint,
        "x": str(dataset.x),
        "y": str(dataset.y),
        "classes": dataset.num_classes,
        "splits": splits,
    }


def _prepared(experiment: Experiment, source: Path) -> FederatedDataset:
    if experiment.data is None:
        raise ExperimentError(f"{source} has no [data] section: its data came from a script.")
    from raysim.data.prepare import prepare

    return prepare(experiment.data, experiment.seed)


def _downloaded(experiment: Experiment, source: Path) -> FederatedDataset:
    """Do `_prepared`; if a file is missing, fetch it and try again."""
    from raysim.data import downloads

    try:
        return _prepared(experiment, source)
    except MissingFileError as missing:
        assert experiment.data is not None
        for path in downloads.download(experiment.data, missing):
            say(f"fetched {path}")
    return _prepared(experiment, source)


def _whereabouts(dataset: FederatedDataset) -> str:
    from raysim.data.generated_split import GeneratedSplit
    from raysim.storage.cache import datasets

    if isinstance(dataset.train, GeneratedSplit):
        return "nothing is stored: it is generated client by client"
    return str(datasets())


data = typer.Typer(help="Look at datasets, and prepare them.", no_args_is_help=True)
data.command("inspect")(inspect)
data.command("prepare")(prepare)
