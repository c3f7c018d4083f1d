"""A card that computes nothing: torch's fake tensors know shapes, dtypes and devices, and raise where devices mix.

Whatever makes the host wait for the card, or copies to it (which waits too, from ordinary memory), is noted. Numbers
that the host reads are made up: 1 everywhere.
"""

from __future__ import annotations

import ctypes
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from raysim import card
from raysim.client.trainers import recognise
from raysim.models import changed_torch

CARD = torch.device("cuda")
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META, _DEVICE_TYPES = 1, 14, 21
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class FakeCard(FakeTensorMode):
    """Operators on the card's tensors, and on the host's beside them.

    waits: what made the host wait, by name: "read" for a number of the card's, "down" and "up" for a copy.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = {},
    ) -> Any:
        """As FakeTensorMode."""
        if func.overloadpacket is torch.ops.aten.to:
            # Of a constant, fake tensors would try to make the real copy.
            return func.decompose(*args, **kwargs)
        to = kwargs.get("device")
        if to is not None and to.type == "meta":
            # torch's C++ makes a tensor beside one of the card's, which to it lies on "meta".
            kwargs, to = {**kwargs, "device": CARD}, CARD
        if func in _READS:
            self.waits["read"] += any(_on_card(one) for one in args)
            return True if func is torch.ops.aten.equal.default else _one(args[0].dtype)
        if func is torch.ops.aten.nonzero.default and not _on_card(args[0]):
            # Of how many there are nothing is known: one.
            func, args, kwargs = torch.ops.aten.zeros.default, ((1, args[0].dim()),), {"dtype": torch.int64}
        if func is torch.ops.aten.native_group_norm.default and _on_card(args[0]) and not args[0].is_contiguous():
            raise RuntimeError("the kernel for cards takes contiguous examples only")
        if func is torch.ops.aten._to_copy.default and to is not None:
            self._copied(args[0], to.type == "cuda")
        if func is torch.ops.aten.copy_.default:
            self._copied(args[1], _on_card(args[0]))
        if func is torch.ops.aten._foreach_copy_.default:
            for into, source in zip(*args[:2], strict=True):
                self._copied(source, _on_card(into))
        return super().dispatch(func, types, args, kwargs)

    def _copied(self, source: Tensor, to_card: bool) -> None:
        if _on_card(source) != to_card:
            self.waits["up" if to_card else "down"] += 1


def _on_card(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cuda"


def _one(dtype: torch.dtype) -> bool | int | float:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def _read(tensor: Tensor, *, force: bool = False) -> Any:
    if force:
        tensor = tensor.detach().cpu()
    if _on_card(tensor):
        raise TypeError("can't convert a tensor of the card to NumPy: copy it to the host first")
    return np.ones(tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))


@contextmanager
def fake_card() -> Iterator[FakeCard]:
    """Let torch take "cuda" for a card; what raysim asks of one beside operators is answered by stand-ins."""
    # What fake tensors import at their first use: it takes seconds, and cannot be imported inside the block.
    import torch._dynamo

    made = torch.Tensor._make_subclass

    def known_to_python(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        # Autograd's engine would start a thread for the card, which a torch for CPUs cannot: to C++ it lies on "meta".
        if cls is FakeTensor and options["device_for_backend_keys"].type == "cuda":
            options["dispatch_device"] = False
        return made(cls, data, require_grad, **options)

    with ExitStack() as replaced:
        for holder, name, value in (
            (torch.Tensor, "_make_subclass", staticmethod(known_to_python)),
            (FakeTensor, "is_cuda", property(_on_card)),
            (FakeTensor, "numpy", _read),
            (nn.Module, "_apply", _applied),
            (torch, "Generator", lambda device=None: _CPU_GENERATOR()),
            (card, "is_there", lambda: True),
            (card, "generators", lambda device: (torch.default_generator,)),
            (card, "has_bf16", lambda: True),
            (card, "memory", lambda device: card.Memory(1 << 36, 1 << 37, 0, 0)),
            (card, "GraphMemory", _GraphMemory),
            (recognise, "PARAMETER_CLASSES", (nn.Parameter, FakeTensor)),
        ):
            replaced.enter_context(mock.patch.object(holder, name, value, create=True))
        replaced.enter_context(_known_to_torch())
        replaced.enter_context(warnings.catch_warnings())
        # So autocast changes nothing here: products that it would make in bf16 stay float32.
        warnings.filterwarnings("ignore", "CUDA is not available or torch_xla is imported", UserWarning)
        # Recordings compare addresses, which fake tensors have not got.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        # The stand-in is no mode of a script, which workers would lack.
        replaced.enter_context(mock.patch.object(changed_torch, "_active", return_value=()))
        yield replaced.enter_context(FakeCard())


_CPU_GENERATOR = torch.Generator


def _applied(module: nn.Module, move: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """As nn.Module: torch's own exchanges tensors, which fake ones refuse."""
    for child in module.children():
        _applied(child, move)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(move(parameter), parameter.requires_grad)
        module._buffers.update({name: None if one is None else move(one) for name, one in module._buffers.items()})
    return module


class _GraphMemory:
    """Stands in for that of CUDA graphs: the results of the first call, in the same memory."""

    def __init__(self, device: torch.device) -> None:
        pass

    def warm_up(self, work: Callable[[], object]) -> None:
        work()

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any, int]:
        return lambda: None, work(), 0


@contextmanager
def _known_to_torch() -> Iterator[None]:
    """Give torch's C++ a guard of cards, that of "meta", which does nothing: without one it has not heard of them."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(library, _REGISTRY)
    before = guards[_CUDA]
    guards[_CUDA] = before or guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = before
