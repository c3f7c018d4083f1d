"""Defines the place of each named tensor in one flat vector.

The engine holds a model as one vector: loading it is one copy, an update is one fused operation, a sum is one addition.
Every tensor starts at a multiple of 64 bytes in any dtype: fused products into unaligned destinations gave
other bits for odd rows (see docs/architecture.md, "What the same bits take"). The gaps hold zeros and stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.config.masked_values import masked_values
from raysim.config.messages import nearest
from raysim.errors import ModelError, within

ALIGNMENT = 32
"""Numbers between starts: 64 bytes of bfloat16, and a multiple of that for wider types."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets (in numbers) of tensors in a vector of `size` numbers, gaps included.

    >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
    >>> layout.offsets, layout.size, layout.num_values
    ((0, 32), 64, 9)
    >>> layout.views(torch.arange(64))["bias"].tolist()
    [32, 33, 34]
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> Layout:
        """Lay the tensors out in this order."""
        names, shapes, offsets, end = [], [], [], 0
        for name, tensor in named:
            names.append(name)
            shapes.append(tuple(tensor.shape))
            offsets.append(end)
            end += math.ceil(tensor.numel() / ALIGNMENT) * ALIGNMENT
        return cls(tuple(names), tuple(shapes), tuple(offsets), end)

    @classmethod
    def recorded(cls, record: Iterable[tuple[str, Iterable[int]]]) -> Layout:
        """Return the layout of a record.

        >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
        >>> Layout.recorded(layout.record) == layout
        True
        """
        return cls.of((name, torch.empty(tuple(shape), device="meta")) for name, shape in record)

    @property
    def record(self) -> list[list[object]]:
        """Names and shapes, as JSON has them."""
        return [[name, list(shape)] for name, shape in zip(self.names, self.shapes, strict=True)]

    def copies(self, count: int) -> Layout:
        """Return the layout of so many such vectors, one behind the other: names begin with "0/", "1/", and so on.

        >>> Layout.of([("bias", torch.zeros(3))]).copies(2)
        Layout(names=('0/bias', '1/bias'), shapes=((3,), (3,)), offsets=(0, 32), size=64)
        """
        return Layout(
            tuple(f"{j}/{name}" for j in range(count) for name in self.names),
            self.shapes * count,
            tuple(j * self.size + offset for j in range(count) for offset in self.offsets),
            self.size * count,
        )

    @property
    def num_values(self) -> int:
        """Numbers of all tensors, without the gaps."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def is_whole(self) -> bool:
        """Whether every tensor of the vector has its place: the gaps are those between tensors.

        >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
        >>> layout.is_whole, layout.only({"bias"}).is_whole
        (True, False)
        """
        return sum(math.ceil(math.prod(shape) / ALIGNMENT) * ALIGNMENT for shape in self.shapes) == self.size

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Return one-dimensional views of the tensors, in layout order, of a (..., size) vector or stack of vectors."""
        return [
            flat.narrow(-1, offset, math.prod(shape)) for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]

    def matching(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Return the names that match one of the patterns, such as "*.weight", in layout order.

        >>> layout = Layout.of([("1.weight", torch.zeros(3, 2)), ("1.bias", torch.zeros(3))])
        >>> layout.matching(["*.bias", "2.*"])
        ('1.bias',)
        """
        return tuple(name for name in self.names if any(fnmatchcase(name, pattern) for pattern in patterns))

    def only(self, names: Collection[str]) -> Layout:
        """Return the layout of the same vectors in which these tensors alone have a place; the others are gaps.

        >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
        >>> layout.only({"bias"}).num_values, layout.only({"bias"}).offsets
        (3, (32,))
        """
        kept = [each for each in zip(self.names, self.shapes, self.offsets, strict=True) if each[0] in names]
        return Layout(tuple(k[0] for k in kept), tuple(k[1] for k in kept), tuple(k[2] for k in kept), self.size)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return shaped views by name; writing to a view writes to `flat`. A leading client axis is kept."""
        lead = tuple(flat.shape[:-1])
        return {
            name: piece.view(lead + shape)
            for name, piece, shape in zip(self.names, self.pieces(flat), self.shapes, strict=True)
        }

    def vector(self, named: Mapping[str, Tensor | float], default: float = 0.0, like: Tensor | None = None) -> Tensor:
        """A new vector (size,) of a number or a tensor by name; `default` elsewhere, and zeros in the gaps.

        `like`: whose dtype and device it has.

        >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
        >>> strength = layout.vector({"bias": 2.0}, default=0.5)
        >>> layout.views(strength)["bias"].tolist(), strength.sum().item()
        ([2.0, 2.0, 2.0], 9.0)

        Raises:
            ModelError: a name that no tensor has.
        """
        if unknown := sorted(set(named) - set(self.names)):
            hint = nearest(unknown[0], list(self.names))
            raise ModelError(f"A vector may only name the model's tensors {list(self.names)}, but got {unknown}{hint}.")
        flat = torch.zeros(self.size) if like is None else like.new_zeros(self.size)
        for name, view in self.views(flat).items():
            value = named.get(name, default)
            view.copy_(value) if isinstance(value, Tensor) else view.fill_(value)
        return flat

    def map(self, function: Callable[[str, Tensor], Tensor], flat: Tensor) -> Tensor:
        """A new vector of what `function(name, tensor)` makes of each tensor of a (..., size) vector; the gaps are 0.

        >>> layout = Layout.of([("weight", torch.zeros(3, 2)), ("bias", torch.zeros(3))])
        >>> raised = layout.map(lambda name, tensor: tensor + 1, torch.zeros(64))
        >>> raised.sum().item()
        9.0
        """
        mapped = torch.zeros_like(flat)
        into = self.views(mapped)
        for name, tensor in self.views(flat).items():
            into[name].copy_(function(name, tensor))
        return mapped

    def has_zero_gaps(self, flat: Tensor) -> bool:
        """Whether the numbers of a (..., size) vector that belong to no tensor are 0."""
        within = sum(int(piece.count_nonzero()) for piece in self.pieces(flat))
        return within == int(flat.count_nonzero())

    def flatten(self, named: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return a new vector of shape (size,) with the named tensors in place and zeros in the gaps."""
        flat = torch.zeros(self.size, dtype=dtype)
        for name, view in self.views(flat).items():
            view.copy_(named[name])
        return flat

    def flatten_arrays(self, named: Mapping[str, npt.ArrayLike], dtype: torch.dtype) -> Tensor:
        """Flatten a user's arrays; ModelError names a missing, unknown, misshapen or unreadable tensor, or one that is
        not of whole numbers where `dtype` is."""
        if unknown := sorted(set(named) - set(self.names)):
            hint = nearest(unknown[0], list(self.names))
            raise ModelError(f"params= may only name the model's tensors {list(self.names)}, but got {unknown}{hint}.")
        tensors = {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in named:
                raise ModelError(
                    f"params= must hold every tensor of the model, but {name!r} of shape {shape} is missing."
                )
            tensor = given_tensor(name, named[name])
            if tuple(tensor.shape) != shape:
                raise ModelError(f"params[{name!r}] must have shape {shape}, but has {tuple(tensor.shape)}.")
            if not dtype.is_floating_point:
                _check_whole(name, tensor)
            tensors[name] = tensor
        return self.flatten(tensors, dtype)


def _check_whole(name: str, tensor: Tensor) -> None:
    """Raise ModelError if a number is not whole, or beyond int64: it would become another one."""
    if not tensor.is_floating_point():
        return
    numbers = tensor.to(torch.float64)
    others = numbers[(numbers != numbers.floor()) | (numbers.abs() >= 2.0**63)]
    if len(others):
        raise ModelError(
            f"params[{name!r}] must be whole numbers of at most 64 bits, as the model's are, but has {others[0]:g}."
        )


def given_tensor(name: str, value: npt.ArrayLike) -> Tensor:
    """A user's array as a tensor of numbers, on the CPU.

    Raises:
        ModelError: it is none, or some of its numbers are masked, imaginary or not there.
    """
    try:
        if isinstance(value, Tensor):
            if value.is_nested:
                raise TypeError("it is a nested tensor")
            if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
                # Such a class says itself what its numbers are: masked ones, or others on other machines.
                raise TypeError(f"it is a {type(value).__name__}")
            tensor = value.detach().to("cpu")
        else:
            if masked_values(value):
                raise TypeError("some of its values are masked")
            # A copy: torch takes neither another byte order nor negative strides, and warns of read-only arrays.
            array = np.array(value)
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
            raise TypeError(f"it holds {tensor.dtype}, {tensor.layout}")
    except Exception as error:
        raise ModelError(f"params[{name!r}] must be an array of real numbers, but is not: {within(error)}.") from error
    return tensor
