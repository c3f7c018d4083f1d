"""Measures which trainer and chunk size train an experiment's clients fastest on this machine.

Trainer and chunk size fix the bits, so a result is kept. `raysim check FILE --calibrate` writes it for the experiment,
which is then the same on every machine with this kind of device. On a card "auto" measures once for a model, and keeps
the result in the cache (`auto_trainer.py`); on a CPU no run measures. If no fixed chunk size is faster than "auto", the
result is "auto".
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, get_args

import numpy as np
import torch

from raysim.algorithm.broadcast import Broadcast
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.cohort.chunks import Chunk
from raysim.engine.numerics import choose_device, fixed
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import training_conditions
from raysim.engine.plan.trainer_trials import check_client_axis, chosen
from raysim.engine.rounds.state_files import with_states_folder
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
from raysim.errors import ClientError, DeviceMemoryError, ModelError, RaysimError
from raysim.server.sums import Sums, add_to, on_cpu

TRAINERS: tuple[TrainerName, ...] = get_args(TrainerName)
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of clients in a stack that are measured."""
RECORDED_AFTER = 3
"""Passes on a card by the same worker, of which the last is measured: the first ones record what it plays."""
CALL_S = 0.001
"""Approximate overhead of a chunk on a worker."""


@dataclass(frozen=True)
class Timing:
    """A trainer with a chunk size, and estimates of a round's seconds on `workers` workers, one per repeat."""

    trainer: TrainerName
    chunk_size: int | Literal["auto"]
    round_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median over repeats."""
        return statistics.median(self.round_s)


def calibrate(
    plan: Plan,
    workers: int,
    repeats: int = 5,
    budget_s: float = 1.0,
    tell: Callable[[str], None] = lambda line: None,
    sizes: Sequence[int] = SIZES,
) -> list[Timing]:
    """Time every trainer that the module allows on the first round's clients, in turn; fastest first.

    Args:
        plan: the experiment; its trainer and chunk size are ignored.
        workers: number of workers that share the chunks of a round.
        repeats: passes over all trainers, so that a machine that slows down slows all.
        budget_s: seconds of a trainer in a pass, after which the rest of the round is extrapolated.
        tell: receives a message for each trainer that is left out, with the reason.
        sizes: numbers of clients in a stack that are measured, beside the table's.

    Raises:
        DeviceMemoryError, ClientError: every trainer fails.
    """
    device = choose_device(plan.experiment.engine.gpus_per_worker)
    cohort = np.unique(plan.cohorts().first())
    engine = plan.experiment.engine
    with fixed(engine.threads, device, engine.precision):
        choices = list(_candidates(plan, len(cohort), device.type, tell, sizes))
        memory = ExampleMemory()
        failed: RaysimError | None = None
        measured_s: dict[TrainerChoice, list[float]] = {}
        # The first pass warms up, and finds the trainers that fit into memory. On a card each measurement does so.
        warm_up = int(device.type == "cpu")
        for repeat in range(repeats + warm_up):
            for choice in list(choices):
                try:
                    took_s = _round_s(replace(plan, choice=choice), cohort, device, memory, workers, budget_s)
                except torch.OutOfMemoryError:
                    choices.remove(choice)
                    tell(f"{choice.trainer} with chunk_size = {_size(choice)}: out of memory")
                    continue
                except ClientError as error:
                    choices.remove(choice)
                    failed = error
                    tell(f"{choice.trainer} with chunk_size = {_size(choice)}: {error}")
                    continue
                if repeat >= warm_up:
                    measured_s.setdefault(choice, []).append(took_s)
    if not choices:
        raise failed or DeviceMemoryError(
            "No trainer fits into the memory of this device: take a smaller model or batch."
        )
    timings = [Timing(choice.trainer, _size(choice), tuple(measured_s[choice])) for choice in choices]
    return sorted(timings, key=lambda timing: timing.median_s)


def estimate(chunk_s: Sequence[float], workers: int) -> float:
    """Return the seconds of a round: the chunks, longest first, each on the worker that is free first."""
    free_at = [0.0] * workers
    for one_s in sorted(chunk_s, reverse=True):
        first = free_at.index(min(free_at))
        free_at[first] += one_s + CALL_S
    return max(free_at)


def _candidates(
    plan: Plan, cohort_size: int, device_kind: str, tell: Callable[[str], None], sizes: Sequence[int]
) -> Iterator[TrainerChoice]:
    conditions = replace(training_conditions(plan.experiment, plan.dataset, device_kind), chunk_size="auto")
    for trainer in TRAINERS:
        try:
            given = replace(conditions, trainer=trainer)
            choice = chosen(given, plan.experiment, plan.dataset, plan.model, plan.initial, plan.minimised)
            check_client_axis(replace(plan, choice=choice))
        except ModelError as error:
            tell(str(error))
            continue
        if not choice.together:
            # One client after another: the chunk size only balances the workers, and the table's rule does that.
            size = choice.chunk_size(cohort_size)
            yield choice if choice.call else replace(choice, usual=size, most=size, least_chunks=1)
            continue
        yield choice
        for size in sizes:
            if size < 2 * cohort_size:
                yield TrainerChoice.of_size(trainer, min(size, cohort_size), choice.overhead)


def _size(choice: TrainerChoice) -> int | Literal["auto"]:
    return choice.usual if choice.is_given else "auto"


def _round_s(
    plan: Plan, cohort: np.ndarray, device: torch.device, memory: ExampleMemory, workers: int, budget_s: float
) -> float:
    """Measure one pass over a round's chunks, or over the chunks that the budget allows."""
    with with_states_folder(plan, None) as placed:
        pool = Pool(placed, device, "calibration", memory)
        passes = 1 if device.type == "cpu" else RECORDED_AFTER
        return [_passed_s(placed, pool, cohort, workers, budget_s) for _ in range(passes)][-1]


def _sums_of(pool: Pool, broadcast: Broadcast, index: int, chunk: Chunk) -> Sums:
    result = pool.run("train", broadcast, index, chunk, None)
    assert isinstance(result, Sums)
    return result


def _passed_s(plan: Plan, pool: Pool, cohort: np.ndarray, workers: int, budget_s: float) -> float:
    chunks, costs = plan.chunks(cohort, 0)
    algorithm, state = plan.algorithm(), plan.initial_state()
    sums: list[Sums] = []
    for phase in algorithm.phases[:-1]:
        broadcast = phase.broadcast(state, {}, cohort.tolist(), sums)
        # The result does not matter, only its shape; but losses are those of every client.
        units = list(enumerate(chunks))[: len(chunks) if phase.of == "losses" else 1]
        sums.append(on_cpu(reduce(add_to, (_sums_of(pool, broadcast, index, chunk) for index, chunk in units))))
    broadcast = algorithm.phases[-1].broadcast(state, {}, cohort.tolist(), sums)
    measured: dict[int, float] = {}
    spent_s = 0.0
    for index, chunk in enumerate(chunks):
        start_s = time.perf_counter()
        pool.run("train", broadcast, index, chunk, None)
        measured[index] = time.perf_counter() - start_s
        spent_s += measured[index]
        if spent_s > budget_s:
            break
    per_cost = spent_s / max(1, sum(costs[i] for i in measured))
    return estimate([measured.get(i, cost * per_cost) for i, cost in enumerate(costs)], workers)


def best(timings: Sequence[Timing]) -> Timing:
    """Return the best timing within 5 % of the fastest: "auto", whose chunks suit any cohort, else the smallest chunk
    size, because then a lost worker costs less."""
    fastest = min(timing.median_s for timing in timings)
    as_fast = [timing for timing in timings if timing.median_s <= 1.05 * fastest]
    return min(as_fast, key=lambda timing: 0 if timing.chunk_size == "auto" else timing.chunk_size)
