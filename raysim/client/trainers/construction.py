"""Builds the trainer that a `TrainerChoice` names, ready to work on one device."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import LocalGradient, LocalPoint, ProximalPoint
from raysim.client.objective import LocalObjective
from raysim.client.optimizers import choice as optimizers
from raysim.client.personalisation.personalisation import StepGradients
from raysim.client.section import ClientSection
from raysim.client.trainer import Trainer
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.class_scores import scorer
from raysim.client.trainers.compiled import Compiled, CompiledNetwork
from raysim.client.trainers.cuda_graphs import CardRecorder, Recorder
from raysim.client.trainers.fused import Fused, LayersByHand
from raysim.client.trainers.kernel import depthwise, lstm, operators, winograd
from raysim.client.trainers.kernel.dense import SOURCE, Dense, dense
from raysim.client.trainers.kernel.depthwise import Depthwise
from raysim.client.trainers.kernel.kernel import DenseKernel
from raysim.client.trainers.kernel.kernels import BY_TORCH, NONE_USED, Kernels, KernelsUsed
from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.kernel.winograd import Winograd
from raysim.client.trainers.local_steps import Bend, Point, StepRule
from raysim.client.trainers.one_by_one import OneByOne
from raysim.client.trainers.packed_texts import PackedTexts
from raysim.client.trainers.recognise import KINDS, Recognised, recognise
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.several_points import SeveralPoints
from raysim.client.trainers.stacked import Stacked
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import CALL_AUTOGRAD, Precision, TrainerChoice, TrainerName
from raysim.client.trainers.vmap import Vmap
from raysim.config.form import check_form
from raysim.config.unwritten import check_unwritten, named, versions
from raysim.errors import ResourceError
from raysim.models import changed_torch
from raysim.models.layout import Layout
from raysim.models.model import Model, Weights
from raysim.models.task import Task, squared_error
from raysim.storage.compiled_c import CSource, obstacle

LARGEST_PULL = 0.5
"""lr pull up to which the shortcut of plain SGD is taken: it divides by 1 - lr pull."""


class Further(NamedTuple):
    """What is asked of a trainer beyond the clients' section.

    sums_gradients: the raw gradients' means, even where the section's correction does not ask for them. sums_inverses:
    the sums of 1 over what the client's optimizer divides by. cuda_graphs: graphs of local steps on a card. objective:
    stands in for the task's losses where the trainer has a module. held: names of groups that do not move. several: the
    gradients of a local step that takes several.
    """

    sums_gradients: bool = False
    sums_inverses: bool = False
    cuda_graphs: bool = False
    objective: LocalObjective | None = None
    held: Collection[str] = ()
    several: StepGradients | None = None


ONLY_THE_SECTION = Further()


def make(
    choice: TrainerChoice,
    model: Model,
    like: Weights,
    task: Task,
    section: ClientSection,
    precision: Precision,
    further: Further = ONLY_THE_SECTION,
) -> Trainer:
    """Make it once per worker; its buffers have the lengths, dtype and device of `like`.

    Raises:
        ExperimentError: this process has replaced other functions of torch than the one that chose the trainer.
        ResourceError: this machine lacks what the trainer needs.
    """
    changed_torch.check_same(choice.changed, changed_torch.changes(tuple(KINDS)))
    several = further.several
    rule = rule_for(
        section,
        sums_gradients=further.sums_gradients,
        product_makes_step=choice.trainer != "vmap" and several is None,
        layout=model.params,
        held=further.held,
    )
    rule = replace(rule, sums_inverses=further.sums_inverses)
    products = _products(precision, like)
    recorder = partial(CardRecorder, like.params.device) if further.cuda_graphs and like.params.is_cuda else None
    if choice.trainer in CALL_AUTOGRAD:
        lengths, objective = _recorded_lengths(choice, section), further.objective
        kernels = _kernels(choice, like)
        if several is not None:
            by_operators = StepRecording(lengths, kernels=kernels, from_outputs=choice.from_outputs)
            return SeveralPoints(
                model, like, task, rule, products, step=several, objective=objective, recording=by_operators
            )
        interprets = choice.trainer == "interpreted"
        if interprets and not like.params.is_cuda:
            _check_compiled(operators.SOURCE, like.params.dtype, choice.trainer, "recorded")
        longest = max(section.batch_sizes, default=None) if choice.short_batches == "resized" else None
        recording = StepRecording(lengths, recorder, interprets, kernels, longest, choice.from_outputs)
        pieces = section.accumulate
        return OneByOne(model, like, task, rule, products, objective=objective, recording=recording, pieces=pieces)
    assert several is None, choice.trainer
    if choice.trainer == "vmap":
        return Vmap(model, like, task, rule, products)
    return _by_hand(choice, model, like, task, rule, products, recorder)


def _by_hand(
    choice: TrainerChoice,
    model: Model,
    like: Weights,
    task: Task,
    rule: StepRule,
    products: torch.dtype,
    recorder: Callable[[], Recorder] | None,
) -> Trainer:
    """A trainer on layers whose gradients are written by hand."""
    layers = recognise(model.module())
    assert isinstance(layers, Recognised), layers
    if choice.trainer == "fused":
        kernels = _kernels(choice, like)

        def network(plain: bool) -> LayersByHand | PackedTexts:
            made = LayersByHand(layers, model, like, task, plain, products, kernels)
            return made if kernels.lstm is None else PackedTexts(made, task)

        of_scores = None if kernels.classes is None else scorer(task, kernels.classes)
        return Fused(layers, task, rule, products, network, of_scores)
    # Where the script's machine has no card but the workers have, those take the trainer for cards.
    if choice.trainer == "compiled" and not like.params.is_cuda:
        kernel = _kernel(layers, model, like, task)
        if rule.by_kernel:
            return Compiled(kernel, task, rule, model.params)
        by_gradient = replace(rule, plain=False)
        return Fused(layers, task, by_gradient, products, lambda plain: CompiledNetwork(kernel, like, model.params))
    return Stacked(layers, model, task, rule, products, recorder=recorder)


def step_obstacles(
    model: Model,
    like: Weights,
    task: Task,
    section: ClientSection,
    precision: Precision,
    batch: tuple[Tensor, Tensor],
    interprets: bool,
    used: KernelsUsed = NONE_USED,
) -> StepObstacles:
    """Why the model's local step on this batch cannot be recorded, and if it `interprets`, not be interpreted.

    `used`: what is computed in C.
    """
    plain = rule_for(section, sums_gradients=False, product_makes_step=True).plain
    recording = StepRecording(interprets=interprets, kernels=_made(used, like.params.dtype))
    bound = BoundModule(model, like, task, _products(precision, like), plain=plain, recording=recording)
    bound.load(like)
    return bound.step_obstacles(*batch)


def _kernels(choice: TrainerChoice, like: Weights) -> Kernels:
    """What the choice asks for; a card has its own."""
    if like.params.is_cuda:
        return BY_TORCH
    sources = winograd.SOURCE, lstm.SOURCE, depthwise.SOURCE, operators.SOURCE, operators.SOURCE
    for is_used, source in zip(choice.kernels, sources, strict=True):
        if is_used:
            _check_compiled(source, like.params.dtype, choice.trainer, "one_by_one")
    return _made(choice.kernels, like.params.dtype)


def _made(used: KernelsUsed, dtype: torch.dtype) -> Kernels:
    return Kernels(
        Winograd(dtype) if used.winograd else None,
        CompiledLstm(dtype) if used.lstm else None,
        Depthwise(dtype) if used.depthwise else None,
        dtype if used.classes else None,
        used.counted,
    )


def _recorded_lengths(choice: TrainerChoice, section: ClientSection) -> Collection[int]:
    """Lengths of batches whose local steps are recorded: of full batches, and where it pays of all shorter ones."""
    full = section.batch_sizes if choice.records else frozenset()
    return range(1, max(full) + 1) if full and choice.short_batches != "by autograd" else full


def _products(precision: Precision, like: Weights) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else like.params.dtype


def _kernel(layers: Recognised, model: Model, like: Weights, task: Task) -> DenseKernel:
    line = dense(layers)
    assert isinstance(line, Dense), line
    _check_compiled(SOURCE, like.params.dtype, "compiled", "fused")
    return DenseKernel(line, model.params, like.params.dtype, task.losses is squared_error)


def _check_compiled(source: CSource, dtype: torch.dtype, trainer: TrainerName, otherwise: TrainerName) -> None:
    """ResourceError unless this machine can compile what the trainer needs."""
    if (why := obstacle(source, dtype)) is not None:
        raise ResourceError(
            f"engine.trainer = {trainer!r} needs a C compiler, and a cache to write to, on every machine, but on "
            f"{platform.node()}: {why}. See to that there, or set engine.trainer = {otherwise!r}."
        )


def rule_for(
    section: ClientSection,
    *,
    sums_gradients: bool,
    product_makes_step: bool,
    layout: Layout | None = None,
    held: Collection[str] = (),
) -> StepRule:
    """What the section does to a gradient, and whether plain SGD's shortcut will do.

    `layout`: of the model, where the rule is carried out; a rule that is only looked at has none. `held`: names of
    groups that do not move.
    """
    correction = corrections.make(section.correcting).client
    sums_gradients |= correction.sums(section.is_plain_sgd)
    optimizer = correction.optimizer or optimizers.make(section.optimizer)
    decay = optimizers.gradient_decay(section.optimizer)
    linear = (
        optimizer.affine is not None
        and section.max_grad_norm is None
        and decay == 0
        and section.accumulate == 1
        and correction.bend is None
        and not held
        and not sums_gradients
        and section.optimizer.lr * correction.pull <= LARGEST_PULL
    )
    # Of the point at which the gradient is taken, where there is one, and not of what is stepped.
    at_point = bool(correction.pull) or correction.windows is not None
    proximal = correction.point if isinstance(correction.point, ProximalPoint) else None
    return StepRule(
        optimizer=optimizer,
        max_grad_norm=section.max_grad_norm,
        decay=decay,
        pull=correction.pull,
        anchored=correction.anchored,
        sums_gradients=sums_gradients,
        plain=product_makes_step and linear and not correction.anchored and correction.point is None,
        linear=linear,
        bend=None if layout is None or correction.bend is None else _with_layout(correction.bend, layout),
        held=layout.only(held) if layout is not None and held else None,
        samples=correction.windows is not None,
        point=None if layout is None or correction.point is None else _point_with_layout(correction.point, layout),
        proximal=proximal,
        by_kernel=linear and (correction.point is None or (proximal is not None and not at_point)),
    )


def _point_with_layout(point: Callable[[LocalPoint], Tensor], layout: Layout) -> Point:
    def taken(iterate: Tensor, step: int, lr: float, received: Mapping[str, Tensor]) -> Tensor:
        made = point(LocalPoint(iterate, step, lr, received, layout))
        check_form("ClientHalf.point", "a model", made, iterate)
        return made

    return taken


def _with_layout(bend: Callable[[LocalGradient], Tensor], layout: Layout) -> Bend:
    def bent(gradient: Tensor, params: Tensor, x: Tensor, received: Mapping[str, Tensor]) -> Tensor:
        read = {"params": params, "start": x, **named("received", received)}
        before = versions(*read.values())
        shaped = bend(LocalGradient(gradient, params, x, received, layout))
        check_unwritten("ClientHalf.bend", before, read)
        check_form("ClientHalf.bend", "a gradient", shaped, gradient)
        return shaped

    return bent
