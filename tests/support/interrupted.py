"""Runs that break off, and how two runs' records are compared."""

from __future__ import annotations

import torch

import raysim
from raysim.models.softmax import cross_entropy
from raysim.run_folder import cost_columns


def same_records(left: raysim.Result, right: raysim.Result) -> None:
    """Params, rounds and clients to the last bit, timings aside."""
    assert left.params.keys() == right.params.keys()
    for name, tensor in left.params.items():
        assert torch.equal(tensor, right.params[name])
    kept = [name for name in left.rounds.column_names if not cost_columns.tells_cost(name)]
    assert left.rounds.select(kept).equals(right.rounds.select(kept))
    assert left.clients.equals(right.clients)


class Stops:
    """A loss that raises once the marked number of calls is reached: a run that breaks off in mid-round."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        # The task's own: runs with and without this loss are compared to the bit.
        return cross_entropy(outputs, targets)
