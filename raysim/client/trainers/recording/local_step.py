"""Records a module's local step for one shape of batch, and tries the recording before it is used.

The forward pass, the gradient of the loss at the outputs and autograd's backward pass are recorded together. The
recording is compared with one of another batch and tried on that: outputs and what it writes must be autograd's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.client.dropout import AddressedDropout
from raysim.client.trainers.kernel.kernels import BY_TORCH, Kernels
from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording import another_point, attention, channels_last, convolution
from raysim.client.trainers.recording.counted_rows import by_counted_rows
from raysim.client.trainers.recording.fixed_point import to_fixed_point, without_own_numbers
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.interpreted import interpreted
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.minimal_filtering import by_filtering, gains_by_it
from raysim.client.trainers.recording.own_kernels import by_own_kernels
from raysim.client.trainers.recording.promotion import promoted
from raysim.client.trainers.recording.recurrence import by_passes
from raysim.client.trainers.recording.replay import Replay, ScoredStep, replay
from raysim.client.trainers.recording.resized import SPOILT, Sized, spoil
from raysim.client.trainers.recording.simplify import Program, computed_once, simplified, storage, writes
from raysim.client.trainers.recording.tape import NotRecorded, Op, Slot, Tape, record
from raysim.client.trainers.recording.trial import (
    RESIZED_ROUNDING,
    carried_out,
    check_against_autograd,
    if_carried_out,
    near,
    unchanged,
    undone,
)
from raysim.client.trainers.recording.update import WeightUpdates, updates
from raysim.client.trainers.recording.weighted import (
    Weighted,
    other_tensors,
    outputs_and_gradients,
)
from raysim.errors import DiskError, ResourceError
from raysim.models import memory
from raysim.storage.compiled_c import NoLibraryError

_LSTMS = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
"""Kernels for all places, which prepare for a backward pass only while gradients are on."""

_LSTMS_BACK = frozenset({torch.ops.aten.mkldnn_rnn_layer_backward.default})

MOST_UNROLLED, MOST_PLACES = 40_000, 60
"""Weights between the states of an LSTM, and places of all LSTMs, up to which these are interpreted place by place.
Batches of 4, 10 and 20 texts of 20 places: with 64 numbers a state .5 to .6 of the kernel's time, with 96 .75 to .8,
with 128 (65,536 weights) .95 to 1.04, with 192 1.2 to 1.8. To prepare 80 places takes a second (AMD EPYC, Zen 4)."""


ScoreRows = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(outputs (N, classes), targets, places (N,)) -> losses and hits, from the outputs of those places that count."""


class Recorded(NamedTuple):
    """A recorded step, which may be called in any mode of autograd.

    not_interpreted: why it calls torch's operators, as the end of a sentence; None: the interpreter carries it out.
    sized: what steps of other lengths are made from, if they can be.
    """

    step: ScoredStep
    not_interpreted: str | None
    sized: Sized | None = None


def record_step(
    weighted: Weighted,
    loss_gradient: LossGradient,
    x: Tensor,
    y: Tensor,
    interprets: bool = False,
    kernels: Kernels = BY_TORCH,
    score_rows: ScoreRows | None = None,
) -> Recorded:
    """Record the local step on this batch and on another, and try it; tensors and generators are left as they were.

    `interprets`: the interpreter carries it out where it can. `kernels`: compute what they can. `score_rows`: where not
    all places count, which lets the step make the outputs of those alone that do.

    Raises:
        NotRecorded: the step cannot be repeated, or does something else when it is; says why.
    """
    module, values, keys = weighted.module, weighted.values, weighted.keys
    with undone([*weighted.state, keys, *other_tensors(weighted)]) as put_back, unchanged(module) as check:
        # What dropouts and losses make at their first call is not part of a step.
        with torch.enable_grad():
            outputs = weighted.forward(x.clone())
        loss_gradient(outputs.detach(), y.clone())
        del outputs
        put_back()
        first = _on_tape(weighted, loss_gradient, x.clone(), y.clone())
        put_back()
        another_point.move(module, values, keys)
        batch = another_point.another_batch(x, y)
        second = _on_tape(weighted, loss_gradient, *(one.clone() for one in batch))
        check()
        if not another_point.same(first.tape, first.results, second.tape, second.results):
            raise NotRecorded("is another step for another batch")
        left = [buffer.clone() for buffer in module.buffers()]
        _check_memory(first, weighted)
        program = _program(first, weighted, kernels)
        made = _compiled(program, first, weighted)
        put_back()
        another_point.move(module, values, keys)
        check_against_autograd(made, weighted, batch, second.values, left)
        if kernels.lstm is not None:
            put_back()
            by_lstm = by_passes(program, first.tape.values, kernels.lstm, weighted.flat.dtype)
            passing = None if by_lstm is program else _passing(by_lstm, first, weighted, loss_gradient, (x, y))
            if passing is not None:
                program, made = by_lstm, passing
        why_not = "is not to be interpreted"
        if interprets:
            sized = _interpreted(weighted, loss_gradient, (x, y), _Made(first, program, made), put_back, kernels)
            if not isinstance(sized, str):
                return Recorded(InterpretedStep(sized, made), None, sized)
            why_not = sized
        put_back()
        another_point.move(module, values, keys)
        laid_out = _laid_out(_Made(first, program, made), weighted, kernels, batch)
        if score_rows is None:
            return Recorded(laid_out.step, why_not)
        put_back()
        return Recorded(_of_counted_rows(laid_out, weighted, loss_gradient, (x, y), score_rows), why_not)


def resize_step(
    weighted: Weighted, loss_gradient: LossGradient, batch: tuple[Tensor, Tensor], sized: Sized, otherwise: Replay
) -> Replay:
    """Return the interpreted step of batches as long as this one, made from other lengths, and tried.

    Args:
        weighted, loss_gradient: as of `record_step`.
        batch: x and y.
        sized: of its length.
        otherwise: the same step, which says what is wrong with an index out of its range.

    Raises:
        NotRecorded: the step does something else than autograd.
    """
    step = InterpretedStep(sized, otherwise)
    with _on_fixed(weighted, loss_gradient, batch) as fixed:
        kept = [*weighted.state, *weighted.values, *weighted.written, weighted.keys, *other_tensors(weighted)]
        kept += [*weighted.module.parameters(), *weighted.module.buffers()]
        first, *others = SPOILT
        fixed.begin_again()
        spoil(sized, kept, first)
        made = check_against_autograd(step, weighted, fixed.batch, fixed.wanted, fixed.left, RESIZED_ROUNDING)
        results = [None if one is None else one.clone() for one in (*made, *weighted.state)]
        for byte in others:
            fixed.begin_again()
            spoil(sized, kept, byte)
            again = (*carried_out(step, fixed.batch), *weighted.state)
            pairs = zip(again, results, strict=True)
            if not all(one is None or old is None or torch.equal(one, old) for one, old in pairs):
                raise NotRecorded("reads memory that it has not written")
    return step


class _OnFixed(NamedTuple):
    """What autograd makes of a fixed batch.

    batch: x and y. wanted: outputs, losses, gradients. left: what is in the buffers then. begin_again: puts all back to
    where autograd began.
    """

    batch: tuple[Tensor, Tensor]
    wanted: Sequence[Tensor | None]
    left: Sequence[Tensor]
    begin_again: Callable[[], None]


@contextmanager
def _on_fixed(weighted: Weighted, loss_gradient: LossGradient, batch: tuple[Tensor, Tensor]) -> Iterator[_OnFixed]:
    """Give what a step must make of numbers that shapes alone decide, and put tensors and generators back behind it.

    Whether a step passes a trial must not depend on the batch at hand, which another worker does not have.

    Raises:
        NotRecorded: a trial says nothing.
    """
    with (
        undone([*weighted.state, weighted.keys, *other_tensors(weighted)]) as put_back,
        unchanged(weighted.module) as check,
    ):
        batch = without_own_numbers(weighted, batch[0]), batch[1]
        put_back()
        x, y = to_fixed_point(weighted, batch)
        with undone([*weighted.state, weighted.keys, *other_tensors(weighted)]) as begin_again:
            # Nor on the targets at hand. Only where the first class is masked, as padding is, they are taken.
            for targets in (y,) if y.is_floating_point() else (torch.zeros_like(y), y):
                begin_again()
                with torch.enable_grad():
                    wanted = outputs_and_gradients(weighted, loss_gradient, x.clone(), targets.clone())
                if any(bool(one.any()) for one in wanted[2:] if one is not None):
                    break
            left = [buffer.clone() for buffer in weighted.module.buffers()]
            check()
            if not all(bool(one.isfinite().all()) for one in (*wanted, *left) if one is not None):
                raise NotRecorded("has numbers that are not finite, so a trial says nothing")
            begin_again()
            yield _OnFixed((x, targets), wanted, left, begin_again)


def _passing(
    program: Program, attempt: _Attempt, weighted: Weighted, loss_gradient: LossGradient, batch: tuple[Tensor, Tensor]
) -> Replay | None:
    """The step of another program for the same, which passes a trial on a fixed batch; None: it does not."""
    try:
        step = _compiled(program, attempt, weighted)
        with _on_fixed(weighted, loss_gradient, batch) as fixed:
            check_against_autograd(step, weighted, fixed.batch, fixed.wanted, fixed.left)
    except NotRecorded:
        return None
    return step


def _laid_out(made: _Made, weighted: Weighted, kernels: Kernels, batch: tuple[Tensor, Tensor]) -> _Made:
    """The same with convolutions in C and channels last, where that is another program and can be carried out."""
    attempt, program, _ = made
    convolved = _convolved(program, attempt, weighted, kernels)
    laid_out = channels_last.channels_last(convolved, attempt.tape.values)
    if laid_out is program:
        return made
    step = if_carried_out(lambda: _compiled(laid_out, attempt, weighted), batch)
    return made if step is None else _Made(attempt, laid_out, step)


def _of_counted_rows(
    made: _Made,
    weighted: Weighted,
    loss_gradient: LossGradient,
    batch: tuple[Tensor, Tensor],
    score_rows: ScoreRows,
) -> ScoredStep:
    """The step that makes the outputs of those places alone that count; the same one, where that is not to be had."""
    attempt = made.attempt
    steady = computed_once(attempt.tape, attempt.weights)
    zeros = frozenset(number for number, one in steady.items() if not one.any())
    counted = by_counted_rows(made.program, attempt.tape.values, torch.ops.raysim.class_gradient.default, zeros)
    step = None if counted is None else if_carried_out(lambda: _compiled(counted, attempt, weighted), batch)
    if step is None:
        return made.step
    try:
        with _on_fixed(weighted, loss_gradient, batch) as fixed:
            outputs = fixed.wanted[0]
            assert outputs is not None

            def among_all(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, None]:
                rows, places = step(x, y, alpha)
                every = outputs.flatten(0, -2).clone()
                every[places] = rows
                return every.view(outputs.shape), None

            check_against_autograd(among_all, weighted, fixed.batch, fixed.wanted, fixed.left)
    except NotRecorded:
        return made.step
    return _scored(step, score_rows)


def _scored(step: Replay, score_rows: ScoreRows) -> ScoredStep:
    def scored(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor | None, ...]:
        outputs, places = step(x, y, alpha)
        assert places is not None
        return None, *score_rows(outputs, y, places)

    return scored


@dataclass(frozen=True)
class _Attempt:
    """A tape, the slots of the weights, of x and y and of other tensors that change, and of the results and what these
    are: outputs, losses, gradients."""

    tape: Tape
    weights: Sequence[Slot]
    batch: tuple[Slot, Slot]
    changing: Sequence[Slot]
    results: Sequence[Slot | None]
    values: Sequence[Tensor | None]


def _on_tape(weighted: Weighted, loss_gradient: LossGradient, x: Tensor, y: Tensor) -> _Attempt:
    tape = Tape()
    batch = tape.add(x), tape.add(y)
    weights = [tape.add(p, value) for p, value in zip(weighted.parameters, weighted.values, strict=True)]
    changing = [tape.slot(buffer) for buffer in weighted.module.buffers()]

    with torch.enable_grad():
        values = record(lambda: outputs_and_gradients(weighted, loss_gradient, x, y), tape)
    results = [None if value is None else tape.slot(value) for value in values]
    return _Attempt(tape, weights, batch, changing, results, [None if one is None else one.detach() for one in values])


def _check_memory(attempt: _Attempt, weighted: Weighted) -> None:
    """Raise NotRecorded where the step writes to what it would find as it was, or returns what a later step changes."""
    tape = attempt.tape
    masks = [layer.scratch for layer in weighted.module.modules() if isinstance(layer, AddressedDropout)]
    own = {storage(one) for one in (*weighted.values, *weighted.module.buffers())}
    held = {storage(tape.values[number]) for number in tape.constants}
    written = {storage(tape.values[slot.number]) for op in tape.ops for slot in writes(op)}
    if written & held - own - {storage(one) for one in masks} - {0}:
        raise NotRecorded("writes to a tensor that is neither a weight nor a buffer")
    outputs = attempt.values[0]
    assert outputs is not None
    if storage(outputs) in own - {0}:
        raise NotRecorded("returns a weight or a buffer")


def _program(attempt: _Attempt, weighted: Weighted, kernels: Kernels) -> Program:
    values, dtype = attempt.tape.values, weighted.flat.dtype

    def filters(op: Op) -> bool:
        return kernels.winograd is not None and gains_by_it(op, values, dtype)

    program = simplified(attempt.tape, attempt.weights, attempt.changing, attempt.results)
    return attention.as_products(convolution.as_products(program, values, filters), values, attention.BY_TORCH)


def _updates(program: Program, attempt: _Attempt) -> WeightUpdates:
    *kept, gradients = *program.wanted[:2], program.wanted[2:]
    return updates(program, attempt.weights, gradients, [slot for slot in kept if slot is not None])


def _compiled(program: Program, attempt: _Attempt, weighted: Weighted) -> Replay:
    outputs, losses, *_ = program.wanted
    assert outputs is not None
    changes = _updates(program, attempt)
    step = replay(program, changes, attempt.batch, (outputs, losses), weighted.written, weighted.keep)
    return _with_gradients(step) if any(op.function in _LSTMS for op in program.ops) else _inferring(step)


def _convolved(program: Program, attempt: _Attempt, weighted: Weighted, kernels: Kernels) -> Program:
    """The program with convolutions in C, where they gain by it and there is the kernel."""
    values, dtype = attempt.tape.values, weighted.flat.dtype
    if kernels.winograd is not None:
        program = by_filtering(program, values, kernels.winograd, dtype)
    if kernels.depthwise is not None:
        program = by_own_kernels(program, values, kernels.depthwise, dtype)
    return program


def _by_interpreter(program: Program, attempt: _Attempt, weighted: Weighted, examples: tuple[Tensor, Tensor]) -> Sized:
    program = channels_last.channels_last(program, attempt.tape.values)
    program = attention.as_products(program, attempt.tape.values, attention.INTERPRETED)
    program = promoted(program, attempt.tape.values, weighted.flat.dtype)
    outputs, losses, *_ = program.wanted
    assert outputs is not None
    with torch.inference_mode():
        return interpreted(
            program,
            _updates(program, attempt),
            attempt.batch,
            examples,
            (outputs, losses),
            weighted.written,
            weighted.keep,
        )


class _Made(NamedTuple):
    """A recording, its program, and the step by torch's operators."""

    attempt: _Attempt
    program: Program
    step: Replay


def _interpreted(
    weighted: Weighted,
    loss_gradient: LossGradient,
    batch: tuple[Tensor, Tensor],
    made: _Made,
    put_back: Callable[[], None],
    kernels: Kernels,
) -> Sized | str:
    """The program of the interpreter, or why it is that by torch's operators, as the end of a sentence."""
    try:
        batch = without_own_numbers(weighted, batch[0]), batch[1]
        put_back()
        program, attempt = made.program, made.attempt
        # Without a backward pass, torch's kernel may be called in a pause; earlier runs had no passes.
        left = _LSTMS if kernels.lstm is None else _LSTMS_BACK
        if any(op.function in left for op in program.ops):
            attempt = _place_by_place(weighted, loss_gradient, batch, made, put_back)
            program = _program(attempt, weighted, kernels)
            put_back()
        program = _convolved(program, attempt, weighted, kernels)
        return _by_interpreter(program, attempt, weighted, to_fixed_point(weighted, batch))
    except (NotInterpreted, NoLibraryError) as error:
        return str(error)
    except (DiskError, ResourceError):
        # The machine has no room for a library now: the same run must not be computed in another way for it.
        raise
    except Exception as error:
        if memory.is_lacking(error):
            raise
        # The step was recorded, so torch can carry it out.
        return f"cannot be interpreted ({type(error).__name__}: {error})"


def _place_by_place(
    weighted: Weighted,
    loss_gradient: LossGradient,
    batch: tuple[Tensor, Tensor],
    made: _Made,
    put_back: Callable[[], None],
) -> _Attempt:
    """Record the step without torch's kernel for all places of an LSTM, whose own operators are interpreted.

    Raises:
        NotInterpreted: the kernel is faster.
    """
    values = made.attempt.tape.values
    places = sum(len(values[op.args[0].number]) for op in made.program.ops if op.function in _LSTMS)
    if places > MOST_PLACES:
        raise NotInterpreted(f"has LSTMs over {places:,} places, which take long to prepare")
    states = max(values[op.args[2].number].numel() for op in made.program.ops if op.function in _LSTMS)
    if states > MOST_UNROLLED:
        raise NotInterpreted(f"has an LSTM of {states:,} weights between its states, and torch is faster there")
    # `torch.backends.mkldnn.flags` warns of other settings.
    backend: Any = torch.backends.mkldnn
    is_on = backend.enabled
    try:
        backend.enabled = False
        attempt = _on_tape(weighted, loss_gradient, *to_fixed_point(weighted, batch))
    finally:
        backend.enabled = is_on
    put_back()
    wanted = _on_tape(weighted, loss_gradient, *to_fixed_point(weighted, batch))
    pairs = zip(attempt.values, wanted.values, strict=True)
    if not all(
        one is other is None or (one is not None and other is not None and near(one, other)) for one, other in pairs
    ):
        raise NotInterpreted("has other gradients without torch's LSTM")
    return attempt


def _with_gradients(step: Replay) -> Replay:
    def on(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode(False), torch.enable_grad():
            return step(x, y, alpha)

    return on


def _inferring(step: Replay) -> Replay:
    """Return the step without what torch notes for autograd, which takes a tenth of a small one's time, beside steps by
    autograd too."""

    @wraps(step)
    def inferred(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        if torch.is_inference_mode_enabled():
            # To enter it anew would cost as much again.
            return step(x, y, alpha)
        with torch.inference_mode():
            return step(x, y, alpha)

    return inferred
