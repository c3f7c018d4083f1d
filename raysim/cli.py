"""The command line. Commands import what they need when they are called, so that `raysim --help` answers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from raysim.errors import DataError, ExperimentError, ModelError, RaysimError, ResourceError, RunFolderError

if TYPE_CHECKING:
    from raysim.data.dataset import FederatedDataset
    from raysim.engine.plan import Plan
    from raysim.experiment import Experiment
    from raysim.series import Member

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: something broke; what was asked for cannot be done; Ctrl-C."""

_MISUSES = (ExperimentError, DataError, ModelError, ResourceError, RunFolderError)


class _Commands(TyperGroup):
    """Turns raysim's errors into one message and an exit code, for every command alike."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RaysimError as error:
            _say(f"error: {error}")
            raise typer.Exit(MISUSED if isinstance(error, _MISUSES) else FAILED) from None
        except BrokenPipeError:
            # The reader of our output left (`raysim check ... | head`): typer ends quietly.
            raise
        except OSError as error:
            _say(f"error: {error}")
            raise typer.Exit(FAILED) from None
        # Any other exception is a fault of raysim's: its traceback is what a report of it needs.


app = typer.Typer(
    cls=_Commands,
    help="Simulate cross-device federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data = typer.Typer(help="Look at datasets, and prepare them.", no_args_is_help=True)
app.add_typer(data, name="data")

File = Annotated[Path, typer.Argument(metavar="FILE", help="An experiment, in TOML.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as client.optimizer.lr=0.1.")
]
Unset = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove a key.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A running Ray cluster: auto or host:port. [default: this machine]"),
]
Folder = Annotated[Path | None, typer.Option("--path", metavar="DIR", help="The run's folder. [default: runs/NAME]")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders with runs.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show how the run goes on, on stderr.")]
Loggers = Annotated[
    list[str] | None,
    typer.Option("--logger", metavar="NAME", help="Also log every round: tensorboard, mlflow or wandb; repeatable."),
]


def main() -> None:
    """The `raysim` command."""
    app(prog_name="raysim")


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        typer.echo(f"raysim {metadata.version('raysim')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    address: Address = None,
    path: Folder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the folder's run, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start afresh where the folder exists.")] = False,
    progress: Progress = True,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write timeline.json: what driver and workers did, for Perfetto.")
    ] = False,
    loggers: Loggers = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUE,VALUE",
            help="Run every value, such as cohort.size=10,50; of several --sweep every combination.",
        ),
    ] = None,
    centralized: Annotated[
        bool, typer.Option("--centralized", help="Train on the pooled data of all training clients instead.")
    ] = False,
) -> None:
    """Run an experiment, and record it in a folder."""
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with a folder and --overwrite starts it afresh: choose one.")
    from raysim import sweep
    from raysim.central_training import centralized as pooled

    experiment = _load(file, changes, removals)
    if centralized:
        experiment = pooled(experiment)
    where = path or _default_folder(experiment)
    how: dict[str, Any] = {"address": address, "overwrite": overwrite, "resume": resume, "progress": progress}
    how |= {"profile": profile, "loggers": loggers or ()}
    _carry_out(experiment, sweep.parse(sweeps or ()), where, how)


@app.command("resume")
def resume_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="A new last round, to run on beyond the old one.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=2, help="A new number of trials, where it was run in trials.")
    ] = None,
    address: Address = None,
    progress: Progress = True,
    loggers: Loggers = None,
) -> None:
    """Go on with a run from its newest checkpoint.

    The numbers are the same as if it had never stopped.
    """
    from raysim import api, records, sweep_runs
    from raysim.report import closing

    stored, values = sweep_runs.stored_sweep(folder) or (records.stored_experiment(folder), {})
    if values or stored.trials.count > 1:
        changes = [f"rounds={rounds}"] if rounds else []
        changes += [f"trials.count={trials}"] if trials else []
        how = {"address": address, "resume": True, "progress": progress, "loggers": loggers or ()}
        _carry_out(stored.changed(changes), values, folder, how)
        return
    if trials is not None:
        raise RunFolderError(f"{folder} holds one run and no trials; run its experiment with --set trials={trials}.")
    named: Any = loggers
    with _interruptible(folder):
        result = api.resume(folder, rounds=rounds, address=address, progress=progress, loggers=named or ())
    _print(closing.lines(records.stored_experiment(folder), result.rounds, folder))


@app.command("replay")
def replay_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    index: Annotated[int, typer.Option("--round", min=0, help="The round; 0 is the first.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="Only this client's update.")] = None,
) -> None:
    """Compute a recorded round once more, in this process, and compare it with the record."""
    from raysim import api
    from raysim.report import replayed

    again = api.replay(folder, index, client=client)
    if isinstance(again, api.Round):
        typer.echo(replayed.beside_record(folder, again.index, again.metrics))
    else:
        typer.echo(replayed.sent(again))


@app.command()
def check(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    path: Folder = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure which form and chunk size are fastest here.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --calibrate: where FILE goes with what was found. [default: print it]"),
    ] = None,
) -> None:
    """Check an experiment, prepare its data, and say what would run."""
    if out is not None and not calibrate:
        raise typer.BadParameter("--out takes what --calibrate finds: add --calibrate.")
    from raysim.engine.resolve import resolve
    from raysim.report import preview

    experiment = _load(file, changes, removals)
    plan = resolve(experiment)
    typer.echo(preview.text(plan, path or _default_folder(experiment)))
    if experiment.tuning is not None:
        import tuning

        typer.echo("\n" + preview.aligned(tuning.preview(experiment, tuning.default_folder(experiment))))
    if calibrate:
        _calibrate(plan, file, out)


@app.command("tune")
def tune_(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many configurations. [default: as the file]")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="How many at a time. [default: as the file]")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the study is kept. [default: as the file, or study.db]")
    ] = None,
    address: Address = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="The study's folder. [default: runs/NAME-tuning]")
    ] = None,
    progress: Progress = True,
) -> None:
    """Find the best values of some keys on held-out clients, and evaluate them on the test split.

    The same command goes on with a study that was stopped.
    """
    import tuning

    experiment = _load(file, changes, removals)
    tuning.section_of(experiment)
    given = {"trials": trials, "concurrent": concurrent, "storage": storage}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    where = path or tuning.default_folder(experiment)
    try:
        study = tuning.tune(
            experiment,
            address=address,
            path=where,
            progress=progress,
            source=file.read_text(encoding="utf-8"),
            **settings,
        )
    except KeyboardInterrupt:
        _say(f"stopped; the same command goes on with the study in {where}")
        raise typer.Exit(INTERRUPTED) from None
    _print(tuning.lines(study))


def _calibrate(plan: Plan, file: Path, out: Path | None) -> None:
    import os

    from raysim.engine.calibrate import best, calibrate
    from raysim.report import calibration
    from raysim.rewrite import rewritten

    asked = plan.experiment.engine.workers
    workers = len(os.sched_getaffinity(0)) if asked == "auto" else max(1, asked)
    timings = calibrate(plan, workers, tell=lambda said: _say(f"left out: {said}"))
    chosen = best(timings)
    typer.echo(f"\nmeasured in this process, a round of {workers} worker(s):\n{calibration.text(timings, chosen)}\n")
    if out is None:
        typer.echo(f'[engine]\nform = "{chosen.form}"\nchunk_size = {chosen.chunk_size}')
    else:
        values = {"engine.form": chosen.form, "engine.chunk_size": chosen.chunk_size}
        out.write_text(rewritten(file.read_text(encoding="utf-8"), values), encoding="utf-8")
        typer.echo(f"written to {out}; --set and --unset were not")


@app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the report goes. [default: DIR/report; report, for several]"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The accuracy of rounds to target. [default: 95 % of the best]"),
    ] = None,
) -> None:
    """Make a page with pictures of runs, and each picture as PNG, SVG and CSV.

    A folder is a run's, or holds trials, a sweep or any other runs. Runs that differ in seeds only are put together.
    """
    from raysim.report import build

    made = build.build(folders, out or build.default_folder(folders), target)
    for note in made.notes:
        _say(f"note: {note}")
    typer.echo(f"{made.page}, {made.figures} figures")


@app.command()
def compare(
    folders: Folders,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="A figure of the records. [default: each evaluation's accuracy]"),
    ] = None,
    test: Annotated[Literal["t", "wilcoxon"], typer.Option(help="The paired test.")] = "t",
    form: Annotated[Literal["text", "markdown", "latex"], typer.Option("--format", help="Of the table.")] = "text",
) -> None:
    """Compare methods: mean, deviation, and the difference from the first, paired by seed and tested."""
    from raysim.report import comparison, comparison_table, runs
    from raysim.report.groups import grouped

    found, unread = runs.read_all(folders)
    groups, careful = grouped(found)
    for note in (*unread, *careful):
        _say(f"note: {note}")
    tables = [comparison.compare(groups, metric, test) for metric in metrics or comparison.default_metrics(groups)]
    typer.echo("\n\n".join(comparison_table.written(table, form) for table in tables))


@data.command("inspect")
def inspect_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE_OR_FOLDER", help="An experiment, a run's folder or a prepared dataset.")
    ],
    changes: Set = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="PNG", help="Also draw labels by client, of --split.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split that --picture shows.")] = "train",
) -> None:
    """Say what a dataset holds: clients, examples, sizes, labels."""
    from raysim.data.describe import describe
    from raysim.report import label_picture

    dataset = _dataset(source, changes)
    typer.echo(describe(dataset))
    if picture is not None:
        label_picture.draw(dataset, split, picture)
        typer.echo(f"\npicture      {picture}")


@data.command("prepare")
def prepare_(
    source: Annotated[str, typer.Argument(metavar="FILE_OR_NAME", help="An experiment, or a source such as mnist.")],
    changes: Set = None,
    root: Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the source's files.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="First fetch what is missing from the publisher's address.")
    ] = False,
) -> None:
    """Put data into the cache, where runs find them: an experiment's, or a source's as --set data.KEY=VALUE has it.

    A source that has no clients of its own is dealt to 100, unless data.clients says otherwise.
    """
    import time

    from raysim import experiment as experiments
    from raysim.data import downloads
    from raysim.report import figures

    start_s = time.monotonic()
    if source.endswith(".toml") or Path(source).is_file():
        experiment = _load(Path(source), [*(changes or ()), *([f"data.root={root}"] if root else ())], None)
    else:
        experiment = experiments.of_source(source, root, changes or ())
    if download and experiment.data is not None:
        for path in downloads.download(experiment.data):
            _say(f"fetched {path}")
    dataset = _prepared(experiment, Path(source))
    took = figures.duration(time.monotonic() - start_s)
    typer.echo(f"{_whereabouts(dataset)}, ready after {took}")


def _load(file: Path, changes: list[str] | None, removals: list[str] | None) -> Experiment:
    from raysim import experiment

    return experiment.load(file, changes or (), removals or ())


def _default_folder(experiment: Experiment) -> Path:
    return Path("runs") / experiment.name


def _dataset(source: Path, changes: list[str] | None) -> FederatedDataset:
    if not source.is_dir():
        return _prepared(_load(source, changes, None), source)
    if changes:
        raise typer.BadParameter("--set changes an experiment, and this is a folder: it is what it is.")
    if (source / "experiment.json").exists():
        from raysim import records

        return _prepared(records.stored_experiment(source), source)
    from raysim.data.dataset import FederatedDataset

    return FederatedDataset.open(source)


def _prepared(experiment: Experiment, source: Path) -> FederatedDataset:
    if experiment.data is None:
        raise ExperimentError(f"{source} has no [data] section: its data came from a script.")
    from raysim.data.prepare import prepare

    return prepare(experiment.data, experiment.seed)


def _whereabouts(dataset: FederatedDataset) -> str:
    from raysim.data.cache import cache_root
    from raysim.data.generated_split import GeneratedSplit

    if isinstance(dataset.train, GeneratedSplit):
        return "generated client by client, so nothing is stored"
    return f"{dataset.fingerprint} in {cache_root() / 'datasets'}"


@contextmanager
def _interruptible(path: Path) -> Iterator[None]:
    """Ctrl-C inside ends the command, and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from raysim import records

        done = records.read_rounds(path).num_rows
        after = f"after round {done:,}" if done else "before the first round was finished"
        if (path / "experiment.json").exists() and not (path / "checkpoints").exists():
            after = "among several runs"
        _say(f"stopped {after}" + (f"; go on with: raysim resume {path}" if path.exists() else ""))
        raise typer.Exit(INTERRUPTED) from None


def _carry_out(experiment: Experiment, sweep: Mapping[str, list[Any]], where: Path, how: dict[str, Any]) -> None:
    """Run one experiment, its trials, or the points of a sweep, and print the closing table."""
    from raysim.report import closing, closing_sweep, closing_trials

    def started(member: Member) -> None:
        _say(f"{member.path.relative_to(where)}, seed {member.experiment.seed}")

    with _interruptible(where):
        if sweep:
            from raysim.sweep_runs import run_sweep

            swept = run_sweep(experiment, sweep, path=where, started=started, **how)
            lines = closing_sweep.lines(experiment, [(p.path.name, p.rounds) for p in swept.points], where)
        elif experiment.trials.count > 1:
            from raysim.trial_runs import run_trials

            tried = run_trials(experiment, path=where, started=started, **how)
            lines = closing_trials.lines(experiment, tried.summary, where)
        else:
            from raysim import api

            lines = closing.lines(experiment, api.run(experiment, path=where, **how).rounds, where)
    _print(lines)


def _print(lines: Sequence[tuple[str, str]]) -> None:
    """The closing table."""
    import sys

    from rich.console import Console

    from raysim.report import closing

    table = closing.table(lines)
    if sys.stdout.isatty():
        Console().print(table)
        return
    # A file has no width to fold paths at, and no use for the blanks that fill up a column.
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _say(text: str) -> None:
    typer.echo(text, err=True)
