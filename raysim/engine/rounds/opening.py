"""Opens a run's folder: creates it or continues in it, and locks it while the run writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from raysim.engine.plan.first_answers import answers
from raysim.engine.plan.plan import Plan
from raysim.errors import RunFolderError
from raysim.experiment.stopping import StopReason
from raysim.run_folder import experiment_record, frozen
from raysim.run_folder.checkpoint_check import check_fits
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState
from raysim.storage import lock
from raysim.storage.remote import removed
from raysim.storage.remote.folder import named


class Opening(NamedTuple):
    """How to open the folder at `path`.

    done: the number of rounds of the checkpoint to continue from; None creates the folder. overwrite: allow to replace
    an existing run. profile: write the timeline. copies: where the script keeps copies of folders elsewhere; None: in
    this process. stopped: why the folder's run has stopped; then it does not go on. owner: whose the files of a folder
    to continue in were when it was looked at, without its lock; None: nobody has looked.
    """

    path: Path
    done: int | None = None
    overwrite: bool = False
    profile: bool = False
    copies: Path | None = None
    stopped: StopReason | None = None
    owner: str | None = None

    @property
    def named(self) -> str:
        """The folder's name for people: its URI, if it has one."""
        return named(self.path)

    def absolute(self) -> Opening:
        """Return the same with an absolute path, for a process with another working directory."""
        return self._replace(path=self.path.absolute(), copies=removed.copies())


def owner_of(plan: Plan, opening: Opening) -> str:
    """Return whose the files of a run's folder are, or will be."""
    if opening.done is None:
        return plan.owner
    return experiment_record.stored_owner(opening.path) if opening.owner is None else opening.owner


@contextmanager
def open_folder(plan: Plan, opening: Opening, run: str | None = None) -> Iterator[tuple[RunFolder, ServerState | None]]:
    """Yield the run's folder, and the state to continue from; None before the first round.

    Args:
        plan: the run.
        opening: its folder.
        run: the name by which a user attaches to it.

    Raises:
        RunFolderError: another process writes to the folder, or has put another run there since it was looked at; or it
            exists already, or is not a run's folder.
    """
    path, experiment, dataset = opening.path, plan.experiment, plan.dataset
    private = plan.private()
    guarantee = None if private is None else private.record(experiment.rounds)
    passed = plan.passed._replace(answers=answers(plan)) if opening.done is None else plan.passed
    facts = experiment_record.PlannedFacts(
        dataset.fingerprint,
        len(dataset.train),
        plan.choice.record,
        guarantee,
        plan.stated.record,
        passed,
        owner_of(plan, opening),
    )
    with lock.locked(path, run) as held:
        if opening.done is None:
            RunFolder.create(path, experiment, plan.fingerprint, opening.overwrite, facts)
        else:
            _check_owner(opening)
            # What was passed at the run's start stays, and so does where it began.
            had = experiment_record.stored_passed(path)
            goes_on_after = experiment_record.stored_goes_on_after(path)
            facts = replace(facts, passed=had or facts.passed, goes_on_after=goes_on_after)

        def record() -> None:
            if opening.done is not None:
                experiment_record.write_experiment(path, experiment, plan.fingerprint, facts)
            frozen.write(path, plan.model.constants, plan.fingerprint)

        folder, state = RunFolder.reopen(path, experiment, opening.profile, held, record)
        if state is not None:
            check_fits(state, plan.begins, path)
        yield folder, state


def _check_owner(opening: Opening) -> None:
    """Refuse a folder in which another process has begun another run between the look at it and its lock.

    Its state would be gone on with as if it were of the run that was there.
    """
    if opening.owner not in (None, experiment_record.stored_owner(opening.path)):
        raise RunFolderError(
            f"{opening.named} holds another run than when this command looked at it: another process has replaced it "
            f"meanwhile (--overwrite, overwrite=True). Give this run another folder (--path, path=)."
        )
