"""Compares local steps of a trainer with autograd's, from time to time.

A recorded step, or a layer by hand, was tried on a few batches before it was used. Where what a module computes depends
on something that no trial showed, its updates would be other than autograd's, and nobody would know. So some clients
that a trainer has trained are trained again, for single local steps: by the trainer, and by autograd. This changes no
number of the run.

Updates that differ by rounding may lie far apart: Adam makes a full step of a gradient that is rounding alone. So what
looks different is compared once more, where gradients are more than rounding, and where autograd itself hardly changes
when the weights are moved a little, in any of several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.client.batches import Batches
from raysim.client.chunk_clients import ChunkClients
from raysim.client.local_training import working_on
from raysim.client.trainer import Client, LocalStart, LockstepTrainer, Trainer, Updates
from raysim.client.trainers.trainer_choice import Precision
from raysim.models import memory
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.squared_norms import squared_norms

FIRST, RATIO = 2, 8
"""The first call whose client is compared, and how many times as late the next one is: comparisons cost next to
nothing."""

STEPS = 4
"""Local steps of a client that are compared."""


class Tolerances(NamedTuple):
    """How far numbers may be off.

    update: of a parameter, relative to it. Trials at a run's start are stricter, at a batch of their own choice; on any
    other one, a relu or a maximum may be decided otherwise by rounding. gradient: how large a number of it must be,
    relative to the largest one, to be more than rounding (see `SATURATED` too). move: how far weights are moved,
    relative to a hundredth more than the mean of a parameter's absolute values: zeros move too.
    """

    update: float
    gradient: float
    move: float


WHOLE, SHORT = Tolerances(0.05, 1e-4, 1e-5), Tolerances(0.3, 0.05, 1e-2)
"""Of float32, also where a card would round its products, and of bfloat16."""

LARGEST = 1 << 25
"""Bytes of a model's parameters up to which clients are compared: it takes some fifteen times as much for a while."""

STEADY = 0.7
"""How large the part of a parameter's update must be, relative to it, that hardly changes then."""

WAYS = 8
"""In which weights are moved. What is decided right at the weights is crossed by one of two opposite ways; where
rounding decides it (a relu behind the norm of constant numbers), each way is one more toss of a coin."""

SATURATED = 64
"""Rounding of a gradient relative to its largest number, times the loss, in units of the last digit. What an output
adds to a gradient is a probability less 1, which is nearly 1 where the loss is small: few digits are left of it. Of a
squared error it is times its root: outputs less targets, of size 1."""

LOSS = 0.01
"""How far the losses may be off, relative to their size."""


class Differs(NamedTuple):
    """A local step that is not autograd's: the client's position, and how it differs, as the end of a sentence."""

    position: int
    how: str


def is_due(count: int) -> bool:
    """Whether a client of this call, counted from 1, is compared.

    >>> [count for count in range(1, 2500) if is_due(count)]
    [2, 16, 128, 1024]
    """
    while count > FIRST and count % RATIO == 0:
        count //= RATIO
    return count == FIRST


@dataclass(frozen=True)
class _Call:
    """What a call to `Trainer.train` was given, with one of its clients."""

    broadcast: Weights
    client: Client
    lr: float
    start: Mapping[str, Tensor] | None

    @property
    def begin(self) -> Tensor:
        """y before the first local step."""
        return self.broadcast.params if self.client.begin is None else self.client.begin


class ComparedTrainer:
    """A trainer, of whose calls some are kept until `difference` is asked for.

    Args:
        trainer: what trains.
        by_autograd: makes a trainer of the same equations whose steps are autograd's, and which sums gradients; called
            for each comparison.
        layout: of the parameters.
        precision: of products.
        is_squared: whether the loss is the squared error.
    """

    def __init__(
        self,
        trainer: Trainer,
        by_autograd: Callable[[], Trainer],
        layout: Layout,
        precision: Precision,
        is_squared: bool,
    ) -> None:
        self._trainer, self._by_autograd, self._is_squared = trainer, by_autograd, is_squared
        self._layout, self._tolerances = layout, SHORT if precision == "bf16" else WHOLE
        self._count = 0
        self._call: _Call | None = None
        self.trains_together = trainer.trains_together

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train the clients; see `Trainer.train`."""
        self._count += 1
        if is_due(self._count) and broadcast.params.nbytes <= LARGEST:
            # Another one each time: numbers of calls that are due are often multiples of how many clients there are.
            client = clients[self._count.bit_length() % len(clients)]
            self._call = _Call(broadcast, _copied(client), lr, start)
        return self._trainer.train(broadcast, clients, lr, start)

    def difference(self, alone: Callable[[], AbstractContextManager[object]]) -> Differs | None:
        """Compare the client of the call that is kept, and keep it no longer; None: no call is kept, or all is well.

        Args:
            alone: what every local step is made in, so that it draws as if there were no others.

        Raises:
            ClientFailure: user code raised.
        """
        call, self._call = self._call, None
        if call is None:
            return None
        try:
            with working_on(call.client.position):
                how = self._first_difference(call, alone)
        finally:
            # It takes several times as much as the steps that follow.
            memory.give_back()
        return None if how is None else Differs(call.client.position, how)

    def _first_difference(self, call: _Call, alone: Callable[[], AbstractContextManager[object]]) -> str | None:
        last = call.client.batches.num_steps - 1
        with alone():
            trainers = self._trainer, self._by_autograd()
        for step in sorted({last * index // (STEPS - 1) for index in range(STEPS)}):
            how = self._compared(trainers, replace(call, client=_one_step(call.client, step)), alone)
            if how is not None:
                return how
        return None

    @torch.no_grad()
    def _compared(
        self, trainers: tuple[Trainer, Trainer], call: _Call, alone: Callable[[], AbstractContextManager[object]]
    ) -> str | None:
        """How the first trainer's local step differs from the second's, which is autograd's; None: it does not."""

        def step(trainer: Trainer, call: _Call) -> _Step:
            with alone():
                return _Step.of(trainer, call)

        made, wanted = (step(trainer, call) for trainer in trainers)
        if not wanted.is_finite:
            return None
        limits = self._limits(wanted.update, call.begin)
        off = self._norms(made.update - wanted.update)
        # Not a number is not near.
        if bool((off <= limits).all()) and _are_near(made.loss, wanted.loss) and made.has_buffers_of(wanted):
            return None
        steady, loss_is, buffers_are = self._beyond_rounding(wanted, call.begin), True, True
        for way in range(WAYS):
            moved = step(trainers[1], self._moved(call, way))
            steady &= (moved.update - wanted.update).abs() <= self._tolerances.update * wanted.update.abs()
            loss_is &= _are_near(moved.loss, wanted.loss)
            buffers_are &= moved.has_buffers_of(wanted)
        off = self._norms(torch.where(steady, made.update - wanted.update, 0.0))
        # Numbers that are near by chance say nothing.
        off[self._norms(torch.where(steady, wanted.update, 0.0)) < STEADY * self._norms(wanted.update)] = 0
        if not bool((off <= limits).all()):
            return self._of_update(off, limits, torch.where(steady, wanted.update, 0.0))
        if loss_is and not _are_near(made.loss, wanted.loss):
            return f"has the loss {made.loss:.6g}, where autograd has {wanted.loss:.6g}"
        if buffers_are and not made.has_buffers_of(wanted):
            return "leaves other numbers in the module's buffers"
        return None

    def _norms(self, vector: Tensor) -> Tensor:
        """The norm of each parameter's part, float64."""
        return squared_norms(self._layout, vector[None])[0].sqrt()

    def _limits(self, update: Tensor, begin: Tensor) -> Tensor:
        """How far each parameter's update may be off: it is a difference of weights, so these are rounded too."""
        rounded = 4 * torch.finfo(begin.dtype).eps * self._norms(begin)
        limits: Tensor = self._tolerances.update * self._norms(update) + rounded
        return limits

    def _beyond_rounding(self, wanted: _Step, begin: Tensor) -> Tensor:
        """Which numbers of the gradient are more than rounding."""
        assert wanted.gradient is not None
        size, left = wanted.gradient.abs(), abs(wanted.loss)
        largest, eps = size.max(), torch.finfo(begin.dtype).eps
        if self._is_squared:
            left **= 0.5
        # By the product, as a loss may be 0. One that is not a number says nothing.
        is_rounding = size * left <= SATURATED * eps * largest
        return (size > self._tolerances.gradient * largest) & ~is_rounding

    def _moved(self, call: _Call, way: int) -> _Call:
        """The call from weights that lie a little apart. Ways 0 and 1, 2 and 3, ... are opposite."""
        by, begin = torch.zeros_like(call.begin), call.client.begin
        generator = torch.Generator(by.device).manual_seed(way // 2)
        drawn = torch.rand(by.shape, generator=generator, dtype=by.dtype, device=by.device)
        views = (self._layout.views(vector).values() for vector in (by, drawn, call.begin))
        for into, numbers, weights in zip(*views, strict=True):
            into.copy_((2 * numbers - 1) * (-1) ** way * self._tolerances.move * (weights.abs().mean() + 0.01))
        return replace(
            call,
            broadcast=replace(call.broadcast, params=call.broadcast.params + by),
            client=call.client if begin is None else replace(call.client, begin=begin + by),
        )

    def _of_update(self, off: Tensor, limits: Tensor, update: Tensor) -> str:
        # What does not move has no limit, and what is not a number is beyond any.
        worst = int(torch.where(off <= limits, 0.0, off / limits).nan_to_num(nan=torch.inf).argmax())
        norm = float(self._norms(update)[worst])
        return (
            f"changes {self._layout.names[worst]!r} by other numbers: the difference has the norm "
            f"{float(off[worst]):.3g}, and autograd's change {norm:.3g}"
        )


class ComparedLockstep:
    """A `ComparedTrainer` of a trainer that can also train from several starts; those calls are not compared."""

    def __init__(self, compared: ComparedTrainer, trainer: LockstepTrainer) -> None:
        self._compared, self._trainer = compared, trainer
        self.trains_together = trainer.trains_together

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train the clients; see `Trainer.train`."""
        return self._compared.train(broadcast, clients, lr, start)

    def train_each(self, starts: Sequence[LocalStart], clients: Sequence[Client]) -> Updates:
        """Train the clients from each start; see `LockstepTrainer.train_each`."""
        return self._trainer.train_each(starts, clients)


def bare(trainer: Trainer | None) -> Trainer | None:
    """Return the trainer beneath what compares its steps."""
    return trainer._trainer if isinstance(trainer, ComparedTrainer | ComparedLockstep) else trainer


@dataclass(frozen=True)
class _Step:
    """What a single local step makes.

    update: (P,), by which y moves. gradient: (P,), of the loss, where the trainer sums those. buffers, counters: after
    it. loss: of the batch.
    """

    update: Tensor
    gradient: Tensor | None
    buffers: Tensor
    counters: Tensor
    loss: float

    @classmethod
    def of(cls, trainer: Trainer, call: _Call) -> _Step:
        (made,) = trainer.train(call.broadcast, ChunkClients.of([call.client]), call.lr, call.start)
        gradient = None if made.gradients is None else made.gradients[0].clone()
        delta, buffers, counters = (one[0].clone() for one in (made.delta, made.buffers, made.counters))
        update = delta - (call.begin - call.broadcast.params)
        return cls(update, gradient, buffers, counters, float(made.loss[0]))

    @property
    def is_finite(self) -> bool:
        return bool(self.update.isfinite().all())

    def has_buffers_of(self, other: _Step) -> bool:
        """Whether buffers are equal but for rounding, where the other's are finite, and counters are equal."""
        finite = other.buffers.isfinite()
        off = (self.buffers - other.buffers)[finite].norm()
        near = bool(off <= LOSS * other.buffers[finite].norm())
        return near and torch.equal(self.counters, other.counters)


def _are_near(loss: float, wanted: float) -> bool:
    return wanted != wanted or abs(loss - wanted) <= LOSS * (abs(wanted) + LOSS)


def _copied(client: Client) -> Client:
    """The client with vectors that its training does not write to."""
    return replace(
        client,
        offset=None if client.offset is None else client.offset.clone(),
        begin=None if client.begin is None else client.begin.clone(),
        own=None if client.own is None else client.own.clone(),
    )


def _one_step(client: Client, step: int) -> Client:
    """The client with one of its local steps."""
    first, stop = client.batches.bounds[step : step + 2]
    return replace(
        client,
        batches=Batches(client.batches.order[first:stop], (0, stop - first)),
        augmented=None if client.augmented is None else client.augmented[first:stop],
        # They may lie in other steps. Their averages are not compared.
        windows=(),
    )
