"""U22 to U24: models of words over texts of many lengths, padded to 20 places, for `scripts/bench --unseen`.

As next words of Stack Overflow are predicted: 10,000 words and four signs. Words are random; of a text 3 to 20 places
count, 57 % on average. The peers' loss is the mean over the places of a batch that count, raysim's the mean over
examples of such means: the same work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 10_004
PLACES = 20
PADDING = 0


class WordLstm(nn.Module):
    """An LSTM of 670 states between 96 numbers a word: 4.05 million numbers (Charles et al. 2021, A.1)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 96)
        self.lstm, self.down, self.out = nn.LSTM(96, 670, batch_first=True), nn.Linear(670, 96), nn.Linear(96, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 20)."""
        logits: Tensor = self.out(self.down(self.lstm(self.table(x))[0]))
        return logits


class WordTransformer(nn.Module):
    """Two layers of causal attention, and the embedding as last layer: 1.2 million numbers."""

    def __init__(self, width: int = 96, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table, self.places = nn.Embedding(WORDS, width), nn.Embedding(PLACES, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": nn.LayerNorm(width),
                    "query_key_value": nn.Linear(width, 3 * width),
                    "mix": nn.Linear(width, width),
                    "second": nn.LayerNorm(width),
                    "wide": nn.Linear(width, 4 * width),
                    "narrow": nn.Linear(4 * width, width),
                }
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 20)."""
        h = self.table(x) + self.places.weight
        for layer in self.layers:
            parts = layer["query_key_value"](layer["first"](h)).chunk(3, -1)
            query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            h = h + layer["mix"](seen.transpose(1, 2).flatten(2))
            h = h + layer["narrow"](functional.gelu(layer["wide"](layer["second"](h))))
        return functional.linear(self.norm(h), self.table.weight, self.bias)


class WordGru(nn.Module):
    """A GRU of 128 states: 1.7 million numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.gru, self.out = nn.GRU(32, 128, batch_first=True), nn.Linear(128, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 20)."""
        logits: Tensor = self.out(self.gru(self.table(x))[0])
        return logits


def texts(seed: int, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Words of so many texts and those that follow them, int64 (number, 20)."""
    rng = np.random.default_rng(seed)
    words = rng.integers(1, WORDS, size=(number, PLACES + 1))
    words[np.arange(PLACES + 1) > rng.integers(3, PLACES + 1, size=(number, 1))] = PADDING
    return words[:, :-1].copy(), words[:, 1:].copy()


def _workload(name: str, module: type[nn.Module]) -> dict[str, Any]:
    usual = {"M": 10, "E": 1, "B": 16, "lr": 0.3, "pool": 60, "lo": 8, "hi": 256, "mean": 100}
    given = {"shape": (PLACES,), "classes": WORDS, "padding": PADDING, "texts": texts}
    return {"name": name, "module": module, **usual, **given}


WORKLOADS: dict[str, dict[str, Any]] = {
    "U22": _workload("word-lstm", WordLstm),
    "U23": _workload("word-transformer", WordTransformer),
    "U24": _workload("word-gru", WordGru),
}
