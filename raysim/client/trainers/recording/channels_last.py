"""Lets convolutions and poolings of a recorded step work channels last: a pure function on its operators.

torch's kernels are faster over large maps whose channels lie side by side, also with the copies before and behind them.
What follows such an operator number by number, batch norms, and what joins channels stay in this layout, so that few
copies are made; any other operator gets its maps in the order in which they were recorded. So do group norms: channels
last, torch takes a variance as E[x^2] - E[x]^2, which rounds away what is small beside the mean, its backward pass
relies on one layout of all maps, and both passes take longer than the copies, if there are many groups. Convolutions by
minimal filtering (`minimal_filtering.py`) take maps of either layout.

A layout is never needed for the right numbers, except where a view follows: those operators get a map that is
contiguous, as it was. Numbers of poolings stay the same; of equal numbers, both kernels for the maximum take the first.
Convolutions add up in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.recording.minimal_filtering import Filtering
from raysim.client.trainers.recording.own_kernels import OwnKernels
from raysim.client.trainers.recording.simplify import Program, draws, storage, writes
from raysim.client.trainers.recording.tape import Op, Slot, map_slots

_aten = torch.ops.aten
_CONTIGUOUS = _aten.contiguous.default
_CONVOLUTION, _CONVOLUTION_BACKWARD = _aten.convolution.default, _aten.convolution_backward.default
_POOLS = frozenset({_aten.max_pool2d_with_indices.default, _aten.avg_pool2d.default})
_POOLS_BACKWARD = frozenset({_aten.max_pool2d_with_indices_backward.default, _aten.avg_pool2d_backward.default})
_NORMS = frozenset(
    {
        *(_aten.native_batch_norm.default, _aten.native_batch_norm_backward.default),
        _aten._native_batch_norm_legit.default,
    }
)
_BY_NUMBER = frozenset(
    {
        *(_aten.hardswish.default, _aten.hardswish_.default, _aten.hardswish_backward.default),
        *(_aten.hardsigmoid.default, _aten.hardsigmoid_backward.default, _aten.hardtanh_backward.default),
        *(_aten.elu_backward.default, _aten.leaky_relu_backward.default, _aten.softplus_backward.default),
        *(_aten._prelu_kernel.default, _aten._prelu_kernel_backward.default, _aten._to_copy.default),
    }
)
"""Operators that work number by number, of which torch does not say so."""

LEAST_CHANNELS, LEAST_POSITIONS, LEAST_BY_CHANNEL = 3, 144, 64
"""Of the maps before a convolution; the last one of positions, where each channel or few have kernels of their own.

Time in the usual order over time channels last, forward and backward pass, kernels of 3 x 3: from 20 x 64 maps of
24 x 24 1.3, from 10 x 16 maps of 32 x 32 1.4, from 10 x 20 of 24 x 24 1.7, from 20 x 128 of 12 x 12 1.03, from 20 x 256
of 6 x 6 .99, from 20 x 512 of 3 x 3 .8, from 20 x 1 of 28 x 28 .85. A kernel for each channel, 10 x 64 maps of 16 x 16:
1.65 (AMD EPYC, Zen 4).
"""

MOST_BY_GROUP = 4
"""Channels of each of several groups that count as few. Time of 10 x 8 and 10 x 16 maps through three convolutions, two
of them in four groups, .65 and .75; of 20 x 32 and 20 x 64 maps, 8 and 16 in each group, 1.2 and 1.1."""

MOST_COPIED = 0.95
"""Numbers copied, in those before and behind the convolutions that gain.

Time of whole steps channels last in that of the usual order, modules of 8 to 64 channels: of convolutions without norms
or with batch norms (.4) .84 to 1, where all that came before is joined (.9) .86 to .99, of U-nets (.86 and .94) .95 to
1.05, (.99) 1.05 to 1.08, of gates of channels (1.2) 1 to 1.04, and of dropouts, gated halves, shuffled pixels,
reflected borders and other norms (1.4 to 3.8) 1.04 to 1.3.
"""

LEAST_POOLED_CHANNELS, LEAST_POOLED = 16, 1 << 14
"""Channels and numbers of the maps before a pooling. The maximum over 20 x 64 maps of 24 x 24 takes .9 ms for 6.0, over
10 x 32 of 28 x 28 .3 for 1.3; over 10 x 8 of 14 x 14 as long as before, over 32 x 3 of 16 x 16 twice as long. The mean
over 20 x 64 maps of 24 x 24 takes .6 ms for 1.3 (AMD EPYC, Zen 4)."""


def channels_last(program: Program, values: Sequence[Tensor]) -> Program:
    """Return the program with its large maps channels last; the program itself, if it gains nothing.

    Where convolutions need many copies, only poolings work channels last.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
    """
    if not any(op.function in _POOLS or _convolves(op) for op in program.ops):
        return program
    for convolves in (True, False):
        layouts = _Layouts(program, values, convolves)
        laid_out = layouts.program()
        if layouts.gains:
            return laid_out
    return program


class _Layouts:
    """Operators with the layouts of their maps.

    A map is in one of three states: as it was recorded only; channels last only (`_missing` has it, and `_last` the
    slot that stands for it); or both.

    convolves: whether convolutions work channels last, and not poolings alone.
    """

    def __init__(self, program: Program, values: Sequence[Tensor], convolves: bool) -> None:
        self._given, self._values, self._convolves = program, values, convolves
        self._ops: list[Op] = []
        self._last: dict[Slot, Slot] = {}
        self._missing: set[Slot] = set()
        self._convolutions: set[tuple[Slot, Slot]] = set()
        """Maps and kernels of those that work channels last: their backward passes do too."""
        self._copied = self._convolved = 0
        """Numbers copied, and before and behind convolutions that gain."""
        self._free = max([len(values), *(slot.number + 1 for op in program.ops for slot in op.result_slots)])
        self._pinned = _pinned(program, values)
        self._readers: dict[Slot, list[Op]] = {}
        for op in program.ops:
            for slot in set(op.operands):
                self._readers.setdefault(slot, []).append(op)

    def _add(self, op: Op) -> None:
        """Add the next operator, behind the copies that it needs."""
        if isinstance(op.function, Filtering):
            self._add_filtering(op)
            return
        if not self._works_last(op):
            map_slots((op.args, dict(op.kwargs)), self._as_recorded)
            self._ops.append(op)
            for slot in writes(op):
                self._last.pop(slot, None)
            return
        operands = set(op.operands)
        args, kwargs = map_slots((op.args, dict(op.kwargs)), self._channels_last)
        results = map_slots(op.results, lambda slot: self._last[slot] if slot in operands else self._made(slot))
        self._ops.append(replace(op, args=args, kwargs=kwargs, results=results))
        self._missing.update(slot for slot in writes(op) if self._is_map(slot))

    def _add_filtering(self, op: Op) -> None:
        """Minimal filtering takes maps of any layout, and makes one in the layout that its readers ask for."""
        is_backward = op.function.is_backward
        x, made = (op.args[1], op.results[0]) if is_backward else (op.args[0], op.results)
        may = self._convolves and made is not None and self._is_map(made) and made not in self._pinned
        wanted = x in self._last if is_backward else self._is_wanted_last(made)
        makes_last = may and wanted and self._can_be_restored(op)
        if makes_last and not is_backward:
            self._convolved += self._values[x.number].numel() + self._values[made.number].numel()
        layout = torch.channels_last if makes_last else op.function.layout
        args = map_slots(op.args, lambda slot: self._last.get(slot, slot))
        results = map_slots(op.results, lambda slot: self._made(slot) if makes_last and slot == made else slot)
        self._ops.append(replace(op, function=replace(op.function, layout=layout), args=args, results=results))

    @property
    def gains(self) -> bool:
        """Whether any map lies channels last, and convolutions that do gain more than the copies cost."""
        return bool(self._last) and not (self._convolves and self._copied > MOST_COPIED * self._convolved)

    def program(self) -> Program:
        """The program. Gradients of kernels may lie in any order: they are added to the weights number by number."""
        for op in self._given.ops:
            self._add(op)
        outputs, losses, *gradients = self._given.wanted
        for slot in (outputs, losses):
            if slot is not None:
                self._as_recorded(slot)
        wanted = (self._last[slot] if slot in self._missing else slot for slot in gradients)
        return replace(self._given, ops=tuple(self._ops), wanted=(outputs, losses, *wanted))

    def _works_last(self, op: Op) -> bool:
        maps = {slot for slot in (*op.operands, *op.result_slots) if self._is_map(slot)}
        if maps & self._pinned or not self._can_be_restored(op):
            return False
        arguments = op.args
        if op.function in _POOLS:
            return self._is_map(arguments[0]) and (
                arguments[0] in self._missing or _pooling_gains(self._values[arguments[0].number])
            )
        if not self._convolves:
            # A copy of the pooled maps costs less than what one of the maps before would, in the backward pass.
            return False
        if op.function is _CONVOLUTION:
            return self._convolves_last(op)
        if op.function is _CONVOLUTION_BACKWARD or isinstance(op.function, OwnKernels):
            return (arguments[1], arguments[2]) in self._convolutions
        if op.function in _POOLS_BACKWARD:
            return arguments[1] in self._last
        return _follows(op) and any(slot in self._missing for slot in op.operands)

    def _convolves_last(self, op: Op) -> bool:
        x, kernel, *_, transposed, _, groups = op.args
        if transposed or not self._is_map(x):
            return False
        before, weights = self._values[x.number], self._values[kernel.number]
        gains = _convolution_gains(before, weights, groups)
        # A kernel with more numbers than its maps would be copied at every step, for little.
        if weights.numel() > before.numel() or not (gains or x in self._missing):
            return False
        self._convolutions.add((x, kernel))
        if gains:
            self._convolved += before.numel() + self._values[op.result_slots[0].number].numel()
        return True

    def _is_wanted_last(self, slot: Slot) -> bool:
        """Whether what follows the map, number by number in between, gains by channels last, or takes any layout."""
        wanted, unwanted, seen, following = False, False, {slot}, [slot]
        while following:
            for op in self._readers.get(following.pop(), ()):
                if isinstance(op.function, Filtering) or "backward" in op.function.name():
                    continue
                if op.function is _CONVOLUTION:
                    before, kernel = (self._values[one.number] for one in op.args[:2])
                    wanted |= _convolution_gains(before, kernel, op.args[-1])
                elif op.function in _POOLS and self._is_map(op.args[0]):
                    wanted |= _pooling_gains(self._values[op.args[0].number])
                elif _follows(op):
                    following += [one for one in op.result_slots if one not in seen and self._is_map(one)]
                    seen.update(op.result_slots)
                else:
                    unwanted = True
        return wanted or not unwanted

    def _can_be_restored(self, op: Op) -> bool:
        """Whether each result, or a copy of it, has the layout that was recorded: only maps are copied."""
        results = (self._values[slot.number] for slot in op.result_slots if self._is_known(slot))
        return all(one.is_contiguous() and one.dim() <= 4 for one in results)

    def _is_map(self, slot: Slot) -> bool:
        return self._is_known(slot) and _is_map(self._values[slot.number])

    def _is_known(self, slot: Slot) -> bool:
        """Whether it was recorded: slots of operators that took the place of torch's have no values."""
        return slot.number < len(self._values)

    def _as_recorded(self, slot: Slot) -> Slot:
        if slot in self._missing:
            self._copied += self._values[slot.number].numel()
            self._ops.append(_copy(self._last[slot], slot, torch.contiguous_format))
            self._missing.discard(slot)
        return slot

    def _channels_last(self, slot: Slot) -> Slot:
        if not self._is_map(slot):
            return slot
        if slot not in self._last:
            self._copied += self._values[slot.number].numel()
            self._ops.append(_copy(slot, self._made(slot), torch.channels_last))
            self._missing.discard(slot)
        return self._last[slot]

    def _made(self, slot: Slot) -> Slot:
        """A slot that stands for this one channels last, if it is a map."""
        if not self._is_map(slot):
            return slot
        self._last[slot] = Slot(self._free)
        self._free += 1
        self._missing.add(slot)
        return self._last[slot]


def _convolves(op: Op) -> bool:
    return op.function is _CONVOLUTION or (isinstance(op.function, Filtering) and not op.function.is_backward)


def _follows(op: Op) -> bool:
    """Whether the operator keeps a map's layout: it works number by number, joins channels, or is a batch norm. One
    that draws gives its numbers out in the order of memory."""
    is_by_number = torch.Tag.pointwise in op.function.tags or op.function in _BY_NUMBER
    joins_channels = op.function is _aten.cat.default and op.args[1:] == (1,)
    return joins_channels or op.function in _NORMS or (is_by_number and not draws(op))


def _pinned(program: Program, values: Sequence[Tensor]) -> set[Slot]:
    """Slots of memory that some operator writes to, where it stays between steps or more than one slot has it: it would
    miss what is written to a copy, and a copy what is written to another slot."""
    sharing: dict[int, set[Slot]] = {}
    for op in program.ops:
        for slot in (*op.operands, *op.result_slots):
            if slot.number < len(values):
                sharing.setdefault(storage(values[slot.number]), set()).add(slot)
    written = {
        storage(values[slot.number]) for op in program.ops for slot in writes(op) if slot.number < len(values)
    } - {0}
    staying = {storage(one) for one in program.constants.values()}
    return {slot for memory in written if memory in staying or len(sharing[memory]) > 1 for slot in sharing[memory]}


def _copy(slot: Slot, made: Slot, layout: torch.memory_format) -> Op:
    return Op(_CONTIGUOUS, (slot,), {"memory_format": layout}, made)


def _is_map(tensor: Tensor) -> bool:
    """Whether channels last is another order of its numbers; those of kernels count too."""
    is_image = tensor.dim() == 4 and not tensor.is_cuda and tensor.layout == torch.strided and tensor.is_contiguous()
    return is_image and tensor.shape[1] > 1 and prod(tensor.shape[2:]) > 1


def _convolution_gains(x: Tensor, kernel: Tensor, groups: Any) -> bool:
    positions = prod(x.shape[2:])
    if groups > 1 and x.shape[1] // groups <= MOST_BY_GROUP:
        return positions >= LEAST_BY_CHANNEL
    is_wide = groups == 1 and prod(kernel.shape[2:]) > 1
    return is_wide and x.shape[1] >= LEAST_CHANNELS and positions >= LEAST_POSITIONS


def _pooling_gains(x: Tensor) -> bool:
    return x.shape[1] >= LEAST_POOLED_CHANNELS and x.numel() >= LEAST_POOLED
