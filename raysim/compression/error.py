"""Measures what a compressor loses, |a - Q(a)|^2, and |Q(a)|^2, by group and in float64.

On a CPU with a C compiler it is one pass over both vectors (error.c), elsewhere NumPy's: the bits are the same.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.models.layout import Layout
from raysim.storage import library
from raysim.storage.library import CSource

SOURCE = CSource(Path(__file__).with_name("error.c"), contracted=False)
LANES = 32

Float64s = npt.NDArray[np.float64]


class Measuring:
    """Measures vectors of one layout: whatever is not in its groups is zeros."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._offsets = np.array(layout.offsets, dtype=np.int64)
        self._lengths = np.array([math.prod(shape) for shape in layout.shapes], dtype=np.int64)

    def measure(self, a: Tensor, sent: Tensor) -> tuple[float, Tensor]:
        """Return |a - Q(a)|^2 and |Q(a)|^2 by group, float64 (G,) in the host's memory, of two vectors (P,)."""
        lost, norms = np.empty((2, len(self._lengths)))
        if a.device.type == "cpu" and library.obstacle(SOURCE, a.dtype) is None:
            assert a.is_contiguous()
            assert sent.is_contiguous()
            library.library(SOURCE, a.dtype).measure(
                ctypes.c_int64(len(lost)),
                *(ctypes.c_void_p(each.ctypes.data) for each in (self._offsets, self._lengths)),
                *(ctypes.c_void_p(each.data_ptr()) for each in (a, sent)),
                *(ctypes.c_void_p(each.ctypes.data) for each in (lost, norms)),
            )
        else:
            whole, told = a.cpu(), sent.cpu()
            for g, (piece, its) in enumerate(zip(self._layout.pieces(whole), self._layout.pieces(told), strict=True)):
                wide, of_it = piece.double().numpy(), its.double().numpy()
                lost[g], norms[g] = _squared_norm(wide - of_it), _squared_norm(of_it)
        return float(lost.sum()), torch.from_numpy(norms)


def _squared_norm(vector: Float64s) -> float:
    """Return the sum of squares in `LANES` partial sums."""
    squares = np.zeros((-(-len(vector) // LANES), LANES))
    squares.ravel()[: len(vector)] = np.square(vector)
    # Accumulated, not reduced: the order of its additions is defined.
    lanes = np.add.accumulate(squares)[-1] if len(squares) else np.zeros(LANES)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])
