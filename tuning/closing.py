"""Summarises a study before and after it runs, as the lines of a table: label and text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from raysim import Experiment
from raysim.config.counted import counted
from raysim.report.closing import Line
from raysim.report.number_formats import loss, share
from raysim.run_folder.experiment_record import stored_passed
from raysim.run_folder.files import RECORD
from tuning import pruners, samplers
from tuning.budget import written
from tuning.dimension import Listed
from tuning.kept_trial import FAILED
from tuning.regret import Regret
from tuning.result import RETRY, Configuration, SmallerBudget, Study, TableBest, cost_column
from tuning.search import trial_folder
from tuning.section import TuningSection, section_of
from tuning.storage import default_url, shown
from tuning.writing import figure, number, sentence, settings


def preview(experiment: Experiment, path: Path) -> list[Line]:
    """Return the lines of `raysim check` for `[tuning]`; this also checks the section.

    Args:
        experiment: with a `[tuning]` section.
        path: the study's folder.

    Raises:
        ExperimentError: a key or value of the section does not fit.
    """
    tuning = section_of(experiment)
    trials, space = tuning.num_trials(), tuning.parsed_space()
    at_a_time = "as many as there are workers"
    if tuning.concurrent != "auto" or samplers.asks_in_batches(tuning.chosen_sampler()):
        at_a_time = f"up to {tuning.at_a_time(1)}"
    each = f" of {tuning.seeds} seeds" if tuning.seeds > 1 else ""
    budget = tuning.budget
    of_all = "" if budget is None else f"{written(budget.unit, budget.amount)}, at most "
    pruner = "" if tuning.pruner.name == "none" else f", stopped early by {tuning.pruner.name}"
    if sizes := pruners.cohorts(tuning.pruner):
        pruner += f" with cohorts of {', '.join(map(str, sizes))} before {experiment.cohort.size}"
    return [
        ("tuning", f"{of_all}{counted(trials, 'trial')}{each} by {tuning.chosen_sampler().name}{pruner}"),
        *((f"  {key}", _tried(tuning, key)) for key in space.dimensions),
        ("objective", f"{tuning.objective.label}, {_rounds(experiment, tuning)}{_second(tuning)}"),
        ("at a time", at_a_time),
        ("study", f"{path}, kept in {shown(tuning.storage or default_url(path))}"),
    ]


def _run_of(best: Path, study: Study) -> str:
    """Return what runs the best configuration: a command, or a call of a script that passes the same parts."""
    runs = sorted(trial_folder(study.path, study.best.number).glob(f"*/{RECORD}"))
    passed = stored_passed(runs[0].parent) if runs else None
    if passed is None or not passed.names:
        return f"raysim run {shlex.quote(str(best))}"
    parts = ", ".join(f"{name}=..." for name in passed.names)
    return f"raysim.run(raysim.load({str(best)!r}), {parts})"


def lines(study: Study) -> list[Line]:
    """Return the lines that `raysim tune` prints at the end."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in study.counts.items())
    best = study.path / "best.toml"
    return [
        ("study", study.name),
        ("trials", f"{study.trials.num_rows:,}: {outcomes}"),
        ("spent", ", ".join(written(unit, amount) for unit, amount in study.spent.items())),
        *_failed(study),
        *([("no trial reached it", "the nearest follow")] if study.best.missed is not None else []),
        (_rank(study.best, "best"), study.described(study.best)),
        *([(_rank(study.second, "second best"), study.described(study.second))] if study.second is not None else []),
        *_front(study),
        *([("best of table", _best_of_table(study, study.table))] if study.table is not None else []),
        *((_part_of(study, each), _chosen_by(study, each)) for each in study.smaller),
        *([("how sure", _how_sure(study, study.regret[-1]))] if study.regret else []),
        *(("edge", edge) for edge in study.edges),
        *_tested(study),
        ("folder", f"{study.path} (trials.parquet{'' if study.table else ', a run of each seed of each trial'})"),
        *(("picture", str(picture)) for picture in sorted(study.path.glob("*.png"))),
        ("next", _run_of(best, study)),
    ]


def _failed(study: Study) -> Iterator[Line]:
    """Yield why the first failed trial failed, and how failed trials are run again."""
    first = next((row for row in study.trials.to_pylist() if row["outcome"] == FAILED), None)
    if first is not None:
        again = "" if study.table is not None else f" {RETRY}"
        yield "failed", f"trial {first['trial']}: {sentence(first['why'])}{again}"


def _rank(one: Configuration, rank: str) -> str:
    """Return the label of a configuration; one that missed the target is the best of none."""
    return rank if one.missed is None else rank.replace("best", "nearest")


def _front(study: Study) -> Iterator[Line]:
    """Yield a line for each trial of the front, the cheapest first, if the study has two objectives."""
    keys = list(study.best.values)
    rows = [row for row in study.trials.to_pylist() if study.cost and row["trial"] in study.front]
    used = cost_column(str(study.cost), keys)
    for row in sorted(rows, key=lambda row: row[used]):
        reached = f"{figure(study.objective, row['value'])} by {written(str(study.cost), row[used])}"
        yield "front", f"{settings({key: row[key] for key in keys})}: {reached} (trial {row['trial']})"


def _part_of(study: Study, smaller: SmallerBudget) -> str:
    return f"{round(100 * smaller.amount / study.spent[smaller.unit])} % of the budget"


def _chosen_by(study: Study, smaller: SmallerBudget) -> str:
    if smaller.number == study.best.number:
        return f"{written(smaller.unit, smaller.amount)} would have chosen the same"
    value = smaller.missed or figure(study.objective, smaller.value)
    return f"{written(smaller.unit, smaller.amount)} would have chosen {settings(smaller.values)}: {value}"


def _how_sure(study: Study, regret: Regret) -> str:
    return (
        f"{share(regret.again)} of bootstrap samples of the {counted(regret.clients, 'validation client')} choose the "
        f"same; what they choose is {figure(study.objective, regret.mean)} worse on average, at most "
        f"{figure(study.objective, regret.high)} in 95 % of them{_left_out(study)}"
    )


def _left_out(study: Study) -> str:
    """Return what the bootstrap does not see, and whether the best two are within sqrt(e1^2 + e2^2) of each other."""
    best, second, seeds = study.best, study.second, len(study.best.by_seed)
    of_seeds = f"; {counted(seeds, 'seed')} each, whose spread this leaves out"
    if second is None or best.error is None or second.error is None:
        return of_seeds
    if abs(best.value - second.value) >= math.hypot(best.error, second.error):
        return of_seeds
    return f"{of_seeds}; best and second best differ by less than their standard errors together"


def _best_of_table(study: Study, best: TableBest) -> str:
    behind = "unknown" if best.chosen is None else figure(study.objective, abs(best.chosen - best.value))
    return f"{settings(best.values)}: {figure(study.objective, best.value)}; the study's best is {behind} behind it"


def _tested(study: Study) -> Iterator[Line]:
    """Yield the headline of each split that the final runs were evaluated on."""
    for name in study.best.test:
        split, _, kind = name.removeprefix("eval/").rpartition("/")
        if kind != "accuracy" and not (kind == "loss" and f"eval/{split}/accuracy" not in study.best.test):
            continue
        for label, one in (("best", study.best), ("second best", study.second)):
            if one is not None and name in one.test:
                found = one.test[name]
                write = share if kind == "accuracy" else loss
                mean, error = found["mean"], found["standard_error"]
                assert mean is not None
                value = write(mean) + ("" if error is None else f" +- {write(error)}")
                yield f"{split}, {label}", f"{kind} {value}, after training on all training clients"


def _tried(tuning: TuningSection, key: str) -> str:
    dimension = tuning.parsed_space().dimensions[key]
    if isinstance(dimension, Listed):
        return ", ".join(number(value) for value in dimension.values)
    kinds = {"log": "uniform in its logarithm", "uniform": "uniform", "int": "whole numbers"}
    return f"{number(dimension.low)} to {number(dimension.high)}, {kinds[dimension.kind]}"


def _second(tuning: TuningSection) -> str:
    return "" if tuning.cost is None else f"; and {written(tuning.cost, 0).removeprefix('0 ')}, to be few"


def _rounds(experiment: Experiment, tuning: TuningSection) -> str:
    chosen = tuning.objective.rounds(experiment.rounds)
    if tuning.objective.has_target:
        return f"within {counted(len(chosen), 'round')}"
    if len(chosen) == 1:
        return f"of round {chosen.start}"
    return f"mean of rounds {chosen.start} to {chosen.stop - 1}"
