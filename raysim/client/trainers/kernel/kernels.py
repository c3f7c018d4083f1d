"""What a local step computes in C in the place of operators of torch, with other last digits."""

from __future__ import annotations

from typing import NamedTuple

import torch

from raysim.client.trainers.kernel.depthwise import Depthwise
from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.kernel.winograd import Winograd


class KernelsUsed(NamedTuple):
    """Which kernels are used. winograd: of convolutions that gain by it. lstm: of LSTMs. depthwise: of the gradient of
    depthwise kernels. classes: of cross entropy over many classes. counted: with that, of texts with padding
    those places alone that count, see recording/counted_rows.py."""

    winograd: bool = False
    lstm: bool = False
    depthwise: bool = False
    classes: bool = False
    counted: bool = False


NONE_USED = KernelsUsed()


class Kernels(NamedTuple):
    """The kernels; None, False: torch computes it. classes: the dtype of the outputs whose cross entropy is computed in
    C."""

    winograd: Winograd | None = None
    lstm: CompiledLstm | None = None
    depthwise: Depthwise | None = None
    classes: torch.dtype | None = None
    counted: bool = False


BY_TORCH = Kernels()
