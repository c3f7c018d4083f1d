"""Dropout whose masks are addressed: a function of (client, local step, layer), the same in every trainer.

Where torch draws from a generator, raysim hashes: element j of a layer's output is kept where the j-th 16-bit number of
the stream at the layer's key (SplitMix64, as in `raysim.seeds`) is at least p * 2^16. Departure from nn.Dropout: p is
rounded to a multiple of 2^-16 when drawing, not when scaling by 1 / (1 - p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raysim import seeds
from raysim.arrays import UInt64s
from raysim.errors import ModelError

_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""SplitMix64's constants as signed integers: torch multiplies 64-bit integers modulo 2^64."""

PIECE = _MIX_2
"""What the key of a mask rises by from piece to piece of a batch; calls of a layer rise by another number."""


AHEAD = 1 << 15
"""Factors that are drawn at once for local steps to come: a draw of few factors takes as long as one of many."""


class StepKey(NamedTuple):
    """The key of a layer's masks in a client's local step `step`; `of_steps`: int64 (steps,), of all its steps."""

    of_steps: Tensor
    step: int


class StepKeys(NamedTuple):
    """As `StepKey`, of all layers; `now`: int64 (layers,), those of this step."""

    now: Tensor
    of_layers: Sequence[Tensor]
    step: int

    @property
    def each(self) -> list[StepKey]:
        """One for each layer."""
        return [StepKey(of_steps, self.step) for of_steps in self.of_layers]


class _Ahead(NamedTuple):
    """Factors (steps, count) for local steps from `first` on, of a layer with the keys `of_steps`."""

    of_steps: Tensor
    first: int
    factors: Tensor


class Masks:
    """Masks of one layer, times 1 / (1 - p).

    Args:
        p: probability of a zero, in [0, 1].
        like: dtype and device of the masks.
    """

    def __init__(self, p: float, like: Tensor) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"The probability p of a dropout must be in [0, 1], but is {p}.")
        self.p = p
        self._least = round(p * (1 << 16)) - (1 << 15)
        self._scale = 1 / (1 - p) if p < 1 else 0.0
        self._like = like
        self._steps = torch.empty(0, dtype=torch.int64, device=like.device)
        self._draws = torch.empty((2, 0), dtype=torch.int64, device=like.device)
        self._ahead = _Ahead(self._steps, 0, torch.empty((0, 0)))

    @property
    def scratch(self) -> Tensor:
        """What the draws are computed in: no other code reads it."""
        return self._draws

    def draw(self, keys: Tensor, count: int, rows: int = 1) -> Tensor:
        """(*keys.shape, count) factors, 0 or 1 / (1 - p).

        `rows`: in which the factors lie. It changes none of them, but what is computed for them grows by the same
        amount with each row, so that steps of other lengths can be made from a recorded one.
        """
        # A draw is of four factors.
        draws = rows * math.ceil(count / (4 * rows)) if rows else 0
        if len(self._steps) < draws:
            self._steps = torch.arange(1, draws + 1, device=self._like.device).mul_(_GOLDEN)
        numbers = draws * keys.numel()
        if self._draws.shape[1] < numbers:
            # Kept between calls: fresh pages would cost more than the draws.
            self._draws = torch.empty((2, numbers), dtype=torch.int64, device=self._like.device)
        z, spare = (own[:numbers].view(*keys.shape, draws) for own in self._draws)
        torch.add(keys.unsqueeze(-1), self._steps[:draws], out=z)
        _xor_shifted(z, 30, spare)
        _xor_shifted(z.mul_(_MIX_1), 27, spare)
        _xor_shifted(z.mul_(_MIX_2), 31, spare)
        drawn = z.view(torch.int16)[..., :count]
        if self._least >= 1 << 15:
            return torch.zeros(drawn.shape, dtype=self._like.dtype, device=drawn.device)
        kept: Tensor = drawn.ge(self._least)
        return kept.to(self._like.dtype).mul_(self._scale)

    def draw_ahead(self, key: StepKey, count: int, rows: int = 1) -> Tensor:
        """(count,): as `draw` of this step's key; the factors of steps to come may be drawn with it, and kept."""
        of_steps, first, factors = self._ahead
        place = key.step - first
        if of_steps is not key.of_steps or not 0 <= place < len(factors) or count > factors.shape[1]:
            steps = max(1, AHEAD // max(1, count))
            factors = self.draw(key.of_steps[key.step : key.step + steps], count, rows)
            self._ahead = _Ahead(key.of_steps, key.step, factors)
            place = 0
        return factors[place, :count]


def _signed(number: int) -> int:
    """The number modulo 2^64, as torch's integers have it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _xor_shifted(z: Tensor, bits: int, spare: Tensor) -> None:
    """z <- z ^ (z >> bits) on what are unsigned numbers: torch's shift keeps the sign, so it is masked off."""
    torch.bitwise_right_shift(z, bits, out=spare)
    z.bitwise_xor_(spare.bitwise_and_((1 << (64 - bits)) - 1))


def keys(client_keys: Sequence[int] | UInt64s, steps: int, layers: int, device: torch.device) -> Tensor:
    """int64 (layers, steps, clients): the keys of every mask of a round of local training."""
    if not layers:
        return torch.empty((0, steps, len(client_keys)), dtype=torch.int64, device=device)
    clients = np.array(client_keys, dtype=np.uint64)
    address = np.arange(layers)[:, None, None], np.arange(steps)[:, None]
    return torch.from_numpy(seeds.derive(clients, *address).view(np.int64)).to(device)


def keys_of_steps(client_key: int, steps: int, layers: int, device: torch.device) -> Sequence[StepKeys | None]:
    """The keys of one client by local step; None where there are no layers."""
    if not layers:
        return [None] * steps
    found = keys([client_key], steps, layers, device)[:, :, 0]
    of_layers = found.unbind()
    return [StepKeys(now, of_layers, step) for step, now in enumerate(found.unbind(1))]


class AddressedDropout(nn.Dropout):
    """Stands in for an nn.Dropout inside a module that autograd trains; `key` is set before every local step.

    It is one for a forward that asks for the class of a layer.

    A layer that a forward pass calls several times draws from the key's own stream of keys. A module may also read the
    layer's `p` and hand it to a function, such as torch's attention, which then draws from torch's generator. What it
    sets `p` to holds until the next client begins.
    """

    def __init__(self, p: float, like: Tensor) -> None:
        super().__init__(p)
        self._masks = Masks(p, like)
        self._like, self._first = like, p
        self._key = torch.zeros((), dtype=torch.int64)
        self._step_key: StepKey | None = None
        self._calls = 0

    def start(self, key: Tensor, step_key: StepKey | None = None) -> None:
        """Begin a local step; `key` is an int64 scalar. `step_key`: the same, among those of the client's steps."""
        self._key, self._step_key, self._calls = key, step_key, 0

    def put_back(self) -> None:
        """Undo what a forward did to `p`."""
        self.p = self._first

    @property
    def scratch(self) -> Tensor:
        """What masks are computed in."""
        return self._masks.scratch

    def forward(self, x: Tensor) -> Tensor:
        """x times the mask of this call, in training mode."""
        if not self.training:
            return x
        call = self._call()
        if self.p == 0:
            # As torch does: all factors are 1.
            return x
        step_key = self._step_key if call == 0 else None
        if self.p != self._masks.p:
            # Whoever changes it may do so in every step, which those to come would be drawn for in vain.
            self._masks, step_key = Masks(self.p, self._like), None
        rows = len(x) if x.dim() else 1
        if step_key is None:
            key = self._key if call == 0 else self._key + _signed(call * _MIX_1)
            factors = self._masks.draw(key, x.numel(), rows)
        else:
            factors = self._masks.draw_ahead(step_key, x.numel(), rows)
        return x * factors.view(x.shape).to(x.dtype)

    def _call(self) -> int:
        """The number of this call in the local step: in a backward pass, of the call that is computed again."""
        if self._calls and torch._C._current_graph_task_id() != -1:
            if self._calls > 1:
                raise ModelError(
                    "A layer nn.Dropout is called several times in a forward that torch.utils.checkpoint computes "
                    "again, so its masks are not known there: give each call a layer of its own."
                )
            return 0
        self._calls += 1
        return self._calls - 1


def address(module: nn.Module, like: Tensor) -> list[AddressedDropout]:
    """Put an AddressedDropout in the place of every nn.Dropout, and return them in the module's order.

    Each is in the mode of its layer: a module's `train` may leave a part of it in evaluation.
    """
    found: dict[nn.Module, AddressedDropout] = {}
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                if child not in found:
                    found[child] = AddressedDropout(child.p, like)
                    found[child].train(child.training)
                setattr(parent, name, found[child])
    return [child for child in module.modules() if isinstance(child, AddressedDropout)]
