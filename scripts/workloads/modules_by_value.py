"""U17 to U21: classes whose course depends on values or on chance, so that autograd trains them.

For `scripts/bench --unseen`. Examples are random, and sizes of clients drawn, as those of seven_modules.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

WORDS = 1_000


class EarlyExit(nn.Module):
    """Ends at the first head where the batch is sure of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(60, 64), nn.Linear(64, 64)
        self.early, self.late = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of rows (n, 60)."""
        h = torch.relu(self.first(x))
        logits: Tensor = self.early(h)
        if logits.softmax(1).amax(1).mean() <= 0.3:
            logits = self.late(torch.relu(self.second(h)))
        return logits


class Packed(nn.Module):
    """An LSTM over texts of many lengths, packed."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.lstm, self.out = nn.LSTM(width, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 30)."""
        words = (x.abs() * 250).long() % WORDS
        lengths = (words > 200).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.table(words), lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.lstm(packed)
        logits: Tensor = self.out(state[-1])
        return logits


class StochasticDepth(nn.Module):
    """Residual dense layers, each skipped by chance."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(60, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of rows (n, 60)."""
        h = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            if not self.training or torch.rand(()) < 0.8:
                h = h + torch.relu(layer(norm(h)))
        logits: Tensor = self.out(h)
        return logits


class TopTwo(nn.Module):
    """Experts of which the gate takes two for each example."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(60, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits of rows (n, 60)."""
        values, places = self.gate(x).topk(2, 1)
        shares = values.softmax(1)
        logits = x.new_zeros(len(x), 10)
        for number, expert in enumerate(self.experts):
            rows, place = (places == number).nonzero(as_tuple=True)
            if len(rows):
                logits = logits.index_add(0, rows, expert(x[rows]) * shares[rows, place, None])
        return logits


class FixedPoint(nn.Module):
    """Iterates until the states stand still."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.width = width
        self.inputs, self.again, self.out = nn.Linear(60, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of rows (n, 60)."""
        added, state = self.inputs(x), x.new_zeros(len(x), self.width)
        for _ in range(8):
            before, state = state, torch.tanh(added + self.again(state))
            if (state - before).norm() < 0.05 * state.norm():
                break
        logits: Tensor = self.out(state)
        return logits


def _workload(name: str, module: type[nn.Module], shape: tuple[int, ...], **other: Any) -> dict[str, Any]:
    usual = {"M": 50, "E": 1, "B": 10, "lr": 0.05, "pool": 200, "lo": 10, "hi": 300, "mean": 60, "classes": 10}
    return {"name": name, "shape": shape, "module": module, **usual, **other}


WORKLOADS: dict[str, dict[str, Any]] = {
    "U17": _workload("early-exit", EarlyExit, (60,), M=100),
    "U18": _workload("packed", Packed, (30,)),
    "U19": _workload("stochastic-depth", StochasticDepth, (60,)),
    "U20": _workload("top-two", TopTwo, (60,)),
    "U21": _workload("fixed-point", FixedPoint, (60,)),
}
