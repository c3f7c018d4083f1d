"""Puts low-rank adapters (Hu et al. 2022) on linear layers by peft, and returns trained ones as peft reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.config.section import Section
from raysim.config.values import Positive
from raysim.errors import ModelError
from raysim.models import changed_modules
from raysim.models.name_patterns import Patterns, matching

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

_HELD = (".lora_A.", ".lora_B.")

_OF_PEFT = frozenset({"lora_A", "lora_B", "base_layer"})
"""Names that peft gives to the parts of a layer with an adapter, by which these are known."""


class Lora(Section):
    """Trains adapters only: a layer W x becomes W x + (alpha / r) B A x, with A (r, in) drawn and B (out, r) zero.

    The server averages A and B apart, and mean(B) mean(A) is not mean(B A). With `freeze_a` (FFA-LoRA, Sun et al. 2024)
    only B is trained, and both are the same.
    """

    r: Annotated[int, Field(ge=1, le=10_000)] = Field(8, description="Rank: rows of A and columns of B.")
    alpha: Positive | None = Field(None, description="Its quotient by r multiplies what adapters add. Absent: r.")
    targets: Patterns = Field(
        min_length=1,
        description="Names of the linear layers that get adapters; * stands for any letters.",
        examples=[["*.q_lin", "*.v_lin"]],
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Probability of dropout before A.")
    freeze_a: bool = Field(False, description="Keep A as it is drawn, and train B only.")
    whole: Patterns = Field(
        (),
        description="Names of other layers, which are trained whole beside the adapters, such as a new head.",
        examples=[["*.classifier"]],
    )


class Adapter(NamedTuple):
    """Trained adapters as peft reads them: its configuration, and tensors by the names in its file.

    whole: the layers that are there with all that they hold.
    """

    config: Any
    tensors: Mapping[str, Tensor]
    whole: Sequence[str]


@dataclass(frozen=True)
class WithLora:
    """A factory of modules with adapters; all other parameters are frozen, except for those that are trained whole."""

    factory: Callable[[], nn.Module]
    section: Lora

    def __call__(self) -> nn.Module:
        module = self.factory()
        return _with_adapters(module, self.section) if isinstance(module, nn.Module) else module


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter."""
    return any(held in name for held in _HELD)


def is_whole(name: str, layers: Iterable[str]) -> bool:
    """Whether a tensor is of one of the layers that are trained whole."""
    return name.startswith(tuple(f"{layer}." for layer in layers))


def base_name(name: str) -> str:
    """Return the name that a parameter has without adapters.

    >>> base_name("encoder.q.base_layer.weight")
    'encoder.q.weight'
    """
    return name.replace(".base_layer.", ".")


def adapter_of(module: nn.Module, section: Lora) -> Adapter:
    """Return the adapters of a module that `WithLora` made.

    Names are those in the module; or in the outermost model of transformers that has all adapters, if there is one:
    a family such as distilbert is a module around such a model.
    """
    targets = [name.partition(_HELD[0])[0] for name, _ in module.named_parameters() if _HELD[0] in name]
    whole = _whole(module, section)
    start = _start(module, [*targets, *whole])
    # peft asks for all that a layer trained whole holds, its buffers too.
    saved = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved}
    tensors = {
        f"base_model.model.{_in_file(name).removeprefix(start)}": value.detach().contiguous()
        for name, value in {**dict(module.named_parameters()), **buffers}.items()
        if is_adapter(name) or is_whole(name, whole)
    }
    inside = ([name.removeprefix(start) for name in names] for names in (targets, whole))
    return Adapter(_config(section, *inside), tensors, whole)


def merged(module: nn.Module) -> dict[str, Any]:
    """Return the state of the module without adapters, by its names: a layer with one has W + (alpha / r) B A.

    Only such weights are new; the rest is the module's own.

    Raises:
        ModelError: such a weight is tied to another one: the module without adapters has one tensor for both.
    """
    tensors = {base_name(name): value for name, value in module.state_dict().items()}
    tensors = {name: value for name, value in tensors.items() if not is_adapter(name)}
    adapted = {name: layer for name, layer in module.named_modules() if hasattr(layer, "get_delta_weight")}
    _check_untied(module, adapted)
    for name, layer in adapted.items():
        weight = tensors[f"{name}.weight"]
        with torch.no_grad():
            added = layer.get_delta_weight("default")
        # A base may be shorter than its adapters.
        tensors[f"{name}.weight"] = (weight.to(added.dtype) + added).to(weight.dtype)
    return tensors


def _check_untied(module: nn.Module, adapted: Iterable[str]) -> None:
    parameters = list(module.named_parameters(remove_duplicate=False))
    own = {f"{name}.base_layer.weight" for name in adapted}
    first = {id(parameter): name for name, parameter in reversed(parameters) if name in own}
    for name, parameter in parameters:
        if (layer := first.get(id(parameter), name)) != name:
            raise ModelError(
                f"merged: {base_name(layer)!r} has an adapter and is tied to {base_name(name)!r}, and without adapters "
                f"both are one tensor: export the adapter alone (--adapter, adapter=True), or the module with it."
            )


def _with_adapters(module: nn.Module, section: Lora) -> nn.Module:
    changed_modules.note(module)
    _check_names(module)
    targets, whole = _targets(module, section), _whole(module, section)
    for layer in whole:
        if both := [name for name in targets if f"{name}.".startswith(f"{layer}.")]:
            raise ModelError(f"model.lora: {both[0]!r} is trained whole, so it takes no adapter: name it in one key.")
    # peft needs transformers, which the check needs too.
    peft = _peft()
    _check_exact(module, targets, whole)
    peft.inject_adapter_in_model(_config(section, targets), module)
    for name, parameter in module.named_parameters():
        if is_adapter(name):
            # peft makes them as short as the layer.
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
            parameter.requires_grad_(not (section.freeze_a and _HELD[0] in name))
        elif is_whole(name, whole):
            parameter.requires_grad_(True)
    return module


def _check_names(module: nn.Module) -> None:
    for name, _ in (*module.named_modules(), *module.named_parameters()):
        if odd := _OF_PEFT.intersection(name.split(".")):
            raise ModelError(
                f"model.lora: the module has {name!r}, and peft calls the parts of a layer with an adapter "
                f"{min(odd)!r}: rename it, or leave model.lora out if it is an adapter of its own."
            )


def _targets(module: nn.Module, section: Lora) -> list[str]:
    layers = [name for name, child in module.named_modules() if type(child) is nn.Linear]
    if layers == [""]:
        raise ModelError("model.lora needs layers with names, but the module is an nn.Linear: put it in nn.Sequential.")
    for pattern in section.targets:
        others = {name: child for name, child in module.named_modules() if name and fnmatchcase(name, pattern)}
        if others and not others.keys() & set(layers):
            name, other = next(iter(others.items()))
            kind = type(other).__name__
            raise ModelError(
                f"model.lora.targets: {pattern!r} matches {name!r}, {'an' if kind[0] in 'AEIOU' else 'a'} {kind}, but "
                f"only layers of the class nn.Linear get adapters: {', '.join(layers[:5]) or 'the module has none'}."
            )
    found = matching(section.targets, layers, "model.lora.targets", "nn.Linear")
    for name in found:
        parent = module.get_submodule(name.rpartition(".")[0])
        if type(parent).__module__.startswith("torch.") and not isinstance(parent, CONTAINERS):
            raise ModelError(
                f"model.lora.targets: {name!r} is a part of torch's {type(parent).__name__}, which reads its weights "
                f"itself, so an adapter would change nothing: target other layers."
            )
    return found


def _whole(module: nn.Module, section: Lora) -> list[str]:
    layers = [name for name, child in module.named_modules() if name and any(True for _ in child.parameters())]
    known = [name for name in layers if "lora_" not in name and not name.endswith(".base_layer")]
    return matching(section.whole, known, "model.lora.whole", "layer")


def _check_exact(module: nn.Module, targets: list[str], whole: list[str]) -> None:
    """Raise ModelError if peft would not reproduce what is trained whole from an exported adapter."""
    if not whole:
        return
    parameters = list(module.named_parameters(remove_duplicate=False))
    for layer in whole:
        own = {id(parameter): name for name, parameter in parameters if name.startswith(f"{layer}.")}
        for name, parameter in parameters:
            if id(parameter) in own and not name.startswith(f"{layer}."):
                raise ModelError(
                    f"model.lora.whole: {own[id(parameter)]!r} is tied to {name!r}, and peft does not reproduce tied "
                    f"weights that are trained whole: leave {layer!r} out."
                )
    start = _start(module, [*targets, *whole])
    for other, _ in module.named_modules():
        # peft takes every layer whose name ends so; one that is not trained it copies as it is.
        ends = next((layer for layer in whole if other.endswith(layer.removeprefix(start)) and other != layer), None)
        changed = any(
            f"{a}.".startswith(f"{b}.") for each in (*targets, *whole) for a, b in ((each, other), (other, each))
        )
        if ends and other not in whole and changed:
            raise ModelError(
                f"model.lora.whole: peft finds layers by the ends of their names, and would take {other!r} for "
                f"{ends!r}: rename one of them, or leave {ends!r} out."
            )


def _start(module: nn.Module, layers: Iterable[str]) -> str:
    """The beginning of the layers' names that is not in an exported adapter."""
    from transformers import PreTrainedModel

    outer = (f"{name}." if name else "" for name, child in module.named_modules() if isinstance(child, PreTrainedModel))
    return next((path for path in outer if all(name.startswith(path) for name in layers)), "")


def _in_file(name: str) -> str:
    # Within a module, peft's adapters have names.
    return re.sub(r"(\.lora_[AB])\.default\.", r"\1.", name)


def _config(section: Lora, targets: Iterable[str], whole: Iterable[str] = ()) -> Any:
    return _peft().LoraConfig(
        r=section.r,
        lora_alpha=section.r if section.alpha is None else section.alpha,
        # A text is a pattern of whole names; those of a list would also match the ends of longer names.
        target_modules="|".join(map(re.escape, targets)),
        lora_dropout=section.dropout,
        modules_to_save=list(whole) or None,
    )


def _peft() -> Any:
    try:
        import peft  # optional, and takes seconds to import
    except ImportError:
        raise ModelError("model.lora needs the package peft: pip install 'raysim[adapters]'") from None
    return peft
