"""Defines the engine's view of a module: its factory, and the layouts of its tensors.

Trainable parameters, floating buffers, integer buffers and frozen parameters are kept apart by construction: only the
first enter norms and the server step; floating buffers are averaged, integer buffers take the maximum, frozen
parameters never travel after the start (docs/algorithms.md, section 0).

Vectors and buffers have the experiment's dtype. So do frozen parameters, unless their own is shorter than that of every
trainable one: a base in bfloat16 under adapters in float32 stays as it is.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor, nn

from raysim import card, seeds
from raysim.config.global_draws import draws
from raysim.config.messages import nearest
from raysim.config.plain import shown
from raysim.config.torch_settings import as_on_workers
from raysim.config.user_call import is_misfit, trace
from raysim.config.values import FilePath, Seed
from raysim.errors import ModelError, RaysimError, within
from raysim.models import holdable, memory
from raysim.models.frozen import Frozen
from raysim.models.frozen_norms import HeldNorms
from raysim.models.layout import Layout
from raysim.models.lora import Lora
from raysim.models.name_patterns import Patterns

Kind = Literal["trainable", "frozen", "a buffer"]

ModuleFactory = Callable[[], nn.Module]


class ModuleTensor(NamedTuple):
    """What a tensor of a module is: every module that the factory makes has the same, in the same order."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.dtype}, shape {self.shape})"


@dataclass(frozen=True)
class Model:
    """A module factory and the layouts of its modules.

    `constants` are the frozen parameters by name: every worker's module gets these values. `parts` are the first
    module's tensors. `seed` is that of the generators while the factory works.
    """

    factory: ModuleFactory
    seed: int
    params: Layout
    buffers: Layout
    counters: Layout
    constants: Frozen
    parts: tuple[ModuleTensor, ...]

    @cached_property
    def digest_of_frozen(self) -> str:
        """See `Frozen.digest`."""
        return self.constants.digest()

    @property
    def record(self) -> dict[str, list[list[object]]]:
        """Names and shapes in the vectors of weights, as JSON has them."""
        return {"params": self.params.record, "buffers": self.buffers.record, "counters": self.counters.record}

    def module(self) -> nn.Module:
        """Return a new module; global generators stay as they are.

        Raises:
            ModelError: the factory failed, or the module's tensors are not like the first one's; names the first that
                differs.
        """
        module = _new_module(self.factory, self.seed, " every time, but it returned {} later")
        parts = _parts(module)
        if parts != self.parts:
            pairs = zip_longest(self.parts, parts, fillvalue="nothing")
            first, other = next(pair for pair in pairs if pair[0] != pair[1])
            raise ModelError(
                f"model= must return the same kind of module every time, but the first has {first} where a later one "
                f"has {other}."
            )
        return module


@dataclass(frozen=True)
class Weights:
    """Values for a model's layouts: params and buffers in the experiment's dtype, counters int64, all flat."""

    params: Tensor
    buffers: Tensor
    counters: Tensor

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three vectors, in the order of the fields."""
        return self.params, self.buffers, self.counters

    def clone(self) -> Weights:
        """Return a copy."""
        return Weights(*(vector.clone() for vector in self.vectors))

    def digest(self) -> str:
        """Return a digest of all values."""
        raw = (vector.cpu().numpy().tobytes() for vector in self.vectors)
        return hashlib.blake2b(b"".join(raw), digest_size=16).hexdigest()

    def to_named(self, model: Model) -> dict[str, Tensor]:
        """Return copies by name, parameters first: the `params` of users."""
        named = model.params.views(self.params) | model.buffers.views(self.buffers)
        named |= model.counters.views(self.counters)
        return {name: tensor.clone() for name, tensor in named.items()}


def create(factory: ModuleFactory, seed: int, dtype: torch.dtype, holds_norms: bool = False) -> tuple[Model, Weights]:
    """Make the module once, with initial weights addressed by the seed, and read its layouts.

    Args:
        factory: returns a new module; it may draw from the global generators of torch, NumPy and Python, which are
            seeded for every call, and restored after it.
        seed: the model's seed.
        dtype: of the weights.
        holds_norms: whether the running statistics of frozen BatchNorm layers stay as they are.

    Raises:
        ModelError: the factory failed, or it does not return a module that raysim can hold.
    """
    if isinstance(factory, nn.Module):
        raise ModelError(
            "model= must be a function that returns a new module, but got a module: pass `lambda: ...`, such as "
            "`lambda: copy.deepcopy(module)`."
        )
    if not callable(factory):
        raise ModelError(f"model= must be a function that returns a new module, but got {shown(factory)}.")
    if holds_norms:
        factory = HeldNorms(factory)
    module = _new_module(factory, seed, ", but it returned {}")
    holdable.check(module)
    trainable = [(n, p.detach()) for n, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise ModelError("The module has no trainable parameter (requires_grad), so there is nothing to learn.")
    least = min(p.dtype.itemsize for _, p in trainable)
    constants = Frozen.of(
        {
            n: p.detach().to(dtype if p.is_floating_point() and p.dtype.itemsize >= least else p.dtype)
            for n, p in module.named_parameters()
            if not p.requires_grad
        }
    )
    floating = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
    # Boolean buffers are masks that the factory makes: they are not learnt, so they stay with the module.
    integer = [(n, b) for n, b in module.named_buffers() if not b.is_floating_point() and b.dtype != torch.bool]
    model = Model(
        factory, seed, Layout.of(trainable), Layout.of(floating), Layout.of(integer), constants, _parts(module)
    )
    weights = Weights(
        model.params.flatten(dict(trainable), dtype),
        model.buffers.flatten(dict(floating), dtype),
        model.counters.flatten(dict(integer), torch.int64),
    )
    return model, weights


def _new_module(factory: ModuleFactory, seed: int, complaint: str) -> nn.Module:
    """Call the factory, with generators that start alike every time; `complaint`: what a message says of its result."""
    key = seeds.key(seed, "model")
    with as_on_workers(), draws():
        card.start_every_generator(key)
        np.random.seed(key % 2**32)
        random.seed(key)
        try:
            # A factory may train what it makes, wherever raysim needs a module.
            with torch.inference_mode(False), torch.enable_grad():
                module = factory()
        except RaysimError:
            raise
        except Exception as error:
            if is_misfit(error):
                raise ModelError(
                    f"model= must be a function that returns a new module and takes no arguments, such as "
                    f"lambda: torch.nn.Linear(784, 10), but called without arguments: {within(error)}."
                ) from error
            raise ModelError(f"model= could not make a module: {error!r}\n{trace(error)}") from None
    if not isinstance(module, nn.Module):
        raise ModelError(f"model= must be a function that returns a torch.nn.Module{complaint.format(type(module))}.")
    for parameter in module.parameters():
        # Of the factory's own training. What forward adds up would be added to it.
        parameter.grad = None
    return module


def _parts(module: nn.Module) -> tuple[ModuleTensor, ...]:
    params: list[tuple[str, Tensor, Kind]]
    params = [(n, p, "trainable" if p.requires_grad else "frozen") for n, p in module.named_parameters()]
    buffers: list[tuple[str, Tensor, Kind]] = [(name, buffer, "a buffer") for name, buffer in module.named_buffers()]
    return tuple(ModuleTensor(name, _shape(tensor), tensor.dtype, kind) for name, tensor, kind in (*params, *buffers))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    # A lazy tensor has none.
    return () if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer) else tuple(tensor.shape)


def replace_params(model: Model, weights: Weights, named: Mapping[str, npt.ArrayLike]) -> Weights:
    """Return the weights with the user's initial values: every trainable parameter, and any named buffers.

    Of a model with frozen parameters none of the trainable ones need be named, and then these begin as they are: an
    adapter begins so on a base that is loaded.

    Raises:
        ModelError: a name is not the model's, a value has another shape, or only some trainable parameters are named.
    """
    _check_mapping(named)
    known = [*(name for part in (model.params, model.buffers, model.counters) for name in part.names), *model.constants]
    if unknown := sorted(set(named) - set(known)):
        frozen = ", of which some are frozen" if model.constants else ""
        raise ModelError(
            f"params= may only name the model's tensors {known}{frozen}, but got {unknown}{nearest(unknown[0], known)}."
        )
    buffers = model.buffers.views(weights.buffers) | {n: named[n] for n in named if n in model.buffers.names}
    counters = model.counters.views(weights.counters) | {n: named[n] for n in named if n in model.counters.names}
    others = set(model.buffers.names) | set(model.counters.names)
    params = {n: value for n, value in named.items() if n not in others}
    dtype = weights.params.dtype
    return Weights(
        weights.params.clone() if model.constants and not params else model.params.flatten_arrays(params, dtype),
        model.buffers.flatten_arrays(buffers, dtype),
        model.counters.flatten_arrays(counters, torch.int64),
    )


def replace_frozen(model: Model, named: Mapping[str, npt.ArrayLike]) -> tuple[Model, Mapping[str, npt.ArrayLike]]:
    """Return the model with those of its frozen parameters that the user names, and the user's other values."""
    _check_mapping(named)
    given = {name: value for name, value in model.constants.items() if name in named}
    values = {}
    for name, value in given.items():
        # One at a time: all of a large base in float64 would not fit.
        layout = Layout.of([(name, value)])
        # Whole numbers beyond 2^53 would be others as floating-point numbers.
        flat = layout.flatten_arrays({name: named[name]}, torch.float64 if value.is_floating_point() else torch.int64)
        held = flat.to(value.dtype)
        if not value.is_floating_point() and not torch.equal(held.to(flat.dtype), flat):
            raise ModelError(f"params[{name!r}] must fit into {value.dtype}, the dtype of {name!r}, but does not.")
        values[name] = layout.views(held)[name]
    others = {name: value for name, value in named.items() if name not in given}
    return replace(model, constants=Frozen.of({**model.constants, **values})), others


def _check_mapping(named: object) -> None:
    if not isinstance(named, Mapping):
        hint = ": pass its state_dict()" if isinstance(named, nn.Module) else ""
        if isinstance(named, str | os.PathLike):
            hint = ": pass safetensors.torch.load_file(...) of it, or name it as model.init"
        raise ModelError(f"params= must be a mapping from names to arrays, but got {type(named).__name__}{hint}.")


def bind(model: Model, weights: Weights, device: torch.device) -> nn.Module:
    """Return a module whose parameters and buffers *are* views of `weights`: writing the vectors loads the model."""
    return bound(model.module(), model, weights, device)


def bound(module: nn.Module, model: Model, weights: Weights, device: torch.device) -> nn.Module:
    """Bind a module that the model's factory made; see `bind`."""
    place_module(module, model, weights.params.dtype, device)
    params = model.params.views(weights.params)
    for name, parameter in module.named_parameters():
        if name in params:
            parameter.data = params[name]
    views = model.buffers.views(weights.buffers) | model.counters.views(weights.counters)
    # Views of a vector share a count of writes. By `.data` each has its own: a forward may write to one buffer after
    # autograd has saved another, as batch norm does.
    views = {name: view.data for name, view in views.items()}
    # A buffer that is registered twice is in the layout once.
    names = {id(buffer): name for name, buffer in module.named_buffers()}
    for child in module.modules():
        for own, buffer in child._buffers.items():
            if buffer is not None and names[id(buffer)] in views:
                child._buffers[own] = views[names[id(buffer)]]
    return module


def place_module(module: nn.Module, model: Model, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Move a module that the model's factory made to a device; its frozen parameters are those of `model.constants`."""
    for parameter, _ in _frozen(module, model, device):
        # It would be converted and moved only to be replaced.
        parameter.data = parameter.data.new_empty(0)
    module.to(device=device, dtype=dtype)
    return share_frozen(module, model, device)


def share_frozen(module: nn.Module, model: Model, device: torch.device) -> nn.Module:
    """Give a module that the model's factory made the frozen parameters of `model.constants`, and change no other."""
    for parameter, value in _frozen(module, model, device):
        parameter.data = value
    if model.constants.num_bytes > memory.SMALLEST_BYTES:
        memory.give_back()
    return module


def _frozen(module: nn.Module, model: Model, device: torch.device) -> list[tuple[nn.Parameter, Tensor]]:
    values = model.constants.on(device)
    return [(parameter, values[name]) for name, parameter in module.named_parameters() if name in values]


class ModelChoice(BaseModel):
    """Keys of every model."""

    seed: Seed | None = Field(None, description="Seed of the initial weights. Absent: the experiment's.")
    init: FilePath | None = Field(
        None,
        description=(
            "Initial values: a safetensors file with the model's names and shapes, such as `raysim export` writes, or "
            "a checkpoint of a run of the same model. Absent: drawn by the seed."
        ),
        examples=["base.safetensors"],
    )
    freeze: Patterns = Field(
        (),
        description="Names of parameters that stay as they are and never travel; * stands for any letters.",
        examples=[["features.*"]],
    )
    lora: Lora | None = Field(
        None, description="Adapters on linear layers, which are trained in place of all else. Absent: none."
    )

    @model_validator(mode="after")
    def _one_choice_of_what_is_trained(self) -> Self:
        if self.lora is not None and self.freeze:
            raise ValueError(
                f"lora freezes all but adapters and lora.whole, but got freeze = {list(self.freeze)}: remove freeze"
            )
        return self
