"""Tries the modules of a script's factory on a client's first examples, before the first round.

Two modules with the same values must give the same outputs and gradients, and one module twice: workers have modules of
their own, and train clients in any order. So a module may hold nothing that is drawn, counted or derived beside its
parameters and buffers, and it must keep the tensors that raysim puts there. Two modules must not hold anything in
common that one of them changes, be it in a class, in a global variable or in a variable around the factory: neither the
values of one nor its training may change what the other gives.

What these few calls do not show is not noticed: what changes after many calls, or on other examples only; what is kept
where no later call looks at it, such as a file; and a part of the very first module, with which all others compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from raysim.client import dropout
from raysim.config import repetition
from raysim.config.global_draws import draws
from raysim.config.own_generators import OwnGenerators
from raysim.engine.cores import on_free_cores
from raysim.errors import ModelError
from raysim.models import changed_modules
from raysim.models.model import Model, Weights, bound, place_module, share_frozen
from raysim.models.probe import unequal_sum

RELATIVE = 1e-3
"""Difference of outputs, relative to the largest, that is none: kernels may add up in another order."""

MOVED = 0.01
"""Other values than the initial ones show a module that holds copies of these."""

PERIOD = 65_537
"""After how many parameters what is added to them comes again: eleven million sines take .2 s. A prime number, so that
no two layers of usual sizes get the same."""

_ELSEWHERE = "an attribute of the class, a global variable, or a variable around the function that makes both"


def check(model: Model, values: Weights, initial: Weights | None, x: Tensor) -> None:
    """Make two more modules, compare them, and call them.

    Args:
        model: of the script's factory.
        values: the values of the first module.
        initial: those that the script passed instead; None: it passed none.
        x: a batch.

    Raises:
        ModelError: says what a module does that makes a run depend on the workers.
    """
    first = model.module()
    frozen = model.constants.digest()
    lay = _Lay.of(first)
    places = {name: (p.device, p.dtype) for name, p in first.named_parameters() if name in model.constants}
    # Before there is a second one: a large base would be in memory twice.
    share_frozen(first, model, x.device)
    try:
        second = model.module()
        _check_new(first, lay, second)
    except ModelError:
        _own_frozen(first, places)
        # The type of its frozen parameters may have changed where both are one, which is then what to say.
        _check_new(first, lay, model.module())
        raise
    _check_values(model, values, second, initial is None)
    # Not before: a factory may return a module of the script's, whose values these would be from then on.
    one, other = (other_values(initial or values, by) for by in (MOVED, -MOVED))
    own = one.clone()
    bound(first, model, own, x.device)
    place_module(second, model, one.params.dtype, x.device)
    masks = {name: buffer.clone() for name, buffer in first.named_buffers() if buffer.dtype == torch.bool}
    trial = _Trial(model, first, second, own, one, other, [], x, masks)
    # Not where modules are made: the first one's values, which the second one must have, are drawn on all cores.
    with on_free_cores():
        evaluated = _check_outputs(trial.turned(training=False))
        _check_outputs(training := trial.turned(training=True))
        _check_added_up(training)
        _check_nothing_stays(trial.turned(training=False), evaluated)
    if model.constants.digest() != frozen:
        raise ModelError(
            "The module's forward writes to a frozen parameter, which all modules of a machine share: register what "
            "changes as a buffer."
        )


class _Trial(NamedTuple):
    """Two modules, the vectors that the first one is bound to, values for both, and a batch.

    masks: the first one's boolean buffers as they were made. training: what the modules were turned to; one whose own
    `train` leaves all its layers in evaluation says so of itself.
    """

    model: Model
    first: nn.Module
    second: nn.Module
    own: Weights
    one: Weights
    other: Weights
    dropouts: list[dropout.AddressedDropout]
    x: Tensor
    masks: Mapping[str, Tensor]
    training: bool = False

    def turned(self, training: bool) -> _Trial:
        """Turn both modules to training or to evaluation."""
        for module in (self.first, self.second):
            module.train(training)
        both = (self.first, self.second) if training else ()
        dropouts = [each for of in both for each in dropout.address(of, self.one.params)]
        return self._replace(dropouts=dropouts, training=training)

    def returned(self, module: nn.Module) -> object:
        """Return what a module gives as it is; its draws start at the same place every time."""
        for layer in self.dropouts:
            layer.start(torch.zeros((), dtype=torch.int64, device=self.x.device))
        if self.training:
            # A trainer starts it at the client's key.
            torch.default_generator.manual_seed(0)
        returned: object = plain(module)(self.x.clone())
        return returned

    def call(self, module: nn.Module) -> _Called:
        """Call a module, and take its gradient in training.

        Raises:
            ModelError: forward turns the module to training or evaluation, or keeps a tensor that is not trained.
        """
        training = module.training
        returned = self.returned(module)
        if module.training != training:
            raise ModelError(
                f"The module's forward changes the module's mode: it calls self.{'eval' if training else 'train'}(), "
                f"or sets self.training. raysim turns modules to training and to evaluation: leave the mode of the "
                f"whole module as it is."
            )
        if not isinstance(returned, Tensor):
            return _Called(returned)
        if self.training and (leaves := _foreign_leaves(module, returned)):
            _check_made_anew(module, leaves, plain(module)(self.x.clone()))
        # It may be a view of a parameter.
        return _Called(returned.detach().clone(), _gradient(module, returned) if self.training else None)

    def give(self, values: Weights, second: Weights | None = None) -> None:
        """Give both modules the values: to the first one as workers do, to the second one as torch's optimizers do.

        `second`: other values for the second one.
        """
        for held, value in zip(self.own.vectors, values.vectors, strict=True):
            held.copy_(value)
        weights = values if second is None else second
        named = self.model.params.views(weights.params) | self.model.buffers.views(weights.buffers)
        named |= self.model.counters.views(weights.counters)
        with torch.no_grad():
            for name, tensor in _tensors(self.second):
                if name in named:
                    tensor.copy_(named[name])


class _Called(NamedTuple):
    """What a module gave, and in training the gradient of a sum of it, in one vector; None: it has none."""

    outputs: object
    gradient: Tensor | None = None

    def is_close(self, other: _Called) -> bool:
        """Whether both are alike."""
        return is_close(self.outputs, other.outputs) and is_close(self.gradient, other.gradient)


class _Lay(NamedTuple):
    """Where a tensor lay, and whether that memory is still somebody's."""

    name: str
    address: int
    memory: StorageWeakRef

    @classmethod
    def of(cls, module: nn.Module) -> list[_Lay]:
        return [
            cls(name, tensor.data_ptr(), StorageWeakRef(tensor.untyped_storage()))
            for name, tensor in _tensors(module)
            if tensor.numel()
        ]


def _own_frozen(module: nn.Module, places: Mapping[str, tuple[torch.device, torch.dtype]]) -> None:
    """Give a module, which may be the script's own, frozen parameters in memory of their own, as they were."""
    for name, parameter in module.named_parameters():
        if name in places:
            device, dtype = places[name]
            parameter.data = parameter.data.to(device, dtype, copy=True)


def _check_new(first: nn.Module, lay: Sequence[_Lay], second: nn.Module) -> None:
    """Raise ModelError if the factory returned the same module, or a part of it, again."""
    known = {id(child) for child in first.modules()}
    if any(id(child) in known for child in second.modules()):
        raise ModelError(changed_modules.NOT_NEW)
    held = {each.address: each.name for each in lay if not each.memory.expired()}
    # A parameter that both have lies where the first one's was put.
    held |= {tensor.data_ptr(): name for name, tensor in _tensors(first) if tensor.numel()}
    for name, tensor in _tensors(second):
        if tensor.numel() and tensor.data_ptr() in held:
            raise ModelError(
                f"model= must make a new module every time, but {name!r} of one lies in the memory of another one's "
                f"{held[tensor.data_ptr()]!r}: copy it inside the function, by clone() or copy.deepcopy."
            )


def _check_values(model: Model, weights: Weights, module: nn.Module, with_params: bool) -> None:
    """Raise ModelError if a module has other values than the first one."""
    first: dict[str, Tensor] = {**model.buffers.views(weights.buffers), **model.counters.views(weights.counters)}
    first |= model.constants
    if with_params:
        first |= model.params.views(weights.params)
    for name, tensor in _tensors(module):
        if name in first and not _is_same(first[name], tensor.detach().to(first[name])):
            raise ModelError(
                f"model= must make the same module every time, but {name!r} of a later one has other values: draw by "
                f"torch's, NumPy's or Python's global functions, whose generators raysim seeds, or pass params=."
            )


def _check_outputs(trial: _Trial) -> tuple[_Called, _Called] | None:
    """Call the modules in the mode that they are in: the first one twice, then both with other values.

    Returns what both give with values of their own; None where a call fails, of which others say why.
    """
    training = trial.training
    with draws(of_torch_too=not training) as drew:
        try:
            trial.give(trial.one)
            once = trial.call(trial.first)
            _check_kept(trial)
            if training:
                # What it did to buffers is undone; in evaluation that is not done.
                trial.give(trial.one)
            own = OwnGenerators(trial.first)
            again = trial.call(trial.first)
            drew_own = own.drew()
            trial.give(trial.other)
            same, alike = trial.call(trial.first), trial.call(trial.second)
            trial.give(trial.one, trial.other)
            apart = trial.call(trial.first), trial.call(trial.second)
        except ModelError:
            raise
        except Exception:
            # The trial of the plan, or the client's training, says why.
            return None
        drawn = drew()
    if drawn:
        where = "NumPy's or Python's global generator" if training else "a global generator in evaluation"
        raise ModelError(
            f"The module's forward drew from {where}, whose draws differ from worker to worker: draw in training "
            f"only, by torch's functions, whose generator raysim starts for every client."
        )
    if drew_own:
        raise ModelError(
            "The module's forward draws from a generator of its own, so its outputs depend on the calls before: draw "
            "by torch's global functions, in training only."
        )
    if not once.is_close(again):
        _check_masks(trial)
        raise ModelError(
            "The module's forward gave other outputs or gradients for the same examples a second time: it draws from a "
            "generator of its own, or counts or changes something from call to call. Draw by torch's global functions, "
            "and keep what it keeps in buffers, in training only."
        )
    if not same.is_close(alike):
        _check_masks(trial)
        raise ModelError(
            "Two modules of model= gave different outputs or gradients for the same values of parameters and buffers: "
            "a module holds something else that was drawn or kept, or a copy or view of a parameter. Draw it by "
            "torch's global functions, register it as a buffer, or compute it in forward."
        )
    if not (once.is_close(apart[0]) and alike.is_close(apart[1])):
        raise ModelError(
            "A module of model= gave other outputs when another one had other values: it computes with a part of that "
            f"one, by {_ELSEWHERE}. Let a module compute with its own parts only."
        )
    return apart


def _check_nothing_stays(trial: _Trial, before: tuple[_Called, _Called] | None) -> None:
    """Raise ModelError if the calls in training have changed what a module gives in evaluation."""
    if before is None:
        return
    try:
        with draws(of_torch_too=True):
            trial.give(trial.one, trial.other)
            after = trial.call(trial.first), trial.call(trial.second)
    except Exception:
        return
    if not (before[0].is_close(after[0]) and before[1].is_close(after[1])):
        _check_masks(trial)
        raise ModelError(
            "After forward passes in training a module of model= gave other outputs in evaluation for the same values "
            "of parameters and buffers: it keeps something in an attribute, or the modules keep it together, in "
            f"{_ELSEWHERE}. Register what training changes as a buffer of the module."
        )


def _check_masks(trial: _Trial) -> None:
    """Raise ModelError if the first module has written to a boolean buffer; see `models.model.create`."""
    for name, buffer in trial.first.named_buffers():
        if name in trial.masks and not torch.equal(buffer, trial.masks[name]):
            raise ModelError(
                f"The module's forward writes to its buffer {name!r} of dtype torch.bool, and what it gives depends on "
                f"that. raysim holds such a buffer as the factory made it, as a mask, and averages none: keep what "
                f"training changes in a buffer of whole numbers, whose maximum over clients goes on, or of "
                f"floating-point numbers."
            )


def _foreign_leaves(module: nn.Module, outputs: Tensor) -> list[Tensor]:
    """Return the tensors that want a gradient of the outputs and are not parameters of the module."""
    own = {id(parameter) for parameter in module.parameters()}
    return [leaf for leaf in _leaves(outputs) if id(leaf) not in own]


def _check_made_anew(module: nn.Module, leaves: Sequence[Tensor], again: object) -> None:
    """Raise ModelError if one of the tensors is there in another forward pass: it is kept, and not trained.

    Forward may make such tensors itself, such as its input where it takes gradients of it.

    Args:
        module: in training.
        leaves: of one forward pass, see `_foreign_leaves`.
        again: what another forward pass gave.
    """
    there = {id(leaf) for leaf in _foreign_leaves(module, again)} if isinstance(again, Tensor) else set()
    for leaf in leaves:
        if id(leaf) in there:
            raise ModelError(
                f"The module's forward computes with a tensor of shape {tuple(leaf.shape)} that wants a gradient and "
                "is none of its parameters, so that it would not be trained. Register it in __init__, as self.w = "
                "torch.nn.Parameter(...), or layers of a list by torch.nn.ModuleList; or hold it still by detach()."
            )


def _leaves(outputs: Tensor) -> Iterator[Tensor]:
    """Yield the tensors at which autograd adds gradients up."""
    waiting, seen = [outputs.grad_fn], set[object]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            yield variable
        waiting.extend(following for following, _ in node.next_functions)


def _check_added_up(trial: _Trial) -> None:
    """Raise ModelError if backward() adds up another gradient in the first module than its outputs have."""
    parameters = _trained(trial.first)
    try:
        with draws():
            trial.give(trial.one)
            called = trial.call(trial.first)
            trial.give(trial.one)
            for parameter in parameters:
                parameter.grad = None
            returned = trial.returned(trial.first)
            if not isinstance(returned, Tensor) or not returned.requires_grad or returned.is_complex():
                return
            unequal_sum(returned).backward()
    except Exception:
        # A client's training says why.
        return
    if {name for name, one in trial.first.named_parameters() if one.requires_grad} != set(trial.model.params.names):
        raise ModelError(
            "The module's forward changes requires_grad of a parameter: set it where the module is made, and leave "
            "parts of a gradient out by detach() or torch.no_grad()."
        )
    added = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    if any(one is not None and one.layout != torch.strided for one in added):
        raise ModelError("A gradient of the module is sparse, and vectors of a model are dense: leave sparse=True out.")
    if called.gradient is None or not is_close(called.gradient, _flat(added, parameters)):
        raise ModelError(
            "The module's forward calls backward(), or torch.utils.checkpoint with use_reentrant=True, so that parts "
            "of a gradient come another way than from the outputs, and would be lost: take gradients in forward by "
            "torch.autograd.grad, and pass use_reentrant=False."
        )


def _gradient(module: nn.Module, outputs: Tensor) -> Tensor | None:
    """Return the gradient of a weighted sum of the outputs."""
    parameters = _trained(module)
    if not outputs.requires_grad or outputs.is_complex():
        return None
    try:
        return _flat(torch.autograd.grad(unequal_sum(outputs), parameters, allow_unused=True), parameters)
    except Exception:
        # A client's training says why.
        return None


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """In one vector; 0 where there is none."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([torch.zeros_like(p).view(-1) if g is None else g.reshape(-1) for g, p in pairs])


def _check_kept(trial: _Trial) -> None:
    """Raise ModelError if forward has put another tensor in the place of a parameter or buffer."""
    model, own = trial.model, trial.own
    views = model.params.views(own.params) | model.buffers.views(own.buffers) | model.counters.views(own.counters)
    for name, tensor in _tensors(trial.first):
        if name in views and tensor.data_ptr() != views[name].data_ptr():
            raise ModelError(
                f"The module's forward puts another tensor in the place of {name!r}, which would be lost: write to the "
                f"one that is there, such as self.{name}.copy_(...)."
            )


def other_values(weights: Weights, by: float = MOVED) -> Weights:
    """Return other values of the same size: numbers in (-by, by) are added to the parameters."""
    params = weights.params.clone()
    steps = torch.arange(1, PERIOD + 1, dtype=torch.float64).sin_().mul_(by).to(params.dtype)
    for part in params.split(PERIOD):
        part.add_(steps[: len(part)])
    return Weights(params, weights.buffers.clone(), weights.counters.clone())


def _tensors(module: nn.Module) -> chain[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def plain(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile was given: to compile it for three calls takes minutes."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def is_close(one: object, other: object) -> bool:
    """Whether two outputs are alike; what is not a tensor of real numbers is refused elsewhere."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.is_complex() or other.is_complex():
        return True
    return one.shape == other.shape and repetition.is_close(one, other, RELATIVE)
