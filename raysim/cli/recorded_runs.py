"""Defines the commands that read recorded runs: `raysim report`, `compare`, `best`, `interpolate` and `replay`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.options import Folders, Labels, SetReport
from raysim.cli.output import of_picture, print_text, say

if TYPE_CHECKING:
    from raysim.api.run import Round
    from raysim.engine.rounds.replay import ClientUpdate


def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the report goes. [default: DIR/report; report, for several]"),
    ] = None,
    targets: Annotated[
        list[float] | None,
        typer.Option(
            "--target", min=0, max=1, help="An accuracy of rounds to target; repeatable. [default: 95 % of the best]"
        ),
    ] = None,
    monotone: Annotated[
        bool, typer.Option("--monotone", help="Learning curves show the best value so far (McMahan et al. 2017).")
    ] = False,
    labels: Labels = None,
    changes: SetReport = None,
    as_json: Json = False,
) -> None:
    """Make a page with pictures of runs, and each picture as PNG, SVG, PDF and CSV.

    A folder is a run's, or holds trials, a sweep or any other runs. Runs that differ only in seeds form one method.
    """
    from raysim.api import reports

    made = reports.make_report(
        *folders, out=out, targets=targets or (), monotone=monotone, labels=labels or (), set=changes or ()
    )
    for note in made.notes:
        say(f"note: {note}")
    if as_json:
        print_json(made)
    else:
        print_text(f"{made.page}, {made.figures} figures")


def compare(
    folders: Folders,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="A figure of the records. [default: each evaluation's accuracy]"),
    ] = None,
    test: Annotated[Literal["t", "wilcoxon"], typer.Option(help="The paired test.")] = "t",
    last: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="A run's figure is its mean over the last N evaluated rounds."),
    ] = 1,
    form: Annotated[Literal["text", "markdown", "latex"], typer.Option("--format", help="Of the table.")] = "text",
    labels: Labels = None,
    as_json: Json = False,
) -> None:
    """Compare methods: mean, deviation, and the difference from the first, paired by seed and tested."""
    from raysim.api import reports

    compared = reports.compare(*folders, metrics=metrics or (), test=test, labels=labels or (), last=last)
    for note in compared.notes:
        say(f"note: {note}")
    if as_json:
        print_json(compared.tables)
    else:
        print_text(compared.written(form))


def best(
    folders: Folders,
    by: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="A recorded score: accuracy and loss are of training; eval/validation/accuracy, eval/test/loss, ...",
        ),
    ],
    after: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N", help="Rounds after which to choose. [default: all]")
    ] = None,
    shown: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is drawn. [default: eval/test/accuracy, else the score]")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where pictures and their CSV go.")] = Path("best"),
    changes: SetReport = None,
    as_json: Json = False,
) -> None:
    """Choose the best and the second best method of each folder by a score, and draw them.

    A folder holds a study or a sweep. Options --by and --after can be repeated: there is a picture for each pair.
    """
    from raysim.api import reports

    made = reports.best(*folders, by=by, after=after or (), shown=shown, out=out, set=changes or ())
    for note in made.notes:
        say(f"note: {note}")
    if as_json:
        print_json(made)
    else:
        print_text("\n".join(made.lines))


def interpolate(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="w: a run's folder or URI; a checkpoint of one.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="w': likewise, of such a model.")],
    split: Annotated[str, typer.Option(metavar="NAME", help="The split of the first run's data.")] = "train",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where picture and CSV go.")] = Path("interpolation"),
    changes: SetReport = None,
    as_json: Json = False,
) -> None:
    """Score the models theta w + (1 - theta) w', theta from -0.2 to 1.2, and draw their loss."""
    from raysim.api import interpolation
    from raysim.engine.rounds.interpolation import THETAS

    say(f"scoring {len(THETAS)} models on all examples of the split {split!r}")
    rows = interpolation.between_runs(first, second, split=split, out=out, changes=changes or ()).to_pylist()
    files = sorted(out.glob("interpolation.*"))
    if as_json:
        print_json({"split": split, "rows": rows, "files": files})
        return
    # A loss that is no number is less than none, and none is less than it.
    known = [row for row in rows if not math.isnan(row["loss"])]
    for row in rows:
        if row["theta"] in (0.0, 1.0):
            print_text(f"theta = {row['theta']:g}: {split} loss {row['loss']:.4g}")
    if known:
        best = min(known, key=lambda row: row["loss"])
        print_text(f"least at theta = {best['theta']:.3g}: {split} loss {best['loss']:.4g}")
    print_text(of_picture(files))


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or its URI.")],
    index: Annotated[int, typer.Option("--round", min=0, help="The round; 0 is the first.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="Only this client's update.")] = None,
    as_json: Json = False,
) -> None:
    """Repeat a recorded round in this process, and compare it with the record."""
    from raysim.api import run as api
    from raysim.storage.remote.folder import read_only_copy

    again = api.replay(folder, index, client=client)
    with read_only_copy(folder) as here:
        if as_json:
            print_json(_replayed(here, again))
        elif isinstance(again, api.Round):
            print_text(beside_record(here, again.index, again.metrics))
        else:
            print_text(_sent(again))


def _replayed(folder: Path, again: Round | ClientUpdate) -> dict[str, Any]:
    """Return a repeated round with its record, or the norms of a client's update, for other programs."""
    from raysim.engine.rounds.replay import ClientUpdate
    from raysim.run_folder import cost_columns, round_table

    if isinstance(again, ClientUpdate):
        norms = None if again.update is None else {k: float(v.double().norm()) for k, v in again.update.items()}
        return {"round": again.index, "client": again.client, "rejected": again.rejected, "norms": norms}
    row = round_table.read_rounds(folder).to_pylist()[again.index]
    metrics = {name: value for name, value in again.metrics.items() if not cost_columns.tells_cost(name)}
    differing = [name for name, value in metrics.items() if row.get(name) is not None and value != row[name]]
    return {"round": again.index, "metrics": metrics, "differs": differing}


def beside_record(folder: Path, index: int, metrics: Mapping[str, float | None]) -> str:
    """Return a line per figure of the round, with the recorded figure if it differs."""
    from raysim.run_folder import cost_columns, round_table

    row = round_table.read_rounds(folder).to_pylist()[index]
    known = {
        name: value
        for name, value in metrics.items()
        if not cost_columns.tells_cost(name) and row.get(name) is not None
    }
    others = [name for name, value in known.items() if value != row[name]]
    width = max(map(len, known), default=0)
    lines = [
        f"{name:{width}}  {value}" + (f"  (recorded: {row[name]})" if name in others else "")
        for name, value in known.items()
    ]
    verdict = f"differs from the record in {', '.join(others)}" if others else "every figure as recorded"
    return "\n".join([f"round {index}: {verdict}", *lines])


def _sent(update: ClientUpdate) -> str:
    """Return a line per tensor of a client's update."""
    head = f"round {update.index}, client {update.client}, trained with {len(update.chunk) - 1} others"
    if update.update is None:
        return f"{head}: its update is not finite, and was rejected"
    width = max(map(len, update.update), default=0)
    norms = [f"{name:{width}}  |delta| = {float(tensor.double().norm()):.6g}" for name, tensor in update.update.items()]
    return "\n".join([head, *norms])
