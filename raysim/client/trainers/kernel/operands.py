"""Checks what a library in C is handed, which sees addresses alone, and says where it lies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor


def check(whose: str, name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse a tensor unless the library may take its address for so many numbers, by its strides.

    Args:
        whose: who takes it, as the beginning of a sentence.
        name: what it is, in the plural.
        shape, dtype: what it must have.

    Raises:
        RuntimeError: it is another one, is not in memory that the processor reads, or stands for other numbers than lie
            there.
    """
    fits = tuple(tensor.shape) == tuple(shape) and tensor.dtype == dtype and tensor.device.type == "cpu"
    # Autograd's zeros have no memory, and torch may note of numbers that they are to be negated.
    has_numbers = tensor.layout == torch.strided and not tensor._is_zerotensor() and not tensor.is_neg()
    if not (fits and has_numbers):
        without = "" if has_numbers else ", not laid out in memory as what it stands for"
        raise RuntimeError(
            f"{whose} needs {name} of shape {tuple(shape)} and {dtype} on the CPU, but got shape "
            f"{tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}{without}."
        )


def placed(tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_int64]]:
    """Where the tensor's numbers begin, and its strides."""
    return address(tensor), int64s(tensor.stride())


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where the tensor's numbers begin."""
    return ctypes.c_void_p(tensor.data_ptr())


def int64s(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """The numbers in memory."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
