"""Holds frozen parameters: once on each device, and once on a machine, whose processes map the same memory."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes: products of tensors that start elsewhere may give other bits."""

CPU = torch.device("cpu")


class _Place(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class Frozen(Mapping[str, Tensor]):
    """Frozen parameters by name, each in its own dtype, side by side in one block of bytes. Nobody may write to them.

    A pickle has the block as one buffer, which Ray puts into the object store once: all workers of a machine map it.

    >>> frozen = Frozen.of({"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3, dtype=torch.bfloat16)})
    >>> {name: tensor.dtype for name, tensor in frozen.items()}
    {'0.weight': torch.float32, '0.bias': torch.bfloat16}
    """

    def __init__(self, block: Tensor, places: tuple[_Place, ...]) -> None:
        self._block, self._places = block, places
        self._on = {CPU: self._views(block)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Copy the tensors."""
        places, end = [], 0
        for name, tensor in tensors.items():
            places.append(_Place(name, tensor.dtype, tuple(tensor.shape), end))
            end = math.ceil(places[-1].stop / ALIGNMENT) * ALIGNMENT
        frozen = cls(torch.zeros(end, dtype=torch.uint8), tuple(places))
        for name, view in frozen.items():
            view.copy_(tensors[name])
        return frozen

    def on(self, device: torch.device) -> Mapping[str, Tensor]:
        """Return the parameters on a device; the first call copies them there."""
        if device not in self._on:
            self._on[device] = self._views(self._block.to(device))
        return self._on[device]

    @property
    def num_bytes(self) -> int:
        """Of all parameters."""
        return len(self._block)

    def digest(self) -> str:
        """Return a digest of each parameter, behind a blank."""
        raw = (tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in self.values())
        return "".join(f" {hashlib.blake2b(each, digest_size=16).hexdigest()}" for each in raw)

    def _views(self, block: Tensor) -> dict[str, Tensor]:
        return {p.name: block[p.start : p.stop].view(p.dtype).view(p.shape) for p in self._places}

    def __getitem__(self, name: str) -> Tensor:
        return self._on[CPU][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._on[CPU])

    def __len__(self) -> int:
        return len(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._block.numpy(), self._places)


def _received(block: npt.NDArray[np.uint8], places: tuple[_Place, ...]) -> Frozen:
    with warnings.catch_warnings():
        # What processes share is read-only, which torch's tensors cannot be; no code writes to these.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        mapped = torch.from_numpy(block)
    return Frozen(mapped if mapped.data_ptr() % ALIGNMENT == 0 else mapped.clone(), places)
