"""A body between words and their scores, with one matrix for both ends."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Tied(nn.Module):
    """y = body(E[words]) E^T with E (vocabulary, width): (batch, time) integers -> (batch, time, vocabulary).

    The body maps (batch, time, width) to the same shape.
    """

    def __init__(self, vocabulary: int, width: int, body: nn.Sequential) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = body

    def forward(self, words: Tensor) -> Tensor:
        """A score for every word at every place."""
        return functional.linear(self.body(self.embedding(words)), self.embedding.weight)
