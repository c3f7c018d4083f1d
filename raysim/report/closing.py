"""Summarises a run, its trials or a sweep as a table, which `raysim run` prints last."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysim.config.counted import counted
from raysim.config.percentile_name import percentile_name
from raysim.config.printable import printable
from raysim.engine.rounds.run_status import UnderWay
from raysim.experiment import metric_columns, stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import lost_every_update
from raysim.experiment.stopping import StopReason
from raysim.report import number_formats
from raysim.report.column_names import headlines, is_share, percentiles
from raysim.run_folder.experiment_record import stored_passed
from raysim.run_folder.files import RECORD
from raysim.run_folder.stop_record import stop_reason
from raysim.run_folder.tables import DEVIATION, MEAN, by_trial, part, summarise
from raysim.storage.remote.folder import named, resume_call, resume_command

if TYPE_CHECKING:
    from rich.table import Table


Line = tuple[str, str]

Columns = Mapping[str, tuple[int, Any]]
"""Column -> the index and the value of the newest round that has a value; (0, None) if none has."""


def table(lines: Sequence[Line]) -> Table:
    """Return the lines as a table."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        # Text, not str: a path may contain brackets, which are not markup.
        grid.add_row(label, Text(printable(text)))
    return grid


def text(lines: Sequence[Line]) -> str:
    """Return the lines as text, labels in a column.

    >>> print(text([("rounds", "4"), ("folder", "runs/a")]))
    rounds  4
    folder  runs/a
    """
    width = max(len(label) for label, _ in lines)
    return printable("\n".join(f"{label:{width}}  {what}" for label, what in lines))


def lines(experiment: Experiment, rounds: pa.Table, path: Path) -> list[Line]:
    """Return the table's rows, label and text.

    Args:
        experiment: the run's.
        rounds: its records, one row per finished round, rounds before a resume included.
        path: the run's folder.
    """
    return [
        *_figures(experiment, rounds),
        *_best(experiment, rounds, named(path)),
        ("folder", named(path)),
        *pictures(path),
        ("next", _resume(experiment, rounds, named(path), _passed(path))),
    ]


def _passed(path: Path) -> Sequence[str]:
    passed = stored_passed(path)
    return () if passed is None else passed.names


def lines_of(run: UnderWay, rounds: pa.Table) -> list[Line]:
    """Return the rows of an attached run: its folder may be on another machine."""
    if run.is_here:
        return lines(run.experiment, rounds, run.path)
    again = f"on {run.host}: {_resume(run.experiment, rounds, run.folder)}"
    return [*_figures(run.experiment, rounds), ("folder", f"{run.folder} on {run.host}"), ("next", again)]


def _figures(experiment: Experiment, rounds: pa.Table) -> list[Line]:
    columns: Columns = {name: newest(rounds, name) for name in rounds.column_names}
    return [
        ("experiment", experiment.name),
        ("rounds", _rounds(experiment, rounds)),
        *_stopped(experiment, rounds),
        ("workers", _workers(columns)),
        *_training(columns),
        *_evaluation(columns, _own(experiment)),
        *_speed(rounds),
        *_simulated(rounds),
        *_trouble(rounds),
    ]


def _workers(columns: Columns) -> str:
    """Return the number of workers that trained clients in the last round."""
    _, count = columns.get("workers", (0, None))
    return "unknown" if count is None else f"{count:,}"


def _resume(experiment: Experiment, rounds: pa.Table, folder: str, passed: Sequence[str] = ()) -> str:
    """Return what to do next, for the remaining rounds or the same number again: a command, or a script's call."""
    done = rounds.num_rows
    if (reason := stop_reason(experiment, rounds)) is not None:
        if reason.condition == "privacy":
            # Its budget is a part of the experiment.
            return f"raysim report {shlex.quote(folder)}"
        return f"raysim run FILE --path {shlex.quote(folder)} --resume --unset stop"
    if passed:
        more = [f"rounds={2 * done}"] if done >= experiment.rounds else []
        return resume_call(folder, passed, more)
    return resume_command(folder) + (f" --rounds {2 * done}" if done >= experiment.rounds else "")


def _rounds(experiment: Experiment, rounds: pa.Table) -> str:
    done = rounds.num_rows
    return f"{done:,}" if done >= experiment.rounds else f"{done:,} of {experiment.rounds:,}"


def _stopped(experiment: Experiment, rounds: pa.Table) -> Iterator[Line]:
    """Yield why `[stop]` has ended the run, if it has."""
    if (reason := stop_reason(experiment, rounds)) is not None:
        yield "stopped", stopping.text(experiment, reason)


def _best(experiment: Experiment, rounds: pa.Table, folder: str) -> Iterator[Line]:
    """Yield the evaluation whose model is kept as the best."""
    best = experiment.checkpoint.best
    if best is None or best.metric not in rounds.column_names:
        return
    values = [value for value in rounds[best.metric].to_pylist() if value is not None and not math.isnan(value)]
    if values:
        value = (max if best.is_maximised else min)(values)
        index = rounds[best.metric].to_pylist().index(value)
        written = number_formats.share(value) if is_share(best.metric) else number_formats.loss(value)
        command = f"raysim export {shlex.quote(folder)} --best"
        yield "best model", f"{best.metric} {written} (after round {index + 1:,}): {command}"


def _training(columns: Columns) -> Iterator[Line]:
    _, loss = columns.get("loss", (0, None))
    _, accuracy = columns.get("accuracy", (0, None))
    parts = [f"accuracy {number_formats.share(accuracy)}"] if accuracy is not None else []
    parts += [f"loss {number_formats.loss(loss)}"] if loss is not None else []
    if parts:
        yield "training", ", ".join(parts)


def _own(experiment: Experiment) -> list[str]:
    """Return the names of the user-defined metrics."""
    return [metric_columns.column(section) for section in experiment.evaluation.metrics]


def _evaluation(columns: Columns, metrics: Sequence[str]) -> Iterator[Line]:
    for split, headline in headlines(columns).items():
        index, value = columns[headline]
        if value is None:
            continue
        _, loss = columns.get(f"eval/{split}/loss", (0, None))
        parts = [f"accuracy {number_formats.share(value)}"] if headline.endswith("/accuracy") else []
        parts += [f"loss {number_formats.loss(loss)}"] if loss is not None else []
        for name in metrics:
            # Its figure may be undefined, and a resumed run may have another list of metrics.
            _, figure = columns.get(f"eval/{split}/{name}", (0, None))
            parts += [f"{name} {number_formats.loss(figure)}"] if figure is not None else []
        yield split, f"{', '.join(parts)} (after round {index + 1:,})"
        spread = {p: columns[name][1] for p, name in percentiles(columns, split).items()}
        if len(set(spread.values())) > 1:  # one pooled client has no spread
            among = "   ".join(
                f"{percentile_name(p)} {number_formats.share(v)}" for p, v in spread.items() if v is not None
            )
            yield f"{split}, by client", among
    for prefix, of_all in (("eval_tuned/", "before"), ("eval_personal/", "global")):
        for name in columns:
            if name.startswith(prefix) and name.endswith(f"/{of_all}/accuracy"):
                split = name.removeprefix(prefix).removesuffix(f"/{of_all}/accuracy")
                _, own = columns.get(f"{prefix}{split}/accuracy", (0, None))
                if own is not None:
                    yield f"{split}, own models", f"accuracy {number_formats.share(own)}"


def _speed(rounds: pa.Table) -> Iterator[Line]:
    time_s = _sum(rounds, "wall_time_s")
    if time_s > 0:
        trained = _sum(rounds, "clients") + _sum(rounds, "rejected")
        yield "time", f"{number_formats.duration(time_s)} in rounds, {number_formats.rate(trained / time_s)} clients/s"


def _simulated(rounds: pa.Table) -> Iterator[Line]:
    time_s = _sum(rounds, "simulated_time_s")
    if time_s > 0:
        left_out = int(sum(_sum(rounds, name) for name in ("dropped", "late", "discarded")))
        left_out_text = f", {counted(left_out, 'client')} of {_sum(rounds, 'asked'):,.0f} did not count"
        yield "simulated", f"{number_formats.duration(time_s)}{left_out_text if left_out else ''}"


def _trouble(rounds: pa.Table) -> Iterator[Line]:
    if since := _diverged_since(rounds):
        # Rates make numbers grow over rounds; what is not finite from the start often lies in the data.
        advice = (
            "look for values that are not finite in the data, then in the module and the loss; else lower the rates"
            if since == 1
            else "lower the rates, if the data of the rejected clients are finite"
        )
        yield "diverged", f"since round {since:,} no update was finite, and the model stays as it was: {advice}"
    elif (risen := _risen(rounds)) is not None:
        yield "loss rose", f"from {risen[0]:.3g} to {risen[1]:.3g} in training: if the run diverges, lower the rates"
    if rounds.num_rows and not _sum(rounds, "clients") and not _sum(rounds, "rejected"):
        yield "no update", "no client trained in any round, and the model is as it began"
    if rejected := int(_sum(rounds, "rejected")):
        yield "rejected", f"{counted(rejected, 'update')}, not finite (see column rejected_clients)"
    if retries := int(_sum(rounds, "retries")):
        yield "retries", f"{retries:,}, of work that was lost on the way: the numbers are the same"


RISEN = 10.0
"""Times the first round's training loss that the last one must be to be named."""


def _risen(rounds: pa.Table) -> tuple[float, float] | None:
    """Return the first and the last training loss if the last is `RISEN` times as large; None if it is not."""
    values = rounds["loss"].to_pylist() if "loss" in rounds.column_names else []
    losses = [value for value in values if value is not None and math.isfinite(value)]
    return (losses[0], losses[-1]) if losses and losses[-1] > RISEN * max(losses[0], 1e-6) else None


def _diverged_since(rounds: pa.Table) -> int:
    """Return the round, counted from 1, from which on every update was rejected; 0 if the last round had one."""
    known = [name for name in ("rejected", "clients", "loss") if name in rounds.column_names]
    rows = rounds.select(known).to_pylist()[::-1]
    since = next((rounds.num_rows - back for back, row in enumerate(rows) if not lost_every_update(row)), 0)
    return since + 1 if since < rounds.num_rows else 0


def pictures(path: Path) -> Iterator[Line]:
    """Yield the pictures in the folder."""
    for picture in sorted(path.glob("*.png")):
        yield "picture", str(picture)


def newest(rounds: pa.Table, name: str) -> tuple[int, Any]:
    """Return the newest value of a column that is not null, and its round's index; (0, None) if there is none."""
    pairs = zip(rounds["round"].to_pylist(), rounds[name].to_pylist(), strict=True)
    return next(((index, value) for index, value in reversed(list(pairs)) if value is not None), (0, None))


def _sum(rounds: pa.Table, name: str) -> float:
    values = rounds[name].to_pylist() if name in rounds.column_names else []
    return float(sum(value for value in values if value is not None))


def lines_of_trials(
    experiment: Experiment, summary: pa.Table, path: Path, stopped: Sequence[StopReason | None] = ()
) -> list[Line]:
    """Return the rows of several trials.

    Args:
        experiment: of the trials.
        summary: mean and standard deviation of every figure, one row per round.
        path: the folder of all trials.
        stopped: of each that has begun, why it has stopped before its last round; None: it has not. Empty: all have
            begun, and none has.
    """
    count, first = experiment.trials.count, experiment.seed
    varied = ", ".join(experiment.trials.vary) + (f"; {len(stopped):,} have begun" if 0 < len(stopped) < count else "")
    return [
        ("experiment", experiment.name),
        ("trials", f"{count:,}, seeds {first} to {first + count - 1}, varying {varied}"),
        ("rounds", f"{summary.num_rows:,}"),
        *[("stopped", ended) for ended in [_ended(stopped)] if ended],
        *headline_figures(summary, _own(experiment)),
        ("folder", f"{named(path)} (trial-0 to trial-{count - 1}, each a run's folder; summary.parquet)"),
        *pictures(path),
        (
            "next",
            _of_several(path, f"--trials {2 * count}", f"run_trials(experiment.changed({{'trials': {2 * count}}})"),
        ),
    ]


def headline_figures(summary: pa.Table, own: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the newest figures of training and of each evaluated split: mean, and deviation of several trials.

    Args:
        own: the names of user-defined metrics, which are also shown.
    """
    means, deviations = _newest(part(summary, MEAN)), part(summary, DEVIATION)
    finished = dict(zip(summary["round"].to_pylist(), summary["trials"].to_pylist(), strict=True))
    most = max(finished.values(), default=0)
    named = {"training": "accuracy" if "accuracy" in means else "loss", **headlines(means)}
    for label, name in named.items():
        index, mean = means.get(name, (0, None))
        if mean is None:
            continue
        shown = [each for each in (name, *(f"eval/{label}/{other}" for other in own)) if each in means]
        parts = [_spread(each, means[each][1], _at(deviations, each, means[each][0])) for each in shown]
        # Trials that ended before have no part in the newest figures.
        whose = f", {finished[index]:,} of {most:,} trials" if finished[index] < most else ""
        yield label, f"{', '.join(filter(None, parts))} (after round {index + 1:,}{whose})"


def _at(rounds: pa.Table, name: str, index: int) -> Any:
    """Return a column's value of the round `index`."""
    return rounds[name][rounds["round"].to_pylist().index(index)].as_py()


def _spread(name: str, mean: float | None, deviation: float | None) -> str:
    """Return a column's mean, and the deviation of several trials; nothing where it has no value."""
    if mean is None:
        return ""
    write = number_formats.share if name.endswith("accuracy") else number_formats.loss
    around = "" if deviation is None else f" +- {write(deviation)}"
    return f"{name.rpartition('/')[2]} {write(mean)}{around}"


def _ended(stopped: Sequence[StopReason | None]) -> str:
    """Return how many of the trials each condition has ended, and after which rounds; nothing if none."""
    rounds: dict[str, list[int]] = {}
    for reason in stopped:
        if reason is not None:
            rounds.setdefault(reason.condition, []).append(reason.rounds)
    return "; ".join(
        f"by stop.{condition} after round {', '.join(f'{done:,}' for done in dict.fromkeys(sorted(after)))}"
        + (f" ({len(after)} of {len(stopped)})" if len(stopped) > 1 else "")
        for condition, after in rounds.items()
    )


def _newest(table: pa.Table) -> Columns:
    return {name: newest(table, name) for name in table.column_names}


def lines_of_sweep(
    experiment: Experiment,
    points: Sequence[tuple[str, pa.Table, Sequence[StopReason | None]]],
    path: Path,
    planned: int | None = None,
    swept: Iterable[str] = (),
) -> list[Line]:
    """Return the rows of a sweep.

    Args:
        experiment: of the sweep.
        points: label, rounds and reasons to stop of each point; rounds of several trials have a column `trial`.
        path: the folder of the sweep.
        planned: the number of points of the whole sweep; None: these are all.
        swept: its keys; where rounds are among them, no other number makes its runs go on.
    """
    count, option = experiment.trials.count, f"--rounds {2 * experiment.rounds}"
    each = f" of {counted(count, 'trial')} each" if count > 1 else ""
    have = f"{len(points):,}{each}"
    if planned is not None and planned > len(points):
        have = f"{len(points):,} of {planned:,}{each and f',{each}'}: the others have not begun, or are lost"
    return [
        ("experiment", experiment.name),
        ("points", have),
        *((label, _of_point(rounds, stopped, _own(experiment))) for label, rounds, stopped in points),
        ("folder", f"{named(path)} (a folder for each point; sweep.parquet)"),
        *pictures(path),
        *(() if "rounds" in swept else (("next", _of_several(path, option, "run_sweep(experiment, values")),)),
    ]


def _of_several(path: Path, option: str, call: str) -> str:
    """Return what continues trials or a sweep: a command, or the begun call of a script that passed parts."""
    # A point of a sweep with trials has a record, too, which says nothing of parts: those of its trials do.
    records = (each for below in ("*", "*/*") for each in path.glob(f"{below}/{RECORD}"))
    passed = next((names for each in records if (names := _passed(each.parent))), ())
    if not passed:
        return f"{resume_command(named(path))} {option}"
    return f"raysim.{call}, path={named(path)!r}, resume=True, {', '.join(f'{name}=...' for name in passed)})"


def _of_point(rounds: pa.Table, stopped: Sequence[StopReason | None], own: Sequence[str]) -> str:
    found = [f"{label} {text}" for label, text in headline_figures(summarise(by_trial(rounds)), own)]
    ended = _ended(stopped)
    return "; ".join([*found, *([f"stopped {ended}"] if ended else [])])
