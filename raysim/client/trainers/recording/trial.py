"""Tries a recorded step once, and leaves module, weights and generators as if nobody had tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raysim import card
from raysim.client.dropout import AddressedDropout
from raysim.client.trainers import side_effects
from raysim.client.trainers.recording.replay import Replay
from raysim.client.trainers.recording.tape import NotRecorded, Tape, record
from raysim.client.trainers.recording.weighted import Weighted, other_tensors
from raysim.config.global_draws import python_draws
from raysim.models import memory

ROUNDING = 1e-3
"""How far a recording may be from autograd, relative to the gradient, in float32: some products round otherwise."""

RESIZED_ROUNDING = 1e-4
"""The same for a step that was made from other lengths. Nothing but this trial says that it is the step; those of the
usual modules are off by 3e-6 at most."""


def check_against_autograd(
    made: Replay,
    weighted: Weighted,
    batch: tuple[Tensor, Tensor],
    wanted: Sequence[Tensor | None],
    left: Sequence[Tensor],
    rounding: float = ROUNDING,
) -> tuple[Tensor, Tensor | None]:
    """Carry the recording out once, where autograd made the wanted outputs, losses and gradients and left these in the
    buffers. `rounding`: in float32.

    Returns:
        outputs and losses.

    Raises:
        NotRecorded: it fails, or differs from autograd.
    """
    before = weighted.flat.clone()
    again, losses = carried_out(made, batch)
    outputs, each, *gradients = wanted
    pairs = [(again, outputs), *zip(weighted.module.buffers(), left, strict=True)]
    if losses is not None:
        pairs.append((losses, each))
    offset = weighted.flat.storage_offset()
    for value, gradient in zip(weighted.written, gradients, strict=True):
        # Alpha is 1: the gradient is not lost in the weight's rounding.
        old = before.as_strided(value.shape, value.stride(), value.storage_offset() - offset)
        pairs.append((value - weighted.keep * old, torch.zeros_like(value) if gradient is None else gradient))
    if not all(one is not None and near(got, one, rounding) for got, one in pairs):
        raise NotRecorded("has other gradients when it is repeated")
    return again, losses


def carried_out(made: Replay, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Carry the recording out once; return outputs and losses.

    Raises:
        NotRecorded: it fails.
    """
    try:
        with torch.inference_mode():
            return made(*batch, 1.0)
    except Exception as error:
        if memory.is_lacking(error):
            # Whether a step is recorded must not depend on what else is in memory.
            raise
        raise NotRecorded(f"cannot be repeated ({type(error).__name__}: {error})") from error


def if_carried_out(compiled: Callable[[], Replay], batch: tuple[Tensor, Tensor]) -> Replay | None:
    """Return the recording in another layout if it can be carried out, which its shapes alone decide.

    Its numbers are not compared: a layout changes the order of additions alone, but one relu that decides otherwise can
    change a gradient by a hundredth. Whether a layout is taken must not depend on the batch at hand.
    """
    try:
        laid_out = compiled()
        laid_out(*batch, 1.0)
    except Exception as error:
        if memory.is_lacking(error):
            raise
        return None
    return laid_out


def near(got: Tensor, expected: Tensor, rounding: float = ROUNDING) -> bool:
    """Whether two tensors are equal but for rounding, relative to the largest expected number; infinite ones pass."""
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    relative, least = (1e-6, 1e-12) if expected.dtype == torch.float64 else (rounding, 1e-6)
    limit = relative * expected.abs().max() if expected.numel() else expected.new_zeros(())
    return bool(((got - expected).abs() <= limit + least).all()) or not bool(expected.isfinite().all())


@contextmanager
def undone(state: Sequence[Tensor]) -> Iterator[Callable[[], None]]:
    """Put back what the block writes to the vectors and draws from torch, at its end and when asked to."""
    before = [one.detach().clone() for one in state]
    with card.same_draws(state[0].device) as draws_put_back:

        @torch.no_grad()
        def put_back() -> None:
            for one, old in zip(state, before, strict=True):
                one.copy_(old)
            draws_put_back()

        try:
            yield put_back
        finally:
            put_back()


@contextmanager
def unchanged(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield a function that refuses a forward that changed what the module holds, or drew from another generator than
    torch's: it raises NotRecorded. In the end the module holds what it held."""
    dropouts = [child for child in module.modules() if isinstance(child, AddressedDropout)]
    others = [child for child in module.modules() if not isinstance(child, AddressedDropout)]
    before, shares = [side_effects.held(child) for child in others], [layer.p for layer in dropouts]
    put_back = side_effects.restorer(others)
    with python_draws() as drew:

        def check() -> None:
            if drew():
                raise NotRecorded("draws from a generator of NumPy or Python")
            if [side_effects.held(child) for child in others] != before or [each.p for each in dropouts] != shares:
                raise NotRecorded("changes what the module holds, or may: not all of that can be looked into")

        try:
            yield check
        finally:
            # A step that is refused is trained by autograd, as if nobody had tried.
            put_back()
            for layer, share in zip(dropouts, shares, strict=True):
                layer.p = share


def changes_module(weighted: Weighted, x: Tensor) -> bool:
    """Whether a forward on this batch changes what the module holds beside its tensors, or may; that is undone.

    One that reads values may, for another batch of this length: the answer must not depend on which batch came first.
    """
    with undone([*weighted.state, weighted.keys, *other_tensors(weighted)]), unchanged(weighted.module) as check:
        try:
            with torch.enable_grad():
                record(lambda: weighted.forward(x.clone()), Tape())
            check()
        except NotRecorded:
            return True
        except Exception as error:
            if memory.is_lacking(error):
                raise
            # A client's training says why.
            return False
    return False
