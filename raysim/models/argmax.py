"""Finds the largest output of each row, as torch does and quicker.

torch goes over the last axis number by number: 320 rows of 2,004 take 550 us where NumPy, in vectors, takes 49; 320 of
90 take 27 for 10, and ten classes as long (AMD EPYC, Zen 4).
"""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(outputs: Tensor) -> Tensor:
    """Return the place of the largest number on the last axis: int64, in the shape of outputs without that axis.

    The first of equal ones, and of NaNs, which are larger than any number.

    >>> argmax(torch.tensor([[0.0, 3.0, 3.0], [1.0, float("nan"), 2.0]])).tolist()
    [1, 1]
    """
    if _is_plain(outputs):
        return torch.from_numpy(outputs.detach().numpy().argmax(-1))
    return outputs.argmax(-1)


def _is_plain(outputs: Tensor) -> bool:
    # NumPy has no bfloat16; tensors of torch's modes and of `vmap` have no memory that it could read.
    is_own_kind = type(outputs) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(outputs)
    has_rows = outputs.dim() > 1 and outputs.shape[-1] > 0
    return is_own_kind and has_rows and outputs.device.type == "cpu" and outputs.dtype in (torch.float32, torch.float64)
