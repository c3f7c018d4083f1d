"""Defines `evolve`: population-based training, whose members are runs that go on from copied states with other rates.

A generation is a pure function of the rows of the one before. Every member of it is a run's folder of its own, which
goes on from the newest state of its parent's. So a second call finds what is done, and ends with the same bits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from raysim import DivergedError, Experiment, FederatedDataset, Parts, Runs, differing
from raysim.config.flag import check_choice
from raysim.config.ipython import as_printed
from raysim.experiment.row import Row
from raysim.report.closing import Line
from raysim.report.picture_files import redraw
from raysim.run_folder.files import checkpoints
from raysim.run_folder.round_table import read_rounds
from raysim.run_folder.tables import column
from raysim.storage.atomic import is_beside, sweep, write, write_text
from raysim.storage.lock import FILE as LOCK
from raysim.storage.lock import locked
from raysim.storage.reading import json_object
from raysim.storage.remote.folder import path_here
from raysim.storage.remote.uri import check_is_path
from tuning import budget, generations, protocol, study_plan
from tuning.budget import written
from tuning.errors import StudyError
from tuning.folder import check_links, clear_unfinished
from tuning.generations import Descendant, EvolutionSection
from tuning.log_filter import quiet_hosts, quiet_rounds
from tuning.noise import laplace
from tuning.objective import Objective, divergence
from tuning.pictures import rates
from tuning.progress import StudyProgress
from tuning.section import TuningSection
from tuning.writing import figure, settings

log = logging.getLogger("raysim")

USED = frozenset({"space", "objective", "laplace", "holdout", "seeds", "evolution"})
"""Keys of `[tuning]` that an evolution has; `seeds` must be 1."""

IDENTITY = "evolution.json"
"""Tells of which experiment, space and keys the generations in a folder are."""


_OF_COURSE = ["round", "clients", "examples_so_far", "loss", "params_norm"]
"""Columns that are the same wherever the rounds were trained."""


@dataclass(frozen=True)
class Evolution:
    """The members of all generations.

    table: a row for each generation and member: its parent, its values, after which round it was compared, and the
    objective there; null if it has diverged. best: the member that is the best after the last generation. value: its
    objective. lineage: from which member of each generation it comes, itself last. model: the folder of its run.
    spent: what all members have used up, by the units of a budget. path: the folder of all. `print` and a notebook show
    the closing table of `raysim evolve`, a notebook also the picture.
    """

    name: str
    objective: Objective = field(repr=False)
    table: pa.Table = field(repr=False)
    best: int
    value: float
    lineage: tuple[int, ...] = field(repr=False)
    model: Path = field(repr=False)
    spent: Mapping[str, float] = field(repr=False)
    path: Path

    def __str__(self) -> str:
        from raysim.report.closing import text

        return text(lines(self))

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str:
        from raysim.report import notebook

        return notebook.html_of_folder(lines(self), self.path)


def evolve(
    experiment: Experiment,
    *,
    executor: Literal["local", "ray"] | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    progress: bool | None = None,
    **parts_and_settings: Any,
) -> Evolution:
    """Train the members of `[tuning.evolution]` on held-out clients' training clients, and return the best.

    A second call goes on where the first one stopped; the result has the same bits, for any number of workers.

    Args:
        experiment: with a `[tuning]`, of which space, objective, holdout, laplace and evolution count. A warning names
            others that are set.
        path: the folder, by default runs/<name>-evolution. The others are as for `tune`.

    Raises:
        ExperimentError: a key or a value does not fit, or clients keep states, which cannot be copied.
        StudyError: the folder is of another experiment, or all members have diverged.
    """
    check_choice("progress", progress)
    planned = _plan(experiment, path, parts_and_settings)
    with ExitStack() as stack:
        stack.enter_context(quiet_rounds())
        show = stack.enter_context(StudyProgress.where_wanted(progress, planned.tuning.objective))
        show.expects(planned.section.members * planned.measured.rounds)
        how: dict[str, Any] = {"executor": executor, "address": address, **planned.parts, "dataset": planned.held}
        # Which members share a stack depends on the workers, and so would bits.
        with quiet_hosts():
            runs = stack.enter_context(Runs(planned.measured, **how, together="exact"))
        runs.check_branch(planned.measured, planned.tuning.parsed_space().dimensions)
        check_links(planned.folder)
        stack.enter_context(_opened(planned.folder, json.loads(json.dumps(planned.identity))))
        history = _carried_out(runs, planned.measured, planned.tuning, planned.section, planned.folder, show)
        return _written(planned, history)


@dataclass(frozen=True)
class EvolutionPlan:
    """What an evolution is, before its folder is opened.

    experiment: as it was given. tuning: its `[tuning]`, with the keys of the call. section: of the evolution. parts:
    what the script passed. measured: the experiment that members run. held: the script's dataset with validation
    clients; None: `measured` says the data. folder: of all members, absolute, because a part may change
    the working folder; its user names it `named`. identity: if it differs, it is another evolution.
    """

    experiment: Experiment
    tuning: TuningSection
    section: EvolutionSection
    parts: Parts
    measured: Experiment
    held: FederatedDataset | None
    folder: Path
    named: Path
    identity: Mapping[str, Any]


def _plan(experiment: Experiment, path: str | Path | None, parts_and_settings: Mapping[str, Any]) -> EvolutionPlan:
    """Decide what an evolution is; see `evolve` for arguments and errors."""
    parts, tuning = study_plan.parts_and_section(experiment, None, parts_and_settings)
    section, space = tuning.evolution or EvolutionSection(), tuning.parsed_space()
    generations.check(section, space, tuning.objective, tuning.seeds, experiment)
    for remark in _remarks(experiment, tuning):
        log.warning("%s", remark)
    dataset = parts.get("dataset")
    measured = protocol.evaluated_on_validation(experiment, tuning, dataset).changed({"checkpoint.best": None})
    held = protocol.with_validation_clients(experiment, tuning, dataset)
    if path is not None:
        check_is_path(path, "The members' folder (--path, path=)", StudyError)
    named = Path(path) if path is not None else Path("runs") / f"{experiment.name}-evolution"
    where = path_here(named).absolute()
    identity = protocol.identity(measured, tuning, space, held, parts)
    identity["tuning"] = {**identity["tuning"], "sampler": None, "pruner": None, "evolution": section.model_dump()}
    return EvolutionPlan(experiment, tuning, section, parts, measured, held, where, named, identity)


def _remarks(experiment: Experiment, tuning: TuningSection) -> Iterator[str]:
    """Yield a sentence for keys that are set, and that members do not have."""
    if experiment.trials.count > 1:
        yield f"trials = {experiment.trials.count} has no part in raysim evolve: tuning.evolution.members is its runs"
    unused = protocol.of_final_runs(experiment, tuning)
    if experiment.checkpoint.best is not None and "checkpoint.best" not in unused:
        unused.append("checkpoint.best")
    if unused:
        yield (
            f"raysim evolve does not use {', '.join(unused)}: members are scored on validation clients, and keep their "
            f"newest models"
        )
    unused = [f"tuning.{key}" for key in TuningSection.model_fields if key in tuning.model_fields_set - USED]
    if unused:
        yield (
            f"raysim evolve does not use {', '.join(unused)}: all members train to the last round, and go on from "
            f"each other; raysim tune has these keys"
        )


def _written(planned: EvolutionPlan, history: History) -> Evolution:
    """Write the table and the picture of what has been carried out; returns the result."""
    bred, scored, objective = history.bred, history.scored, planned.tuning.objective
    name, where, keys = planned.experiment.name, planned.folder, list(planned.tuning.parsed_space().dimensions)
    best = _best(objective, scored[-1])
    table = _table(bred, scored, generations.ends(planned.section, planned.measured), keys)
    write(where / "evolution.parquet", lambda file: pq.write_table(table, file))
    lineage = tuple(generations.lineage(bred, best))
    redraw(rates.figure(name, table, keys, objective, lineage), where, planned.experiment.report)
    value = scored[-1][best]
    assert value is not None
    return Evolution(
        name,
        objective,
        table,
        best,
        value,
        lineage,
        member_folder(planned.named, len(bred) - 1, best),
        {unit: amount for unit, amount in history.spent.items() if amount},
        planned.named,
    )


@dataclass(frozen=True)
class History:
    """The members of all generations, their objectives, and what they have used up, by the units of a budget."""

    bred: list[list[Descendant]]
    scored: list[list[float | None]]
    spent: Counter[str]


def _carried_out(
    runs: Runs,
    measured: Experiment,
    tuning: TuningSection,
    section: EvolutionSection,
    where: Path,
    show: StudyProgress,
) -> History:
    """Breed and train one generation after another."""
    space, ends = tuning.parsed_space(), generations.ends(section, measured)
    history = History([], [], Counter())
    for generation, (begun, end) in enumerate(pairwise([0, *ends])):
        if generation == 0:
            members = generations.first(section, space, measured.seed)
        else:
            sign = 1 if tuning.objective.is_maximised else -1
            scores = [None if value is None else sign * value for value in history.scored[-1]]
            parents = history.bred[-1]
            members = generations.next_generation(section, space, parents, scores, measured.seed, generation)
        history.bred.append(members)
        trained = _trained(runs, measured, members, where, generation, range(begun, end), show)
        values = [_score(tuning, measured, own, [generation, m]) for m, own in enumerate(trained)]
        history.scored.append(values)
        since = [[row for row in own.rows if row["round"] >= begun] for own in trained]
        history.spent.update(budget.cost_of_trial(since))
        show.print_line(_summary(tuning.objective, generation, end, members, values))
    return history


def member_folder(folder: Path, generation: int, member: int) -> Path:
    """Return the folder of a member's run in a generation."""
    return folder / f"generation-{generation:03d}" / f"member-{member}"


def lines(found: Evolution) -> list[Line]:
    """Return the lines that `raysim evolve` prints at the end."""
    rows = {(row["generation"], row["member"]): row for row in found.table.to_pylist()}
    keys = found.table.column_names[3 : found.table.column_names.index("rounds")]
    way = [rows[generation, member] for generation, member in enumerate(found.lineage)]
    same = [[*group] for _, group in groupby(way, key=lambda row: [row[key] for key in keys])]
    return [
        ("evolution", found.name),
        ("spent", ", ".join(written(unit, amount) for unit, amount in found.spent.items())),
        ("best", f"member {found.best}: {found.objective.label} {figure(found.objective, found.value)}"),
        *((f"until round {each[-1]['rounds']}", settings({key: each[0][key] for key in keys})) for each in same),
        ("model", str(found.model)),
        ("written", str(found.path / "evolution.parquet")),
        *(("picture", str(file)) for file in sorted(found.path.glob("rates.*")) if file.suffix != ".csv"),
    ]


def _check_own(folder: Path, identity: Mapping[str, Any]) -> None:
    """Check that the folder is of this evolution, or has nothing in it."""
    file = folder / IDENTITY
    if not file.exists():
        if folder.exists() and any(each.name != LOCK and not is_beside(each) for each in folder.iterdir()):
            raise StudyError(f"{folder} holds something else: give the members another folder (--path, path=).")
    elif found := differing(json_object(file, StudyError), identity):
        raise StudyError(
            f"{folder} has members with other settings: {'; '.join(found)}. Give these ones another folder (--path, "
            f"path=)."
        )


@contextmanager
def _opened(folder: Path, identity: Mapping[str, Any]) -> Iterator[None]:
    """Lock the folder during the block, and record whose it is.

    It is checked twice: a foreign folder gets no lock's file, and another process may have begun since.
    """
    _check_own(folder, identity)
    with locked(folder):
        _check_own(folder, identity)
        # The lock keeps others away: what is here was left by a process that was killed.
        sweep(folder, older_than_s=0)
        if not (folder / IDENTITY).exists():
            write_text(folder / IDENTITY, json.dumps(identity, indent=2))
        yield


@dataclass
class _Trained:
    """The rows of a member since its first round, those before it has diverged included."""

    rows: list[Row] = field(default_factory=list)
    has_diverged: bool = False


def _trained(
    runs: Runs,
    measured: Experiment,
    members: Sequence[Descendant],
    folder: Path,
    generation: int,
    rounds: range,
    show: StudyProgress,
) -> list[_Trained]:
    """Train a generation; return what each member has done."""
    begun: list[tuple[Experiment, Path]] = []
    for number, member in enumerate(members):
        exp = measured.changed({**member.values, "stop": {"budget": {"rounds": rounds.stop}}})
        path = member_folder(folder, generation, number)
        clear_unfinished(path, folder)
        if member.parent is not None and path.exists() and not any(n >= rounds.start for n in checkpoints(path)):
            # It would be trained from the first round on, and would not go on from its parent.
            raise StudyError(
                f"{path} has lost its checkpoints of {rounds.start} rounds and more: put them back; or remove that "
                f"folder and those of the later generations, and the same command makes them again."
            )
        if member.parent is not None:
            origin = member_folder(folder, generation - 1, member.parent)
            if path.exists():
                _check_parent(path, origin, rounds.start)
            else:
                runs.branch(exp, path, origin=origin)
        if path.exists() and (done := read_rounds(path).num_rows) > rounds.stop:
            raise StudyError(
                f"{path} has {done} rounds, and its generation ends after {rounds.stop}: folders were exchanged. "
                f"Restore it; or remove it and the folders of the later generations, and the same command makes them "
                f"again."
            )
        begun.append((exp, path))
    numbers = runs.start(begun, resume=True)
    trained = {number: _Trained() for number in numbers}
    for report in runs.reports():
        trained[report.run].rows.extend(report.rows)
        if isinstance(report.error, DivergedError) or divergence(report.rows) is not None:
            trained[report.run].has_diverged = True
            runs.stop(report.run)
        elif report.error is not None:
            raise report.error
        show.finished(0 if report.earlier else len(report.rows))
    return list(trained.values())


def _check_parent(path: Path, origin: Path, begun: int) -> None:
    """Refuse a member whose first rounds are not those of its parent: folders of one experiment may be exchanged."""
    own, its = (read_rounds(each).slice(0, begun).select(_OF_COURSE).to_pylist() for each in (path, origin))
    # As texts, because NaN is not equal to itself.
    if list(map(str, own)) != list(map(str, its)):
        raise StudyError(
            f"{path} does not go on from {origin}, as the other members say: folders were exchanged, or lost. Restore "
            f"it; or remove it and the folders of the later generations, and the same command makes them again."
        )


def _score(tuning: TuningSection, measured: Experiment, own: _Trained, address: list[int]) -> float | None:
    """Return what the study sees of a member: the objective over its last rounds, with noise; None if it has none."""
    value = None if own.has_diverged else tuning.objective.value(own.rows, len(own.rows))
    return None if value is None else value + laplace(tuning.laplace, [measured.seed, *address])


def _best(objective: Objective, values: Sequence[float | None]) -> int:
    known = {member: value for member, value in enumerate(values) if value is not None}
    if not known:
        raise StudyError("All members have diverged in the last generation. Try a space with smaller learning rates.")
    return (max if objective.is_maximised else min)(known, key=lambda member: known[member])


def _summary(
    objective: Objective, generation: int, end: int, members: Sequence[Descendant], values: Sequence[float | None]
) -> str:
    known = [value for value in values if value is not None]
    best = figure(objective, (max if objective.is_maximised else min)(known)) if known else "all diverged"
    copied = sum(member.parent not in (None, number) for number, member in enumerate(members))
    return f"generation {generation:<3} after round {end}: {best} at best; {copied} went on from another member"


def _table(
    bred: Sequence[Sequence[Descendant]],
    scored: Sequence[Sequence[float | None]],
    ends: Sequence[int],
    keys: Sequence[str],
) -> pa.Table:
    def every() -> Iterator[tuple[int, int, Descendant, float | None]]:
        for generation, (members, values) in enumerate(zip(bred, scored, strict=True)):
            for number, (member, value) in enumerate(zip(members, values, strict=True)):
                yield generation, number, member, value

    rows = list(every())
    return pa.table(
        {
            "generation": [generation for generation, *_ in rows],
            "member": [number for _, number, *_ in rows],
            "parent": pa.array([member.parent for _, _, member, _ in rows], pa.int64()),
            **{key: column([member.values[key] for _, _, member, _ in rows]) for key in keys},
            "rounds": [ends[generation] for generation, *_ in rows],
            "value": pa.array([value for *_, value in rows], pa.float64()),
        }
    )
