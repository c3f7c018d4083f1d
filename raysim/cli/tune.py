"""Defines the commands of tuning: `raysim tune`, and `table` and `tuners` for tuners without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raysim.cli.as_json import Json
from raysim.cli.options import (
    Address,
    File,
    GridTable,
    Local,
    Progress,
    Set,
    StudyFolder,
    Unset,
    load,
    text_of,
    training,
)
from raysim.cli.output import continuing, of_picture, show


def tune(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many configurations. [default: as the file]")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="How many at a time. [default: as the file]")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the study is kept. [default: as the file, or study.db]")
    ] = None,
    local: Local = False,
    address: Address = None,
    path: StudyFolder = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the trials from a table of `raysim table`, in place of training."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run the study's failed trials again, with the same values.")
    ] = False,
    progress: Progress = True,
    as_json: Json = False,
) -> None:
    """Find the best values of some keys on held-out clients, and evaluate them on the test split.

    The same command continues a study that was stopped.
    """
    import tuning

    experiment = load(file, changes, removals)
    tuning.section_of(experiment)
    given = {"trials": trials, "concurrent": concurrent, "storage": storage}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if table is not None:
        unused = {
            "--storage": storage is not None,
            "--local": local,
            "--address": address is not None,
            "--retry-failed": retry_failed,
        }
        if refused := [name for name, is_given in unused.items() if is_given]:
            raise typer.BadParameter(f"With --table nothing is trained or stored: leave out {' and '.join(refused)}.")
        text = text_of(file)
        study = tuning.tune_on(experiment, tuning.read_table(table), path=path, source=text, **settings)
    else:
        text, how = text_of(file), training(local, address, progress)
        where = path or tuning.default_folder(experiment)
        with continuing(f"the study in {where}"):
            study = tuning.tune(experiment, path=where, source=text, retry_failed=retry_failed, **how, **settings)
    show(study, lambda: tuning.lines(study), as_json)


def table(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The table; its card is beside it. [default: NAME.parquet]")
    ] = None,
    local: Local = False,
    address: Address = None,
    path: StudyFolder = None,
    progress: Progress = True,
    as_json: Json = False,
) -> None:
    """Train every configuration of a grid, and publish all evaluations as a table on which tuners can be compared.

    The same command continues one that was stopped.
    """
    import tuning

    experiment = load(file, changes, removals)
    to = out or Path(f"{experiment.name}.parquet")
    where = path or tuning.default_folder(experiment)
    with continuing(f"the study in {where}"):
        grid = tuning.make_table(experiment, to, folder=where, **training(local, address, progress))
    facts = {
        "table": to,
        "card": to.with_suffix(".md"),
        "configurations": len(grid.configurations),
        "seeds": len(grid.seeds),
        "rounds": grid.experiment.rounds,
        "clients": len(grid.clients.names),
    }
    lines = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts.items()]
    show(facts, lambda: lines, as_json)


def tuners(
    file: File,
    table: GridTable,
    tuner: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A sampler, or sampler+pruner, such as tpe or random+hyperband; repeatable."),
    ],
    changes: Set = None,
    removals: Unset = None,
    studies: Annotated[int, typer.Option(min=1, max=100_000, help="Studies of each tuner.")] = 100,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where picture and CSV go.")] = Path("tuners"),
    as_json: Json = False,
) -> None:
    """Compare tuners on a table by one budget: the regret of what they would choose, and their mean ranks."""
    import tuning
    from raysim.report.picture_files import free_places
    from raysim.storage.remote.uri import check_is_path

    # The studies take their time.
    check_is_path(out, "The folder of picture and CSV (--out)")
    experiment = load(file, changes, removals)
    free_places("tuners", out, experiment.report)
    comparison = tuning.compare(experiment, tuning.read_table(table), tuner, studies)
    files = tuning.write_comparison(comparison, out, experiment.report)
    lines = [
        (
            f"{row['tuner']}",
            f"mean rank {row['rank']:.2f}{_error(row['rank/standard_error'])}, regret {row['regret']:.4g}",
        )
        for row in comparison.last()
    ]
    lines.append(("written", of_picture(files)))
    facts = {"budget": comparison.budget, "studies": comparison.studies, "tuners": comparison.table, "files": files}
    show(facts, lambda: lines, as_json)


def proxy(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a finished study.")],
    file: File,
    changes: Set = None,
    removals: Unset = None,
    top: Annotated[
        int | None, typer.Option(min=2, help="Only so many of the study's best trials. [default: all]")
    ] = None,
    local: Local = False,
    address: Address = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="Where they are evaluated. [default: runs/NAME-proxy]")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the evaluations from a table of `raysim table`.")
    ] = None,
    progress: Progress = True,
    as_json: Json = False,
) -> None:
    """Evaluate the configurations of a study on the data of FILE: rank correlation, and regret of the study's choice.

    The same command continues one that was stopped.
    """
    import tuning

    experiment = load(file, changes, removals)
    read = None if table is None else tuning.read_table(table)
    how = training(local, address, progress) if read is None else {}
    with continuing():
        evaluated = tuning.proxy(study, experiment, top=top, path=path, table=read, **how)
    tuning.write_proxy(evaluated, experiment.report)
    show(evaluated, lambda: tuning.proxy_lines(evaluated), as_json)


def evolve(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    local: Local = False,
    address: Address = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="The members' folder. [default: runs/NAME-evolution]")
    ] = None,
    progress: Progress = True,
    as_json: Json = False,
) -> None:
    """Train several members at a time, of which the worst go on from the best with other rates (population-based).

    The same command continues one that was stopped.
    """
    import tuning

    with continuing():
        experiment = load(file, changes, removals)
        evolution = tuning.evolve(experiment, path=path, **training(local, address, progress))
    show(evolution, lambda: tuning.evolution_lines(evolution), as_json)


def _error(value: Any) -> str:
    return "" if value is None else f" +- {value:.2f}"
