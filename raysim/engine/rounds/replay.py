"""Repeats a round of a recorded run, or one client's update in it, in this process, bit for bit.

The replay starts from the newest checkpoint that is not later than the round, and runs up to the round if necessary. So
a breakpoint in a module or a loss stops at the place where the run failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from raysim.config.section import replaced
from raysim.config.values import is_whole
from raysim.engine.in_process import InProcess
from raysim.engine.numerics import choose_device, fixed
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import loop
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.training import before_training, begin
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
from raysim.errors import CheckpointError, RunFolderError
from raysim.run_folder import experiment_record, files, kept_checkpoints, round_table
from raysim.run_folder.checkpoint_check import check_fits
from raysim.run_folder.writer import RunFolder
from raysim.server.clipping import UNLIMITED
from raysim.server.state import ServerState
from raysim.server.sums import Sums
from raysim.storage.scratch import scratch_folder


@dataclass(frozen=True)
class ClientUpdate:
    """A client's upload: its update y_i - x by name, after an adversary's attack and before clipping.

    chunk: ids of the clients of its chunk. rejected: the update is not finite, and is left out.
    """

    index: int
    client: str
    chunk: tuple[str, ...]
    update: dict[str, Tensor] | None
    rejected: bool


def replay_round(plan: Plan, path: Path, index: int) -> Finished:
    """Repeat a round; it is evaluated like the last round of a run."""
    with _aside(plan, path) as plan:
        state = state_before(plan, path, index)
        (finished,) = _run(plan, state, index + 1)
    return finished


def replay_client(plan: Plan, path: Path, index: int, client: str) -> ClientUpdate:
    """Repeat one client's update; its whole chunk is trained, because the chunk fixes the bits.

    Raises:
        RunFolderError: the client was not in the round's cohort.
    """
    with _aside(plan, path) as plan:
        return _client(plan, path, index, client)


def _client(plan: Plan, path: Path, index: int, client: str) -> ClientUpdate:
    state = state_before(plan, path, index)
    train = plan.dataset.train
    position = train.position_of(client)
    cohorts, algorithm = plan.cohorts(), plan.algorithm()
    if sum(phase.of == "training" for phase in algorithm.phases) > 1:
        raise RunFolderError("A client is not replayed where a round trains several models: replay the whole round.")
    kept: list[Tensor] = []
    engine = plan.experiment.engine
    device = choose_device(engine.gpus_per_worker)
    with fixed(engine.threads, device, engine.precision):
        memory = ExampleMemory()
        executor = InProcess(plan, memory=memory)
        # Jobs are carried out when their results are asked for, so the last phase is not.
        training = begin(plan, algorithm, cohorts, executor, state, keep=False)
        training, outcomes = before_training(plan, algorithm, cohorts, executor, state, training)
        positions, chunks = training.selected.positions, training.chunks
        number = next((i for i, chunk in enumerate(chunks) if position in chunk), None)
        if number is None and position in training.cohort:
            raise RunFolderError(_did_not_count(plan, client, index))
        if number is None:
            ids, size = ", ".join(train.id_of(p) for p in training.cohort.tolist()[:20]), len(training.cohort)
            raise RunFolderError(f"client {client!r} was not in round {index}, whose cohort of {size} is: {ids} ...")
        sums = tuple(outcome.sums for outcome in outcomes)
        broadcast = algorithm.phases[-1].broadcast(state, training.selected.repeats, positions.tolist(), sums)
        # The client's upload: before clipping, and once, even if the client was drawn several times.
        broadcast = replace(broadcast, limits=UNLIMITED, repeats={})
        result = Pool(plan, device, "this process", memory).run("train", broadcast, number, chunks[number], kept)
    assert isinstance(result, Sums)
    members = tuple(train.id_of(p) for p in chunks[number])
    if position in result.rejected:
        return ClientUpdate(index, client, members, None, rejected=True)
    row = [fact.position for fact in result.facts].index(position)
    named = {name: view.clone() for name, view in plan.model.params.views(kept[row]).items()}
    return ClientUpdate(index, client, members, named, rejected=False)


def _did_not_count(plan: Plan, client: str, index: int) -> str:
    beginning = f"client {client!r} was drawn for round {index}, "
    if plan.experiment.systems is None:
        return f"{beginning}and left it before it sent anything."
    return f"{beginning}but it left, or its report came too late to count, so it was not trained."


@contextmanager
def _aside(plan: Plan, path: Path) -> Iterator[Plan]:
    """Yield a plan that reads client states from the run, and writes them elsewhere."""
    if not plan.algorithm().state_vectors:
        yield plan
        return
    with scratch_folder() as scratch:
        older, owner = path.absolute() / files.STATES, experiment_record.stored_owner(path)
        yield replace(plan, states=scratch / files.STATES, older_states=older, states_of=owner)


def state_before(plan: Plan, path: Path, index: int) -> ServerState:
    """Return the state before round `index`.

    Raises:
        RunFolderError: the run has no such round.
    """
    done = round_table.read_rounds(path).num_rows
    if not is_whole(index) or not 0 <= index < done:
        raise RunFolderError(f"0 <= round < {done} must hold, the rounds that {path} has, but got {index!r}.")
    nearest = _nearest(path, experiment_record.stored_owner(path), index)
    if nearest is None:
        experiment_record.check_start(path, plan.passed)
    else:
        check_fits(nearest, plan.begins, path)
    state = nearest or plan.initial_state()
    if state.round == index:
        return state
    with scratch_folder() as scratch:
        (scratch / "checkpoints").mkdir()
        (scratch / "clients").mkdir()
        folder = RunFolder(scratch, plan.fingerprint, keep=1)
        _run(plan, state, index, folder)
        reached = kept_checkpoints.newest_state(scratch, plan.fingerprint)
    assert reached is not None
    return reached


def _nearest(path: Path, fingerprint: str, index: int) -> ServerState | None:
    for done, file in reversed(files.checkpoints(path).items()):
        if done <= index:
            try:
                return kept_checkpoints.state_of(file, fingerprint, done)
            except CheckpointError:
                continue
    return None


def _run(plan: Plan, state: ServerState, rounds: int, folder: RunFolder | None = None) -> Sequence[Finished]:
    """Run until this number of rounds is finished."""
    shorter = replace(plan, experiment=replaced(plan.experiment, rounds=rounds, stop=None))
    engine = plan.experiment.engine
    with (
        fixed(engine.threads, choose_device(engine.gpus_per_worker), engine.precision),
        closing(loop.rounds(shorter, InProcess(shorter), state, folder, overlap=False)) as steps,
    ):
        return [finished for finished in steps if finished.index == rounds - 1]
