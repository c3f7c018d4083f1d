"""Chooses which trainer trains the clients, and how many of them together: a table, learned from docs/performance.md.

Trainer and K fix the order of additions and with it the bits. So they follow from the experiment, the sizes of its
data, the model, its loss, the kind of device, whether there is a C compiler, and what a script has put in the place of
torch's functions: never from time, memory, workers or the batch at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import nn

from raysim.client.trainers import loss_gradient
from raysim.client.trainers.autograd import in_c
from raysim.client.trainers.class_scores import MANY
from raysim.client.trainers.kernel import depthwise, lstm, operators, winograd
from raysim.client.trainers.kernel.dense import SOURCE, dense
from raysim.client.trainers.kernel.kernels import NONE_USED, KernelsUsed
from raysim.client.trainers.packed_texts import packs
from raysim.client.trainers.recognise import KINDS, Recognised, recognise
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import (
    CALL_AUTOGRAD,
    RECORDED,
    WITH_CLIENT_AXIS,
    Precision,
    ShortBatches,
    TrainerChoice,
    TrainerName,
)
from raysim.errors import ExperimentError, ModelError
from raysim.models import changed_torch
from raysim.models import task as tasks
from raysim.models.lstm import Lstm
from raysim.models.masked import MaskedCrossEntropy
from raysim.models.task import Task
from raysim.storage import compiled_c

TINY = 50_000
"""Numbers of a client up to which a client axis wins on a CPU: beyond it, K sets of weights fall out of its cache."""

TINY_RECURRENT = 20_000
"""The same for recurrent models, whose steps through time torch's kernel takes faster than batched products do."""

RECURRENT_PLACES = 240
"""Examples of a batch times places of an LSTM from which the compiled passes of one client win over a stack of many. Of
2,414 to 15,054 numbers a client takes .3 to .6 of the passes' time in a stack with 40, .6 to 1.2 with 200, 1.0 to 1.6
with 320, and 1.5 to 2.0 with 1,600: all places of all clients fall out of a core's cache (Intel Xeon with AMX)."""

CALL = 1_400
"""Examples of a model with next to no numbers that take the kernel as long as a chunk's other work takes a worker."""

CALL_HALVED = 9_000
"""Numbers of a client at which the kernel takes twice as long for an example as with next to none."""

MOST_COMPILED = 1 << 21
"""Numbers of a client up to which the kernel wins: beyond it, products wait for memory, whoever makes them."""

FEW_ROWS = 64
"""Examples of a local step up to which it does, unless a client is tiny: a library's large products are better."""

SMALL = 500_000
"""Numbers of a client up to which a call should hold several clients, for the call not to be felt."""

STACK_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Numbers of all clients of a stack beyond which more of them win nothing: on a CPU it falls out of a core's cache;
on a card, 256 MB of weights, a guess until it is measured on one."""

BY_PLACES: tuple[TrainerName, ...] = ("recorded", "fused")
"""Trainers that compute cross entropy over many classes in C: torch takes a pass over all outputs for each operator."""

SHORT_STEPS = MappingProxyType({"recorded": 4.0, "interpreted": 1.0})
"""Local steps of each short length in a round from which these lengths are recorded: to record one costs 8 to 91 ms, as
much as some fifty recorded steps save, and to make an interpreted one from those of two other lengths costs 3 to 20."""

MOST_SHAPES = MappingProxyType({"recorded": 500_000, "interpreted": 1_500_000})
"""Numbers of a client up to which they are: beyond it, that costs more than it saves."""

FILTERING: tuple[TrainerName, ...] = (*RECORDED, "fused")
"""Trainers that may compute any convolution by minimal filtering; for "one_by_one" see `in_c.gained`."""

MOST_INTERPRETED = 1_500_000
"""Numbers of a client up to which recorded steps are interpreted: with 4.1 million in dense layers torch's products
take three quarters of the time, with 1.4 million in a transformer as long, and with fewer longer (AMD EPYC, Zen 4)."""

MOST_INTERPRETED_LAYERS = 500_000
"""The same of layers that have a hand-written backward, which takes 1.1 to 2.3 times as long up to there."""

MANY_OUTPUTS = 700_000
"""Numbers of outputs of a batch from which local steps are recorded and not interpreted, where there are many classes.
Of transformers of 157,024 to 1.4 million numbers for texts of which 60 to 70 % of the places count, interpreted takes
1.2 to 1.8 of recorded's time from .8 million outputs on, 1.0 to 1.05 with .6, and .8 to .9 with .2 to .3; where all
places count, 1.0 to 1.4 from .8 million on (Intel Xeon with AMX)."""

NO_SHAPE = "with client.batch_size = 'full' every client's batch has a shape of its own"
"""Why no step is recorded."""

OVERHEAD = {"cpu": 300, "cuda": 3_000}
"""Examples of a model with next to no numbers that take as long as what a local step of a stack costs whoever is in it;
on a card a guess until it is measured on one."""

OVERHEAD_HALVED = 2_500
"""Numbers of a client at which an example takes twice as long as with next to none."""


Steps = Callable[[bool, KernelsUsed], StepObstacles]
"""(interprets, kernels) -> why a module's local step cannot be recorded, and if it `interprets`, not be interpreted."""


@dataclass(frozen=True)
class TrainingConditions:
    """What a trainer is chosen by, beside the module and its loss.

    trainer, chunk_size, precision, dtype, threads: of the engine's section; the kernel takes one thread. device_kind:
    "cpu" or "cuda". batch_size: examples of a local step. by_kernel: whether the kernel can compute it whole
    (`StepRule.by_kernel`). short_steps: local steps of each short length in a round (engine/plan/short_batches.py).
    classes: of the data's labels; 0 where they are none. labels: of an example. places: that an LSTM goes through in
    an example, the first axis of x; where a forward makes them of another axis, the choice may be the slower one.
    gradients: of a local step; "several": of a batch at several points, "twice": with the Hessian. accumulate: pieces
    of a batch.
    """

    trainer: TrainerName | Literal["auto"]
    chunk_size: int | Literal["auto"]
    precision: Precision
    dtype: Literal["float32", "float64"]
    threads: int
    device_kind: str
    batch_size: int | Literal["full"]
    by_kernel: bool
    short_steps: float = 0.0
    places: int = 0
    classes: int = 0
    labels: int = 1
    gradients: Literal["one", "several", "twice"] = "one"
    accumulate: int = 1

    @property
    def has_few_rows(self) -> bool:
        """Whether a local step has so few examples that the kernel's products are the faster ones."""
        return self.batch_size != "full" and self.batch_size <= FEW_ROWS


def choose(
    given: TrainingConditions,
    module: nn.Module,
    task: Task,
    objective: str | None,
    steps: Steps,
    layers: Callable[[], Recognised | str] | None = None,
) -> TrainerChoice:
    """Resolve what the experiment leaves open, and refuse what cannot be had.

    Args:
        given: see there.
        module: as the factory makes it.
        task: losses and hits.
        objective: why an objective needs the module, so that the task's losses do not say what clients minimise.
        steps: called only if needed.
        layers: returns the module's layers, or why it is not recognised, where it was tried; None: it is not tried.

    Raises:
        ExperimentError: bf16 or tf32 with float64 weights; tf32 without a card.
        ModelError: a trainer, or pieces of a batch, that the module or its loss does not allow.
    """
    _check_precision(given)
    if given.accumulate > 1:
        _check_pieces(module, task)
    changed = changed_torch.changes(tuple(KINDS))
    numbers, kind = sum(p.numel() for p in module.parameters() if p.requires_grad), given.device_kind
    only = _only(given, objective, changed)
    layers = layers or partial(recognise, module)
    if given.trainer != "auto":
        name, why = _asked_for(given, module, task, only, steps, layers), "the experiment asks for it"
    elif only is None:
        name, why = _best(given, module, task, numbers, steps, layers)
    else:
        name, why = _best_of(only, given, steps)
    overhead = round(OVERHEAD[kind] / (1 + numbers / OVERHEAD_HALVED)) if name in WITH_CLIENT_AXIS else 0
    short = _short_batches(given, name, numbers)
    # A mode, or a function in the place of torch's, is to see each convolution.
    kernels = NONE_USED if changed else _kernels_used(given, name, module)
    has_own_loss = objective is None and loss_gradient.by_example(task)
    if has_own_loss and not changed:
        classes = _has_many_classes(given, name, task)
        counted = classes and name == "recorded" and isinstance(task.losses, MaskedCrossEntropy)
        kernels = kernels._replace(classes=classes, counted=counted)
        if name == "fused":
            kernels = kernels._replace(lstm=_packs(given, task, layers))
    # What stands in the place of torch's loss is called, so steps begin with it.
    from_outputs = name in CALL_AUTOGRAD and has_own_loss and given.accumulate == 1 and not changed
    if given.chunk_size != "auto":
        return TrainerChoice.of_size(name, given.chunk_size, overhead, why, short, changed, kernels, from_outputs)
    call = round(CALL / (1 + numbers / CALL_HALVED)) if name == "compiled" else 0
    return TrainerChoice(name, *_sizes(name, numbers, kind), overhead, call, why, short, changed, kernels, from_outputs)


def _check_precision(given: TrainingConditions) -> None:
    precision, dtype, kind = given.precision, given.dtype, given.device_kind
    if precision != "float32" and dtype != "float32":
        raise ExperimentError(f"engine.precision = {precision!r} needs engine.dtype = 'float32', but got {dtype!r}.")
    if precision == "tf32" and kind != "cuda":
        raise ExperimentError(
            f"engine.precision = 'tf32' is a precision of NVIDIA cards, and clients would be trained on {kind} "
            f"here: take 'float32', or 'bf16'."
        )


class _Only(NamedTuple):
    """The only trainers that can do what is asked for, and what that is."""

    trainers: tuple[TrainerName, ...]
    why: str


def _only(given: TrainingConditions, objective: str | None, changed: Sequence[str]) -> _Only | None:
    """Return what restricts the trainers, whatever the module is; None: nothing does."""
    one: tuple[TrainerName, ...] = ("one_by_one",)
    if changed:
        return _Only(one, f"there is {', '.join(changed)}, and the other trainers do not call that")
    if given.accumulate > 1:
        return _Only(one, f"client.accumulate = {given.accumulate} adds gradients of autograd")
    if given.gradients == "twice":
        return _Only(one, "client.personalisation differentiates twice, so it needs the module and autograd")
    if objective is not None:
        return _Only(one, f"objective= {objective}, so it needs the module and autograd")
    if given.gradients == "several":
        points = "client.personalisation takes gradients of a batch at several points"
        return _Only(("one_by_one", "recorded"), points)
    return None


def _asked_for(
    given: TrainingConditions,
    module: nn.Module,
    task: Task,
    only: _Only | None,
    steps: Steps,
    layers: Callable[[], Recognised | str],
) -> TrainerName:
    """Return the trainer that the experiment names; ModelError if it cannot be used."""
    assert given.trainer != "auto"
    cannot = f"engine.trainer = {given.trainer!r} cannot be used"
    if only is not None and given.trainer not in only.trainers:
        raise ModelError(f"{cannot}: {only.why}: take {' or '.join(map(repr, only.trainers))}.")
    if reason := _obstacle(given.trainer, given, module, task, steps, layers):
        raise ModelError(f"{cannot}: {reason}.")
    return given.trainer


def _best_of(only: _Only, given: TrainingConditions, steps: Steps) -> tuple[TrainerName, str]:
    """Return the fastest of the trainers that can do what is asked for, and why it is that one."""
    if "recorded" not in only.trainers:
        return "one_by_one", only.why
    if missing := _not_recorded(given, lambda: steps(False, NONE_USED).recorded):
        return "one_by_one", f"{only.why}; its local step is not recorded: {missing}"
    return "recorded", only.why


def _check_pieces(module: nn.Module, task: Task) -> None:
    """Refuse to divide a batch whose examples depend on each other."""
    rule = "client.accumulate divides a batch"
    # A module's own `train` may leave a norm in evaluation.
    for name, child in module.train().named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.training:
            raise ModelError(f"{rule}, but BatchNorm {name!r} takes its statistics over the whole one: leave it out.")
    if not loss_gradient.by_example(task):
        raise ModelError(f"{rule}, but a loss of your own may look at the whole one: leave it out.")


def _best(
    given: TrainingConditions,
    module: nn.Module,
    task: Task,
    numbers: int,
    steps: Steps,
    layers: Callable[[], Recognised | str],
) -> tuple[TrainerName, str]:
    if obstacle := _not_fused(layers):
        interprets = _may_interpret(given, numbers, MOST_INTERPRETED) and not _has_many_outputs(given, task)
        if given.batch_size == "full":
            return "one_by_one", f"{obstacle}; its local step is not recorded either: {NO_SHAPE}"
        found = steps(interprets, _kernels_used(given, "interpreted", module) if interprets else NONE_USED)
        if found.recorded is not None:
            return "one_by_one", f"{obstacle}; its local step is not recorded either: {found.recorded}"
        if not interprets:
            return "recorded", f"{obstacle}, but its local step can be recorded"
        if found.interpreted is not None:
            return "recorded", f"{obstacle}, but its local step can be recorded; {found.interpreted}"
        return "interpreted", f"{obstacle}, but its local step is made of operators that raysim compiles"
    recurs = _has_lstm(module) and _kernels_used(given, "recorded", module).lstm
    is_tiny = numbers <= TINY
    if any(isinstance(child, Lstm) for child in module.modules()):
        # In another precision the passes are recorded, which pays from larger models on.
        wins = recurs and given.precision == "float32" and _are_many(given)
        is_tiny = numbers <= TINY_RECURRENT and not wins
    is_small = is_tiny or (numbers <= MOST_COMPILED and given.has_few_rows and given.threads == 1)
    lacking = ""
    if given.by_kernel and is_small and _not_for_kernel(given, layers, task) is None:
        if (missing := compiled_c.obstacle(SOURCE, getattr(torch, given.dtype))) is None:
            return "compiled", f"{numbers:,} numbers a client in dense layers, for which there is a compiled kernel"
        lacking = f"; the compiled kernel would be faster, but {missing}"
    kind = given.device_kind
    if (kind != "cpu" or is_tiny) and _not_by_rows(task) is None:
        return "stacked", f"{numbers:,} numbers a client: many of them share a call on {kind}{lacking}"
    most = MOST_INTERPRETED if recurs else MOST_INTERPRETED_LAYERS
    many = _has_many_outputs(given, task)
    if not many and _may_interpret(given, numbers, most) and _interpreted(given, module, steps) is None:
        return (
            "interpreted",
            f"{numbers:,} numbers a client, and a local step of operators that raysim compiles",
        )
    if recurs and _packs(given, task, layers):
        return "fused", f"{numbers:,} numbers a client, and LSTMs that go through the places of texts that count alone"
    if recurs and _not_recorded(given, lambda: steps(False, _kernels_used(given, "recorded", module)).recorded) is None:
        return "recorded", f"{numbers:,} numbers a client, and LSTMs that raysim compiles"
    return "fused", f"{numbers:,} numbers a client, and every layer has a hand-written backward{lacking}"


def _has_many_outputs(given: TrainingConditions, task: Task) -> bool:
    """Whether a batch has so many outputs for classes that what is done with each of them decides."""
    if given.batch_size == "full" or not _has_many_classes(given, "recorded", task):
        return False
    return given.batch_size * given.labels * given.classes >= MANY_OUTPUTS


def _are_many(given: TrainingConditions) -> bool:
    """Whether a batch has so many places of an LSTM that the passes of one client win."""
    return given.batch_size != "full" and given.batch_size * given.places >= RECURRENT_PLACES


def _obstacle(
    trainer: TrainerName,
    given: TrainingConditions,
    module: nn.Module,
    task: Task,
    steps: Steps,
    layers: Callable[[], Recognised | str],
) -> str | None:
    """Why the trainer cannot be had, or None. A user's module is looked into only where the trainer does."""
    match trainer:
        case "one_by_one":
            return None
        case "recorded":
            return _not_recorded(given, lambda: steps(False, NONE_USED).recorded)
        case "interpreted":
            return _not_for_interpreter(given) or _not_recorded(given, lambda: _interpreted(given, module, steps))
        case "fused":
            return _not_fused(layers)
        case "stacked":
            return _not_by_rows(task) or _not_fused(layers)
        case "vmap":
            return _not_by_rows(task) or _not_vmap(module)
        case "compiled":
            return _not_for_kernel(given, layers, task) or compiled_c.obstacle(SOURCE, getattr(torch, given.dtype))


def _interpreted(given: TrainingConditions, module: nn.Module, steps: Steps) -> str | None:
    """Why a local step cannot be interpreted, or None."""
    return steps(True, _kernels_used(given, "interpreted", module)).interpreted


def _short_batches(given: TrainingConditions, trainer: TrainerName, numbers: int) -> ShortBatches:
    """How local steps of short batches are taken."""
    if trainer not in RECORDED or numbers > MOST_SHAPES[trainer] or given.short_steps < SHORT_STEPS[trainer]:
        return "by autograd"
    return "resized" if trainer == "interpreted" else "recorded"


def _kernels_used(given: TrainingConditions, trainer: TrainerName, module: nn.Module) -> KernelsUsed:
    """What is computed in C in the place of torch's operators."""
    fits = given.device_kind == "cpu" and given.threads == 1
    if not fits or given.dtype != "float32":
        return NONE_USED
    recurs = trainer in RECORDED and _has_lstm(module) and compiled_c.obstacle(lstm.SOURCE, torch.float32) is None
    if given.precision != "float32":
        # LSTMs alone are in float32 then, too.
        return KernelsUsed(lstm=recurs)
    gained = in_c.gained(module) if trainer == "one_by_one" else NONE_USED
    filters = trainer in FILTERING and any(winograd.may_gain(p.shape) for p in module.parameters())
    by_channel = trainer in RECORDED and depthwise.any_in(module)
    return KernelsUsed(
        (filters or gained.winograd) and compiled_c.obstacle(winograd.SOURCE, torch.float32) is None,
        recurs,
        (by_channel or gained.depthwise) and compiled_c.obstacle(depthwise.SOURCE, torch.float32) is None,
    )


def _packs(given: TrainingConditions, task: Task, layers: Callable[[], Recognised | str]) -> bool:
    """Whether hand-written layers train LSTMs on packed texts."""
    if given.device_kind != "cpu" or given.threads != 1 or given.dtype != "float32":
        return False
    found = layers()
    obstacles = (compiled_c.obstacle(source, torch.float32) for source in (lstm.SOURCE, operators.SOURCE))
    return isinstance(found, Recognised) and packs(found, task) and all(one is None for one in obstacles)


def _has_many_classes(given: TrainingConditions, trainer: TrainerName, task: Task) -> bool:
    """Whether the gradient of cross entropy, and its scores, are computed in C."""
    fits = given.device_kind == "cpu" and given.threads == 1 and given.dtype == "float32"
    gains = trainer in BY_PLACES and given.classes >= MANY and loss_gradient.has_classes(task)
    return fits and gains and compiled_c.obstacle(operators.SOURCE, torch.float32) is None


def _has_lstm(module: nn.Module) -> bool:
    return any(isinstance(child, nn.LSTM | Lstm) for child in module.modules())


def _sizes(trainer: TrainerName, numbers: int, device_kind: str) -> tuple[int, int, int]:
    """The usual and the largest size of a chunk, and the least number of chunks."""
    if trainer in WITH_CLIENT_AXIS:
        held = STACK_NUMBERS[device_kind] // max(1, numbers)
        if device_kind != "cpu":
            most = min(512, max(1, held))
            return min(128, most), most, 2
        return (64, min(512, max(64, held)), 3) if numbers <= TINY else (4, 4, 3)
    if trainer == "compiled" and numbers <= TINY:
        return 64, 64, 4
    # A call costs about a millisecond of every worker's time: a chunk should hold fifty times that.
    usual, least_chunks = (32, 8) if numbers <= TINY else (16, 8) if numbers <= SMALL else (4, 16)
    return usual, usual, least_chunks


def _not_recorded(given: TrainingConditions, not_recorded: Callable[[], str | None]) -> str | None:
    if given.batch_size == "full":
        return NO_SHAPE
    return not_recorded()


def _not_fused(layers: Callable[[], Recognised | str]) -> str | None:
    found = layers()
    return found if isinstance(found, str) else None


def _not_for_kernel(given: TrainingConditions, layers: Callable[[], Recognised | str], task: Task) -> str | None:
    """Why the kernel does not do it, on a machine that has one."""
    if given.device_kind != "cpu":
        return f"the kernel is for CPUs, and clients would be trained on {given.device_kind}"
    if given.precision != "float32":
        return f"the kernel has no products in {given.precision}"
    if task.losses not in (tasks.cross_entropy, tasks.squared_error):
        return "the kernel knows cross entropy and the squared error, and this is another loss"
    found = layers()
    line = found if isinstance(found, str) else dense(found)
    return line if isinstance(line, str) else None


def _may_interpret(given: TrainingConditions, numbers: int, most: int) -> bool:
    """Whether a local step should be interpreted where it can be."""
    has_shapes = given.batch_size != "full" and given.threads == 1
    return has_shapes and numbers <= most and _not_for_interpreter(given) is None


def _not_for_interpreter(given: TrainingConditions) -> str | None:
    """Why no step is interpreted, on a machine that has a compiler."""
    if given.device_kind != "cpu":
        return f"the interpreter is for CPUs, and clients would be trained on {given.device_kind}"
    if given.precision != "float32":
        return f"the interpreter has no products in {given.precision}"
    return None


def _not_by_rows(task: Task) -> str | None:
    if loss_gradient.by_rows(task):
        return None
    if task.weights is not None:
        return "the mean over a batch's places divides by their number, which differs between the clients here"
    return "a loss of your own may look at its whole batch, which holds several clients here"


def _not_vmap(module: nn.Module) -> str | None:
    if any(True for _ in module.buffers()):
        return "modules with buffers have no client axis under vmap"
    for name, parameter in module.named_parameters():
        # torch.func passes other tensors in their place.
        if type(parameter) is not nn.Parameter or parameter._backward_hooks:
            return f"parameter {name!r} has a class or a hook of its own, which no value in its place has"
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase | Lstm):
            return f"{type(child).__name__} {name!r} has no batching rule in torch"
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
            return f"{type(child).__name__} {name!r} draws, which vmap does not do per client"
    return None
