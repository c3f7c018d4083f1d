"""Knows the modules of factories in which parameters were frozen, or that got adapters, and puts them back.

A factory that returns a module of the script's again and again is refused. The script may go on with that module, so it
must not stay changed.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import nn

from raysim.errors import ModelError

NOT_NEW = (
    "model= must make a new module every time, but two of its modules are the same, or have a layer in common: make "
    "the layers inside the function, or copy them there, by copy.deepcopy."
)


class _Before(NamedTuple):
    """What a module was: whether each parameter is trained, and of each part the layers and attributes, by name.

    It holds no part of the module: the entries of a module that is gone go with it.
    """

    trained: list[tuple[nn.Parameter, bool]]
    parts: list[tuple[ref[nn.Module], dict[str, ref[nn.Module] | None], frozenset[str]]]

    @classmethod
    def of(cls, module: nn.Module) -> _Before:
        trained = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
        parts = []
        for part in module.modules():
            layers = {name: None if layer is None else ref(layer) for name, layer in part._modules.items()}
            parts.append((ref(part), layers, frozenset(vars(part))))
        return cls(trained, parts)

    def put_back(self) -> None:
        for held, layers, attributes in self.parts:
            if (part := held()) is not None:
                _BEFORE.pop(part, None)
                part._modules.update({name: None if layer is None else layer() for name, layer in layers.items()})
                for name in vars(part).keys() - attributes:
                    delattr(part, name)
        for parameter, is_trained in self.trained:
            parameter.requires_grad_(is_trained)


_BEFORE: WeakKeyDictionary[nn.Module, _Before] = WeakKeyDictionary()
"""By each part of a module that was changed."""


def note(module: nn.Module) -> None:
    """Note a module that is about to be changed.

    Raises:
        ModelError: a part of it was changed before; that change is undone.
    """
    parts = list(module.modules())
    for part in parts:
        if (before := _BEFORE.get(part)) is not None:
            before.put_back()
            raise ModelError(NOT_NEW)
    before = _Before.of(module)
    for part in parts:
        _BEFORE[part] = before
