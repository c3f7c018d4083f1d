"""Groups of parameters that no layer reads: those of layers that a module holds, and its forward does not call.

Their gradient is 0, but they need not stay: weight decay, corrections and optimizers move every group. No layer writes
anything to their places in a trainer's vectors.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.trainers.kernel.kernel import StartingPoint, Windows
from raysim.models.layout import Layout


def unread(layout: Layout, read: Collection[str]) -> Layout:
    """Return the layout of the same vectors in which the groups that no layer reads alone have a place."""
    return layout.only(set(layout.names).difference(read))


def unread_gradient(layout: Layout, read: Collection[str], gradient: Tensor) -> list[Tensor]:
    """Return the places of unread groups in a (..., P) gradient buffer: zero them before every local step.

    What a step makes of a gradient is written over it, and would be the next step's gradient there.
    """
    return unread(layout, read).pieces(gradient)


class UnreadSteps:
    """Does to unread groups what a kernel's local steps would: the kernel computes the layers of its line alone.

    Args:
        layout: of flat vectors.
        read: names of the groups that the kernel reads.
    """

    def __init__(self, layout: Layout, read: Collection[str]) -> None:
        self._layout = unread(layout, read)
        self._columns = [layout.names.index(name) for name in self._layout.names]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._columns)

    def take(
        self,
        start: StartingPoint,
        drift: Tensor | None,
        steps: Int64s,
        deltas: Tensor,
        squares: Tensor,
        windows: Windows | None,
    ) -> None:
        """Write y - x of K clients, its squared norms and the means of y, with y - x <- keep (y - x) + drift a step.

        Groups that nothing moves stay to the bit.

        Args:
            start: of the clients.
            drift: (P,) or (K, P); None: 0.
            steps: (K,), local steps of each client.
            deltas: (K, P).
            squares: float64 (K, G), in the order of the whole layout.
            windows: in which y is averaged; None: in none.
        """
        moved = deltas.new_zeros(deltas.shape) if start.begins is None else start.begins - start.broadcast
        pieces = self._layout.pieces
        drifts = [None] * len(self._columns) if drift is None else pieces(drift)
        for at, (column, x, own) in enumerate(zip(self._columns, pieces(start.broadcast), pieces(moved), strict=True)):
            means = None if windows is None else pieces(windows.means)[at]
            _take(own, drifts[at], start.keep, steps, windows, means)
            if means is not None:
                means.add_(x)
            pieces(deltas)[at].copy_(own)
            squares[:, column] = own.double().square().sum(1)


def _take(
    moved: Tensor, drift: Tensor | None, keep: float, steps: Int64s, windows: Windows | None, means: Tensor | None
) -> None:
    """`moved` (K, n), at first where clients begin, less x <- at last; `means` (W, n) <- in the mean over windows."""
    owners, first, stop = np.zeros((3, 0), dtype=np.int64)
    if windows is not None and means is not None:
        owners, (first, stop) = np.repeat(np.arange(len(steps)), windows.counts), windows.ranges.T
        means.zero_()
    if not bool(moved.any()) and (drift is None or not bool(drift.any())):
        return
    for step in range(int(steps.max())):
        at_work = torch.from_numpy(steps > step).unsqueeze(1)
        after = moved if drift is None else torch.add(drift, moved, alpha=keep)
        moved.copy_(torch.where(at_work, after, moved))
        inside = torch.from_numpy(np.flatnonzero((first <= step) & (step < stop)))
        if means is not None and len(inside):
            means[inside] += moved[torch.from_numpy(owners)[inside]]
    if means is not None:
        means.div_(torch.from_numpy(stop - first).unsqueeze(1))
