"""W8: 10,000 clients a round out of a million, each a little logistic regression.

A million clients of their own would take gigabytes in every process of every package; here client c has the examples of
client c modulo 1,000. Where a file of `scripts/bench --unseen` says "distinct", it means this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn


class LogReg(nn.Module):
    """As W4's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.linear(x)
        return logits


WORKLOADS: dict[str, dict[str, Any]] = {
    "W8": {
        "name": "million",
        "M": 10_000,
        "E": 1,
        "B": 10,
        "lr": 0.05,
        "pool": 1_000_000,
        "distinct": 1_000,
        "lo": 4,
        "hi": 100,
        "mean": 20,
        "shape": (60,),
        "classes": 10,
        "module": LogReg,
    }
}


@dataclass(frozen=True)
class Repeated:
    """The population as raysim computes it: client c has the examples of client c modulo the number of given ones."""

    given: tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], ...]

    def sizes(self, clients: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of examples of each client."""
        sizes = np.array([len(y) for _, y in self.given])
        found: npt.NDArray[np.int64] = sizes[clients % len(sizes)]
        return found

    def client(self, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """A client's (x, y)."""
        return self.given[client % len(self.given)]
