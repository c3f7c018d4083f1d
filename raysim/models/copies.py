"""Makes modules as copies of one, without its parameters' values, which `bind` gives them.

A factory draws or reads these values for every module, only to have them replaced: for that time a frozen base would
lie in the memory of each worker once more. Copies need neither that memory nor what the factory itself holds.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Copies:
    """A factory of copies of a module, whose parameters have shapes and no memory.

    content: a pickle of the module. beside: what it names by number, so that the pickle can be read in any process:
    parameters, and classes and functions, which copies share as modules of one factory do.
    """

    content: bytes
    beside: tuple[Any, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Copies:
        """Prepare copies of this module.

        Raises:
            Exception: it holds what cannot be copied: what no pickle can have, a function with variables around it, a
                parameter of a class of its own or with hooks.
        """
        file = io.BytesIO()
        writer = _Writer(file)
        writer.dump(module)
        return cls(file.getvalue(), tuple(writer.beside))

    def __call__(self) -> nn.Module:
        """Return a new copy."""
        copy: nn.Module = _Reader(self).load()
        return copy


@dataclass(frozen=True)
class _Blank:
    dtype: torch.dtype
    shape: torch.Size
    is_trained: bool
    attributes: dict[str, Any]

    @classmethod
    def of(cls, parameter: nn.Parameter) -> _Blank:
        if type(parameter) is not nn.Parameter or parameter._backward_hooks:
            raise pickle.PicklingError(f"a {type(parameter).__name__} of a class of its own or with hooks")
        return cls(parameter.dtype, parameter.shape, parameter.requires_grad, dict(vars(parameter)))

    def parameter(self) -> nn.Parameter:
        # Whoever reads it before it has values shall notice.
        value = torch.full((), float("nan") if self.dtype.is_floating_point else 0, dtype=self.dtype)
        copy = nn.Parameter(value.expand(self.shape), self.is_trained)
        vars(copy).update(self.attributes)
        return copy


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.beside: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, held: Any) -> int | None:
        if not isinstance(held, nn.Parameter | type | FunctionType):
            return None
        if id(held) not in self._numbers:
            # The variables around a function may be parts of this module, of which copies have their own.
            if isinstance(held, FunctionType) and held.__closure__ and not _is_global(held):
                raise pickle.PicklingError(f"the function {held.__qualname__} has variables around it")
            self._numbers[id(held)] = len(self.beside)
            self.beside.append(_Blank.of(held) if isinstance(held, nn.Parameter) else held)
        return self._numbers[id(held)]


class _Reader(pickle.Unpickler):
    def __init__(self, copies: Copies) -> None:
        super().__init__(io.BytesIO(copies.content))
        self._beside = [each.parameter() if isinstance(each, _Blank) else each for each in copies.beside]

    def persistent_load(self, number: int) -> Any:
        return self._beside[number]


def _is_global(function: FunctionType) -> bool:
    try:
        return attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (KeyError, AttributeError):
        return False
