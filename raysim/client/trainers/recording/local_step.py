"""Records a module's local step for one shape of batch, and tries the recording before it is used.

The forward pass, the gradient of the loss at the outputs and autograd's backward pass are recorded together. The
recording is tried on the batch it was made from: outputs and what it writes must be those of autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysim.client.dropout import AddressedDropout
from raysim.client.trainers import side_effects
from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording.replay import Replay, replay
from raysim.client.trainers.recording.simplify import Program, draws, simplified
from raysim.client.trainers.recording.tape import NotRecorded, Slot, Tape, record
from raysim.client.trainers.recording.update import updates
from raysim.client.trainers.seeded import seeded
from raysim.config.global_draws import python_draws

ROUNDING = 1e-3
"""How far a recording may be from autograd, relative to the gradient: products that write round otherwise."""

_ASKS_FOR_GRADIENTS = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
"""Operators that prepare for a backward pass only while gradients are on."""


@dataclass(frozen=True)
class Recorded:
    """A local step that can be carried out again, in any mode of autograd.

    step: see `Replay`. draws: whether it draws from torch's generators.
    """

    step: Replay
    draws: bool


@dataclass(frozen=True)
class Weighted:
    """A module in training mode and the memory of its weights.

    forward: the module's, in its precision and with outputs in the dtype of the weights. parameters: the trained ones.
    values: the same memory without autograd. written: where the step of each goes, values themselves or the views of a
    gradient. flat: the vector that those are views of. keep: what is written to is multiplied with it first.
    state: flat vectors that a forward or a step may write to, `flat` among them.
    """

    module: nn.Module
    forward: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    values: Sequence[Tensor]
    written: Sequence[Tensor]
    flat: Tensor
    keep: float
    state: Sequence[Tensor]


def record_step(weighted: Weighted, loss_gradient: LossGradient, x: Tensor, y: Tensor) -> Recorded:
    """Record the local step on this batch, and try it; weights, buffers and generators are left as they were.

    Raises:
        NotRecorded: the step cannot be repeated, or does something else when it is; says why.
    """
    with _undone(weighted.state) as put_back:
        with _unchanged(weighted.module):
            tape = Tape()
            batch = tape.add(x), tape.add(y)
            weights = [tape.add(p, value) for p, value in zip(weighted.parameters, weighted.values, strict=True)]
            changing = [tape.slot(buffer) for buffer in weighted.module.buffers()]

            def step() -> tuple[Tensor, Tensor | None, Sequence[Tensor | None]]:
                outputs = weighted.forward(x)
                with torch.no_grad():
                    dy, factor, losses = loss_gradient(outputs.detach(), y)
                    dy = dy.mul_(factor / len(y))
                return outputs, losses, torch.autograd.grad(seeded(outputs, dy), weighted.parameters, allow_unused=True)

            with torch.enable_grad():
                outputs, losses, gradients = record(step, tape)
            results = [None if value is None else tape.slot(value) for value in (outputs, losses, *gradients)]
            program = simplified(tape, weights, changing, results)
            made = _compiled(program, weights, batch, weighted)
        put_back()
        _try(made, weighted, (x, y), outputs.detach(), gradients)
    return made


def _compiled(program: Program, weights: Sequence[Slot], batch: tuple[Slot, Slot], weighted: Weighted) -> Recorded:
    outputs, losses, *gradients = program.wanted
    assert outputs is not None
    kept = [slot for slot in (outputs, losses) if slot is not None]
    changes = updates(program, weights, gradients, kept)
    step = replay(program, changes, batch, (outputs, losses), weighted.written, weighted.keep)
    if any(op.function in _ASKS_FOR_GRADIENTS for op in program.ops):
        step = _with_gradients(step)
    return Recorded(step, any(draws(op) for op in program.ops))


def _with_gradients(step: Replay) -> Replay:
    def on(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode(False), torch.enable_grad():
            return step(x, y, alpha)

    return on


def _try(
    made: Recorded,
    weighted: Weighted,
    batch: tuple[Tensor, Tensor],
    outputs: Tensor,
    gradients: Sequence[Tensor | None],
) -> None:
    """Carry the recording out once.

    Raises:
        NotRecorded: it fails, or differs from autograd.
    """
    before = weighted.flat.clone()
    try:
        with torch.inference_mode():
            again, _ = made.step(*batch, 1.0)
    except torch.OutOfMemoryError:
        # Whether a step is recorded must not depend on what else is in memory.
        raise
    except Exception as error:
        raise NotRecorded(f"cannot be repeated ({type(error).__name__}: {error})") from error
    pairs = [(again, outputs)]
    offset = weighted.flat.storage_offset()
    for value, gradient in zip(weighted.written, gradients, strict=True):
        # Alpha is 1: the gradient is not lost in the weight's rounding.
        old = before.as_strided(value.shape, value.stride(), value.storage_offset() - offset)
        pairs.append((value - weighted.keep * old, torch.zeros_like(value) if gradient is None else gradient))
    for got, wanted in pairs:
        limit = ROUNDING * wanted.abs().max() if wanted.numel() else wanted.new_zeros(())
        if not bool(((got - wanted).abs() <= limit + 1e-6).all()) and bool(wanted.isfinite().all()):
            raise NotRecorded("has other gradients when it is repeated")


@contextmanager
def _undone(state: Sequence[Tensor]) -> Iterator[Callable[[], None]]:
    """Put back what the block writes to the vectors and draws from torch, at its end and when asked to."""
    before = [one.clone() for one in state]
    devices = sorted({one.device.index or 0 for one in state if one.is_cuda})
    generators = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in devices]

    def put_back() -> None:
        for one, old in zip(state, before, strict=True):
            one.copy_(old)
        torch.set_rng_state(generators[0])
        for device, generator in zip(devices, generators[1], strict=True):
            torch.cuda.set_rng_state(generator, device)

    try:
        yield put_back
    finally:
        with torch.no_grad():
            put_back()


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that changes what a module holds, or draws from another generator than torch's.

    Raises:
        NotRecorded: at the end of the block.
    """
    others = [child for child in module.modules() if not isinstance(child, AddressedDropout)]
    before = [side_effects.held(child) for child in others]
    with python_draws() as drew:
        yield
        if drew():
            raise NotRecorded("draws from a generator of NumPy or Python")
    if [side_effects.held(child) for child in others] != before:
        raise NotRecorded("changes what the module holds, or may: not all of that can be looked into")
