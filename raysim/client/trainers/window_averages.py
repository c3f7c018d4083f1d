"""Averages local models over windows of local steps, of one client or of a stack of clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


class WindowAverages:
    """The means of y over windows of local steps, in the order of the steps.

    Args:
        params: y, (P,) of a client or (K, P) of a stack; read after every local step.
        windows: of each client, ranges of local steps, in order and apart.
    """

    def __init__(self, params: Tensor, windows: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._params = params.view(len(windows), -1)
        self._sums = torch.zeros_like(self._params)
        self.means = tuple(params.new_zeros((len(own), self._params.shape[1])) for own in windows)
        """(l, P) of each client."""
        self._step = 0
        self._starting: dict[int, list[int]] = defaultdict(list)
        self._ending: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._inside: set[int] = set()
        for row, own in enumerate(windows):
            for index, (first, stop) in enumerate(own):
                self._starting[first].append(row)
                self._ending[stop - 1].append((row, index, stop - first))
                self._inside.update(range(first, stop))

    def add(self, active: int | None = None) -> None:
        """Add y after a local step, of the first so many rows of a stack."""
        step, self._step = self._step, self._step + 1
        if step not in self._inside:
            return
        params = self._params[:active]
        sums, starting = self._sums[: len(params)], self._starting.get(step, [])
        if len(starting) == len(params):
            sums.copy_(params)
        else:
            # What was added before a window begins is of no window.
            for row in starting:
                sums[row].zero_()
            sums.add_(params)
        for row, index, length in self._ending.get(step, ()):
            torch.div(sums[row], length, out=self.means[row][index])
