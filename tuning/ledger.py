"""Keeps the trials of a study in its storage, with their processes and outcomes.

Trial i of the study fills slot i of `processes`, and records its slot when it is created. A failed trial that is run
again is a new trial in the same slot. A process that owns a slot, taken or inherited, creates its trial if there is
none yet, and else resumes it. So no trial is lost or counted twice when a process is killed at any point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, _filter_study
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from raysim import differing
from tuning.budget import StudyBudget
from tuning.errors import StudyError
from tuning.kept_trial import FAILED, NO_KINDS, SEAL, check, in_slot, learnt_from, seal
from tuning.of_a_table import of_a_table
from tuning.processes import Log, Processes
from tuning.space import Space


@dataclass(frozen=True)
class Held:
    """A trial that this process works on.

    values: the experiment's, by dotted key. resumed: it was begun before, in any process. reported: the steps that the
    storage already has, with their values.
    """

    slot: int
    trial: optuna.Trial
    values: Mapping[str, Any]
    resumed: bool
    reported: Mapping[int, float]

    @property
    def number(self) -> int:
        """The trial's number in the study."""
        return self.trial.number


class Ledger:
    """One study in a storage, for one process among possibly several."""

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        processes: Processes,
        space: Space,
        total: int,
        sampler: Callable[[int], BaseSampler],
        pruner: BasePruner,
        budget: StudyBudget | None = None,
    ) -> None:
        """`sampler` makes the sampler of a slot; the study exists already, see `open_study`."""
        self._storage, self._name, self._processes = storage, name, processes
        self._space, self._total, self._sampler, self._pruner = space, total, sampler, pruner
        self._id, self._kinds = storage.get_study_id_from_name(name), space.distributions()
        self._begun: set[int] = set()
        self._dealt, self._budget = False, budget
        self._again: dict[int, FrozenTrial] = {}
        """Failed trials by slot that are to be run again once the budget has room for them."""
        self.study = self._handle()
        """Optuna's handle of the study."""

    def by_slot(self) -> dict[int, FrozenTrial]:
        """Return the study's trials so far by slot, without slots beyond its number of trials."""
        found = by_slot(self.study, self._kinds)
        return {slot: trial for slot, trial in found.items() if slot < self._total}

    @property
    def total(self) -> int:
        """The study's number of trials."""
        return self._total

    def num_trials(self) -> int:
        """Return the number of trials in the storage, of any outcome; their numbers are those below it."""
        return len(self.study.get_trials(deepcopy=False))

    def num_beyond(self) -> int:
        """Return how many ended trials the storage has beyond the study's number of trials."""
        every = by_slot(self.study, self._kinds)
        return sum(slot >= self._total and trial.state.is_finished() for slot, trial in every.items())

    def retry_failed(self) -> list[int]:
        """Have a new trial with the same values in the place of each failed one; return the failed trials' numbers.

        The failed ones of a process that is still at work stay: that process would not begin the new ones. With a
        budget `take` puts them in, as long as there is room; a failed trial that is replaced has used nothing.
        """
        # One that was killed between its outcome and its end is open: it is resumed.
        failed = {
            slot: trial
            for slot, trial in self.by_slot().items()
            if _is_finished(trial) and trial.user_attrs.get("outcome") == FAILED
        }
        rows = self._processes.read()
        self._processes.inherit(rows, (rows.owner(rows.slots[slot]) for slot in failed), warn=False)
        rows = self._processes.read()
        mine = {slot: t for slot, t in failed.items() if rows.owner(rows.slots[slot]) == self._processes.number}
        self._again = mine
        if self._budget is None:
            self._put_again(len(mine))
        return [trial.number for trial in mine.values()]

    def waiting(self) -> list[int]:
        """Return the numbers of the failed trials that are to be run again, and have no new trial yet."""
        return [trial.number for trial in self._again.values()]

    def _put_again(self, most: int) -> None:
        for slot, trial in list(self._again.items())[:most]:
            # Optuna's samplers leave values alone that are fixed.
            fixed = create_trial(
                state=TrialState.RUNNING,
                user_attrs=in_slot(slot, retries=trial.number),
                system_attrs={"fixed_params": trial.params},
            )
            self._storage.create_new_trial(self._id, fixed)
            del self._again[slot]

    def take(self, most: int) -> list[Held]:
        """Return at most `most` trials for this process to work on: first its open trials, then new ones."""
        rows, trials = self._processes.read(), self.by_slot()
        mine = self._open(rows, trials)
        more = min(most - len(mine), self._left(rows, trials))
        if more > 0:
            again = min(more, len(self._again))
            self._put_again(again)
            if more > again:
                self._processes.take_slots(more - again)
            rows, trials = self._processes.read(), self.by_slot()
            mine = self._open(rows, trials)
        chosen = mine[:most]
        self._dealt = len(chosen) == len(mine) and len(rows.slots) >= self._total and not self._again
        fresh = [slot for slot in chosen if slot not in trials]
        for slot in fresh:
            self._storage.create_new_trial(self._id, create_trial(state=TrialState.RUNNING, user_attrs=in_slot(slot)))
        if fresh:
            trials = self.by_slot()
        self._begun.update(chosen)
        # A new handle each time, because Optuna's handle caches other trials.
        handle = self._handle()
        return [self._held(handle, slot, trials[slot], resumed=slot not in fresh) for slot in chosen]

    @property
    def is_dealt(self) -> bool:
        """True if every slot of the study is taken, and this process has no slot to begin."""
        return self._dealt

    def num_open(self) -> int:
        """Return the number of unfinished trials of the study, of all processes; with a budget those that may begin."""
        trials = self.by_slot()
        ended = sum(trial.state.is_finished() for trial in trials.values())
        if self._budget is None:
            return self._total - ended
        rows = self._processes.read()
        return min(self._total, len(rows.slots)) - ended + self._left(rows, trials)

    def _left(self, rows: Log, trials: Mapping[int, FrozenTrial]) -> int:
        """Return how many more trials may begin now, in any process, those included that are to be run again."""
        # There may be more trials than `total` asks for, which an earlier command has begun.
        new = max(0, self._total - len(rows.slots))
        if self._budget is None:
            return new
        ended = {slot: trial for slot, trial in trials.items() if _is_finished(trial)}
        under_way = len(rows.slots) - len(ended)
        for begun, slot in enumerate(self._again):
            # It takes the failed one's place in what is used up, too. A process that has taken the slot over may have
            # put one there already.
            ended.pop(slot, None)
            if not self._budget.room(_spent(ended.values()), under_way + begun):
                return begun
        under_way += len(self._again)
        return len(self._again) + min(new, self._budget.room(_spent(ended.values()), under_way))

    def inherit(self) -> bool:
        """Take over the open trials of processes that have ended; return whether there were any."""
        rows, trials = self._processes.read(), self.by_slot()
        open_slots = [slot for slot in range(min(self._total, len(rows.slots))) if not _is_finished(trials.get(slot))]
        return self._processes.inherit(rows, (rows.owner(rows.slots[slot]) for slot in open_slots))

    def end(
        self, held: Held, outcome: str, state: TrialState, values: Sequence[float] | None, facts: Mapping[str, Any]
    ) -> None:
        """End a trial with a value of each objective, and keep these facts in its attribute "facts".

        Raises:
            StudyError: another process has taken over this one's trials.
        """
        self._processes.check()
        held.trial.set_user_attr("facts", dict(facts))
        held.trial.set_user_attr("outcome", outcome)
        stored = self._storage.get_trial(self._storage.get_trial_id_from_study_id_trial_number(self._id, held.number))
        sealed = seal((held.number, held.slot), outcome, held.trial.params, values, facts, learnt_from(stored))
        held.trial.set_user_attr(SEAL, sealed)
        self.study.sampler = self._sampler(held.slot)
        self.study.tell(held.number, values, state)

    def is_mine(self, what: str) -> bool:
        """Claim a task by name, once for the whole study; return whether it is this process's task.

        Tasks of ended processes are inherited first.
        """
        rows = self._processes.read()
        if what in rows.taken:
            self._processes.inherit(rows, [rows.owner(rows.taken[what])])
        else:
            self._processes.take(what)
        rows = self._processes.read()
        return rows.owner(rows.taken[what]) == self._processes.number

    def _open(self, rows: Log, trials: Mapping[int, FrozenTrial]) -> list[int]:
        """Return this process's slots that are neither finished nor begun in it."""
        return [
            slot
            for slot, process in enumerate(rows.slots[: self._total])
            if rows.owner(process) == self._processes.number
            and slot not in self._begun
            and not _is_finished(trials.get(slot))
        ]

    def _held(self, handle: optuna.Study, slot: int, trial: FrozenTrial, resumed: bool) -> Held:
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)
        handle.sampler = self._sampler(slot)
        live = optuna.Trial(handle, trial_id)
        self._draw_again(live, trial)
        self._space.suggest(live)
        return Held(slot, live, self._space.values(live.params), resumed, dict(trial.intermediate_values))

    def _draw_again(self, live: optuna.Trial, trial: FrozenTrial) -> None:
        """Draw the keys again that a configuration has, if it lacks others: its process was killed between them.

        The sampler of a slot draws one key after the other, so the missing ones have the values that they would have
        had.
        """
        if trial.params.keys() >= self._space.dimensions.keys():
            return
        sampler, trials = live.study.sampler, _filter_study(live.study, trial)
        for key, kind in self._space.distributions().items():
            if key in trial.params and key not in live.relative_params and not kind.single():
                sampler.sample_independent(trials, trial, key, kind)

    def _handle(self) -> optuna.Study:
        # Its sampler is set for each trial.
        sampler = RandomSampler()
        return optuna.load_study(study_name=self._name, storage=self._storage, sampler=sampler, pruner=self._pruner)


def by_slot(study: optuna.Study, kinds: Mapping[str, BaseDistribution] = NO_KINDS) -> dict[int, FrozenTrial]:
    """Return a study's trials by slot, in order; of several in one slot the newest, which stands for the others.

    Raises:
        StudyError: a trial is lost or damaged; see `kept_trial.check` for `kinds`.
    """
    trials = study.get_trials(deepcopy=False)
    numbers = sorted(trial.number for trial in trials)
    if numbers != list(range(len(numbers))):
        lost = next(place for place, number in enumerate([*numbers, None]) if number != place)
        raise StudyError(
            f"The study's storage has no trial {lost}, and has later ones: it was lost. Restore the storage, or give "
            f"the study another folder (--path, path=)."
        )
    for trial in trials:
        check(trial, kinds)
    return dict(sorted((trial.user_attrs["slot"], trial) for trial in trials))


def open_study(
    storage: BaseStorage,
    name: str,
    directions: Sequence[StudyDirection],
    identity: Mapping[str, Any],
    where: str,
    way_out: str,
) -> None:
    """Create the study, or check that the existing one is the same.

    Args:
        identity: the common facts of its trials, as plain values.
        where: the storage's name for people. way_out: advice if there is another study, a sentence.

    Raises:
        StudyError: there is another study of that name; states the differences.
    """
    study = optuna.create_study(study_name=name, storage=storage, directions=directions, load_if_exists=True)
    identity_now = json.loads(json.dumps(identity))
    if "identity" not in study.user_attrs:
        if study.trials:
            raise StudyError(f"{where} has a study {name!r} that raysim did not create: give this one another name.")
        study.set_user_attr("identity", identity_now)
    if not isinstance(kept := study.user_attrs["identity"], Mapping):
        raise StudyError(f"{where} is damaged: its study {name!r} has the identity {kept!r:.40}. {way_out}")
    if found := differing(kept, identity_now):
        if not differing(kept, of_a_table(identity_now)):
            raise StudyError(
                f"{where} holds the runs of a table of this experiment (raysim table), which evaluates all clients "
                f"after every round, and no trials of a study. {way_out} Or read the trials from the table (--table)."
            )
        if not differing(of_a_table(kept), identity_now):
            raise StudyError(
                f"{where} holds trials of a study of this experiment (raysim tune), and the runs of a table evaluate "
                f"all clients after every round. {way_out}"
            )
        raise StudyError(f"{where} has a study {name!r} with other settings: {'; '.join(found)}. {way_out}")
    if list(study.directions) != list(directions):
        now, then = (" and ".join(each.name.lower() for each in of) for of in (study.directions, directions))
        raise StudyError(
            f"{where} is damaged: its study {name!r} is to {now}, and its objective is to {then}. Restore the "
            f"storage, or give the study another folder (--path, path=)."
        )


def _spent(ended: Iterable[FrozenTrial]) -> list[Mapping[str, float]]:
    return [trial.user_attrs["facts"].get("spent", {}) for trial in ended]


def _is_finished(trial: FrozenTrial | None) -> bool:
    return trial is not None and trial.state.is_finished()
