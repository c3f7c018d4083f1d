"""Opens the storage and the folder of a study, and checks that they belong together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import optuna
from optuna.trial import FrozenTrial

from raysim import Experiment, dataset_of
from raysim.run_folder.experiment_record import stored_passed
from raysim.run_folder.files import RECORD
from raysim.run_folder.passed_parts import Passed
from raysim.storage import disk
from tuning import folder, kept_trial, pruners, result, samplers
from tuning.budget import CLIENT_UPDATES, StudyBudget, written
from tuning.errors import StudyError
from tuning.ledger import Ledger, open_study
from tuning.processes import Processes
from tuning.progress import StudyProgress
from tuning.recorded import UNIT
from tuning.search import trial_folder
from tuning.section import TuningSection
from tuning.storage import answering, open_storage, shown
from tuning.study_plan import StudyPlan, unit_of

log = logging.getLogger("raysim")


class OpenStudy(NamedTuple):
    """A study that this process may work on."""

    ledger: Ledger
    progress: StudyProgress


@contextmanager
def opened(plan: StudyPlan, progress: bool | None) -> Iterator[OpenStudy]:
    """Open the storage and claim the folder; yields the study, whose storage answers until the block is left.

    Raises:
        StorageError: the storage cannot be reached, or no longer answers.
        StudyError: storage and folder are of different studies, or the study is of another folder, or they have more
            trials than `trials`.
        DiskError: the folder cannot be made.
    """
    where, name, own = plan.folder, plan.experiment.name, plan.tuning.storage is None
    with ExitStack() as stack:
        stack.enter_context(answering(plan.url))
        if own:
            disk.make_folder(where)
        storage = stack.enter_context(open_storage(plan.url))
        with folder.opened(where, plan.portable_url, name), folder.released_if_refused(where):
            open_study(storage, name, plan.tuning.directions, plan.identity, shown(plan.url), plan.way_out)
            study_id = storage.get_study_id_from_name(name)
            processes = stack.enter_context(Processes(storage, name))
            if not own and not folder.is_claimed(where):
                # Counted before the log is read: another process tells its folder before it begins a trial.
                processes.check_told(len(storage.get_all_trials(study_id, deepcopy=False)), str(where.absolute()))
            # The folder first: were the process killed after its mark is in the storage only, no folder would have it.
            mark = folder.claim(where, plan.portable_url, name, kept_trial.digest(plan.identity))
            if not own:
                processes.tell_folder(mark, str(where.absolute()))
        optuna.load_study(study_name=name, storage=storage).set_user_attr(UNIT, unit_of(plan.tuning))
        show = stack.enter_context(StudyProgress.where_wanted(progress, plan.tuning.objective))
        ledger = _ledger(storage, processes, plan)
        _check_trials(plan, ledger)
        yield OpenStudy(ledger, show)


def _check_trials(plan: StudyPlan, ledger: Ledger) -> None:
    where = plan.folder
    # Folders are listed first: another process of the study writes to its storage before it makes one.
    with_folder = folder.trials_of(where)
    ledger.by_slot()
    if lost := [number for number in with_folder if number >= ledger.num_trials()]:
        raise StudyError(
            f"{where} holds trials of the study, but its storage, {shown(plan.url)}, has "
            f"{'none of them' if not ledger.num_trials() else f'no trial {lost[0]}'}: restore the storage, or give "
            f"the study another folder (--path, path=)."
        )
    if (beyond := ledger.num_beyond()) > 0:
        total = ledger.total
        raise StudyError(
            f"{where} has {total + beyond} ended trials, and tuning.trials = {total} would leave {beyond} of them "
            f"out: set it to {total + beyond} or more, or give another study its own name and folder (--path)."
        )


def _ledger(storage: optuna.storages.BaseStorage, processes: Processes, plan: StudyPlan) -> Ledger:
    tuning, measured, space = plan.tuning, plan.measured, plan.space
    sampler, rounds, every = tuning.chosen_sampler(), measured.rounds, measured.evaluation.every
    return Ledger(
        storage,
        measured.name,
        processes,
        space,
        tuning.num_trials(),
        lambda slot: samplers.make(sampler, space, measured.seed, slot),
        pruners.make(tuning.pruner, rounds, every),
        tuning.budget,
    )


def warn(plan: StudyPlan, ended: Sequence[FrozenTrial]) -> None:
    """Log what the study is not going to do, or to compare: `ended` are its trials that have ended before."""
    text = _used_up(plan.tuning.budget, result.total_cost(ended))
    if not ended:
        text = _too_small(plan.tuning, plan.measured, len((plan.held or dataset_of(plan.measured)).train))
    if text is not None:
        log.warning("%s", text)
    for name, number in _other_code(plan, ended).items():
        log.warning(
            "%s= has other code than when trial %d ran; whether its numbers are the same, raysim cannot tell",
            name,
            number,
        )
    if of_data := [key for key in plan.space.dimensions if key.startswith("data.")]:
        log.warning(
            "tuning.space varies %s: trials differ in their data, so each is measured on validation clients of its own",
            of_data[0],
        )


def _other_code(plan: StudyPlan, ended: Sequence[FrozenTrial]) -> dict[str, int]:
    """Return the parts whose code is not that of all trials: keyword -> the first trial that had other code.

    Trials that failed do not count: they are not compared. Nor do those whose folders are not here.
    """
    passed, found = Passed.of(plan.parts), dict[str, int]()
    compared = [each.number for each in ended if passed.code and each.user_attrs["outcome"] != kept_trial.FAILED]
    for number in compared:
        run = trial_folder(plan.folder, number) / "seed-0"
        had = stored_passed(run) if (run / RECORD).exists() else None
        for name in () if had is None else had.other_code(passed):
            found.setdefault(name, number)
    return found


def _used_up(budget: StudyBudget | None, spent: Mapping[str, float]) -> str | None:
    """Return that no trial will begin, because a study that goes on has used up its budget; None if it has not."""
    if budget is None or (used := spent.get(budget.unit, 0.0)) < budget.amount:
        return None
    return (
        f"the study has used {written(budget.unit, used)} already, and tuning.budget.{budget.unit} = "
        f"{budget.amount:,.12g}: no further trial begins"
    )


def _too_small(tuning: TuningSection, measured: Experiment, clients: int) -> str | None:
    """Return that the budget is enough for one trial only, where what a trial uses is known before; else None."""
    budget, vary = tuning.budget, tuning.parsed_space().dimensions
    if budget is None or not isinstance(tuning.pruner, pruners.NoPruner):
        return None
    if any(key == "rounds" or key.startswith("cohort.") for key in vary):
        return None
    size = measured.cohort.size_at(clients)
    each = {"rounds": measured.rounds, CLIENT_UPDATES: sum(int(size(index)) for index in range(measured.rounds))}
    one = tuning.seeds * each.get(budget.unit, 0)
    if one <= budget.amount:
        return None
    seeds = f" with its {tuning.seeds} seeds" if tuning.seeds > 1 else ""
    return (
        f"tuning.budget.{budget.unit} = {budget.amount:,.12g} is less than one trial{seeds} uses, "
        f"{written(budget.unit, one)}: the study will have one trial"
    )
