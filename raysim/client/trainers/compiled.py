"""Dense layers through a kernel in C (kernel/dense.c): a call trains clients one after another, all their local steps.

The trainer for small models, in which a local step is less work than the calls that it would take: 223 us instead of
428 for McMahan et al.'s 2NN with batches of ten, 7 instead of 11 for logistic regression in a stack
(docs/performance.md).
Where a local step is not linear in the gradient (`StepRule.by_kernel`), the kernel makes the gradient and `fused` does
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.batches import ClientBatches
from raysim.client.chunk_clients import ChunkClients, LocalInputs
from raysim.client.corrections.correction import ProximalPoint
from raysim.client.proximal import Bounded, penalised_names
from raysim.client.trainer import Client, LocalStart, Updates
from raysim.client.trainers.kernel.kernel import BOUNDED, SHRUNK, DenseKernel, Penalised, StartingPoint, Windows
from raysim.client.trainers.layers.elementwise import Dropout
from raysim.client.trainers.local_steps import LinearSteps, StepRule
from raysim.client.trainers.scores import MOST_KEPT, Scores
from raysim.client.trainers.trainer_table import STACK_NUMBERS
from raysim.client.trainers.unread import UnreadSteps, unread_gradient
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.task import Task

HELD = STACK_NUMBERS["cpu"]
"""Numbers of the updates that a call makes: many, to share its cost; few enough for a cache to hold some of them. No
more are held of the clients of runs in lockstep, so that alone and together they are one group, and added up alike."""


MOST_AVERAGED = 4 * HELD
"""Numbers of the averages over windows that a call makes: more than a core's cache holds, for calls cost more."""


class Compiled:
    """Trainer around a kernel, for rules that it computes whole.

    Args:
        kernel: of the model's layers.
        task: losses and hits.
        rule: by the kernel.
        layout: of flat vectors.
    """

    trains_together = True

    def __init__(self, kernel: DenseKernel, task: Task, rule: StepRule, layout: Layout) -> None:
        assert rule.by_kernel
        self._kernel, self._task, self._rule, self._layout = kernel, task, rule, layout
        self._deltas, self._means = torch.zeros(0), torch.zeros(0)
        self._unread = UnreadSteps(layout, kernel.names)

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train as many at a time as `HELD` allows; see `Trainer.train`."""
        clients = ChunkClients.of(clients)
        windows = max(map(len, clients.inputs.windows), default=0)
        size = max(1, min(HELD, MOST_AVERAGED // max(1, windows)) // len(broadcast.params))
        for first in range(0, len(clients), size):
            group = clients[first : first + size]
            self._deltas = _at_least(len(group), broadcast.params, self._deltas)
            deltas = self._deltas[None, : len(group)]
            yield self._train([LocalStart(broadcast, lr)], group, _laid_out(group), deltas, start)

    def train_each(self, starts: Sequence[LocalStart], clients: Sequence[Client]) -> Updates:
        """See `LockstepTrainer`: every start's updates have the bits that it has alone."""
        clients = ChunkClients.of(clients)
        laid_out, weights = _laid_out(clients), starts[0].weights
        deltas = weights.params.new_zeros((len(starts), len(clients), len(weights.params)))
        # So that what scoring takes does not grow with the number of runs.
        numbers = self._kernel.outputs_of(laid_out.x, laid_out.y)
        size = max(1, MOST_KEPT // (len(laid_out.batches.order) * numbers))
        each = [
            self._train(starts[first : first + size], clients, laid_out, deltas[first : first + size])
            for first in range(0, len(starts), size)
        ]
        buffers, counters, loss, correct, squares = (
            torch.cat([getattr(updates, name) for updates in each])
            for name in ("buffers", "counters", "loss", "correct", "squared_norms")
        )
        seen = np.tile(laid_out.batches.visits, len(starts))
        return Updates(deltas.flatten(0, 1), buffers, counters, loss, correct, seen, squared_norms=squares)

    @torch.inference_mode()
    def _train(
        self,
        starts: Sequence[LocalStart],
        clients: ChunkClients,
        laid_out: _LaidOut,
        deltas: Tensor,
        state: Mapping[str, Tensor] | None = None,
    ) -> Updates:
        inputs = clients.inputs
        windows = self._windows(inputs, starts[0].weights.params) if self._rule.samples else None
        points = [self._start(start, inputs, state) for start in starts]
        outputs, squares = self._kernel.train(
            points,
            laid_out.x,
            laid_out.y,
            laid_out.rows,
            laid_out.batches,
            deltas,
            windows,
        )
        if self._unread:
            of_start = squares.view(len(starts), len(clients), -1)
            for point, start, own, squared in zip(points, starts, deltas, of_start, strict=True):
                drift = self._drift(start, inputs, state)
                self._unread.take(point, drift, laid_out.batches.steps, own, squared, windows)
        num, targets, owners = len(starts) * len(clients), laid_out.targets, laid_out.owners
        if len(starts) > 1:
            targets = targets.repeat(len(starts), *[1] * (targets.dim() - 1))
            owners = (torch.arange(len(starts))[:, None] * len(clients) + owners).flatten()
        scores = Scores(self._task, targets, owners, num)
        # Piece by piece, so that what scoring takes does not grow with a client's work.
        for piece in outputs.split(max(1, MOST_KEPT // outputs[0].numel())):
            scores.keep(piece)
        buffers, counters = (
            torch.cat([getattr(start.weights, name).expand(len(clients), -1) for start in starts])
            for name in ("buffers", "counters")
        )
        made = deltas.flatten(0, 1)
        samples = None if windows is None else windows.means.split([len(own) for own in inputs.windows])
        facts = (*scores.totals(), np.tile(laid_out.batches.visits, len(starts)))
        return Updates(made, buffers, counters, *facts, squared_norms=squares, samples=samples)

    def _start(self, start: LocalStart, inputs: LocalInputs, state: Mapping[str, Tensor] | None) -> StartingPoint:
        x, lr, rule = start.weights.params, start.lr, self._rule
        scale, keep, constant = LinearSteps.of(rule, x, inputs, True, lr, state)
        assert isinstance(scale, float)
        assert isinstance(keep, float)
        first = torch.stack(inputs.begins) if inputs.begins else None
        penalised = None if rule.proximal is None else _penalised(rule.proximal, self._layout, inputs.received, lr)
        return StartingPoint(x, scale, keep, constant, first, rule.anchored, penalised)

    def _drift(self, start: LocalStart, inputs: LocalInputs, state: Mapping[str, Tensor] | None) -> Tensor | None:
        """What a local step adds to y - x where the gradient is 0: its constant at x = 0."""
        at_zero = torch.zeros_like(start.weights.params)
        return LinearSteps.of(self._rule, at_zero, inputs, True, start.lr, state).constant

    def _windows(self, inputs: LocalInputs, like: Tensor) -> Windows:
        ranges = [window for own in inputs.windows for window in own]
        self._means = _at_least(len(ranges), like, self._means)
        counts = np.array([len(own) for own in inputs.windows], dtype=np.int64)
        return Windows(np.array(ranges, dtype=np.int64).reshape(-1, 2), counts, self._means[: len(ranges)])


def _at_least(rows: int, like: Tensor, there: Tensor) -> Tensor:
    """So many rows, of zeros at first: the kernel leaves the gaps between parameters alone."""
    return there if there.dim() > 1 and len(there) >= rows else like.new_zeros((rows, len(like)))


def _penalised(point: ProximalPoint, layout: Layout, received: Mapping[str, Tensor], lr: float) -> Penalised:
    """Return the point as the kernel takes it."""
    penalty = point.penalty
    names = penalised_names(layout, penalty.groups)
    if isinstance(penalty, Bounded):
        return Penalised(names, BOUNDED, penalty.radius)
    return Penalised(names, SHRUNK, penalty.strength * float(received[point.elapsed]), penalty.strength * lr)


@dataclass(frozen=True)
class _LaidOut:
    """Clients as the kernel takes them (see `DenseKernel.train`), whatever they start from.

    targets, owners: of every visit in its order, its target and its client.
    """

    x: Tensor
    y: Tensor
    rows: Int64s
    batches: ClientBatches
    targets: Tensor
    owners: Tensor


def _laid_out(clients: ChunkClients) -> _LaidOut:
    x, y, rows, batches = clients.x, clients.y, clients.num_examples, clients.batches
    targets = y.index_select(0, torch.from_numpy(clients.visited_rows))
    if clients.augmented is not None:
        # Rows are visits already, in their order.
        x, y, rows = clients.augmented, targets, batches.visits
        batches = replace(batches, order=np.concatenate([np.arange(num) for num in rows.tolist()]))
    owners = torch.from_numpy(np.repeat(np.arange(len(clients)), batches.visits))
    return _LaidOut(x, y, rows, batches, targets, owners)


class CompiledNetwork:
    """What `Fused` asks of a network, by the kernel: gradients at weights of its own."""

    def __init__(self, kernel: DenseKernel, like: Weights, layout: Layout) -> None:
        self._kernel = kernel
        self.params, self.gradient = torch.zeros_like(like.params), torch.zeros_like(like.params)
        self._unread = unread_gradient(layout, kernel.names, self.gradient)
        self.dropouts: list[Dropout] = []

    def differentiate(self, h: Tensor, targets: Tensor, alpha: float, batch: int) -> tuple[Tensor, None, None]:
        """See `fused.Network`."""
        for piece in self._unread:
            piece.zero_()
        return self._kernel.gradient(self.params, h, targets, alpha, self.gradient), None, None
