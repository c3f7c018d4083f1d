"""Defines a bidirectional LSTM over words, for texts with one label (Yang et al. 2023: 300 hidden units)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from raysim.config.values import Width
from raysim.errors import ModelError
from raysim.models.model import ModelChoice


class Bilstm(ModelChoice):
    """Words as vectors, one LSTM forwards and one backwards, each unit's largest output over the text, a linear layer.

    0 is padding: its vector stays zero, and its outputs are left out of the maximum.

    Departures: the paper's vectors are pretrained (GloVe), these are drawn and trained; the paper does not state how it
    pools a text's outputs, this model takes the maximum.
    """

    name: Literal["bilstm"] = "bilstm"
    vocabulary: Width | Literal["auto"] = Field(
        "auto", description='Number of tokens, padding and unknown included; "auto": `data.tokens.vocabulary` + 2.'
    )
    embedding: Width = Field(300, description="Width of a word's embedding.")
    hidden: Width = Field(300, description="Units of each LSTM.")


class BilstmModule(nn.Module):
    """(batch, time) integers -> (batch, outputs)."""

    def __init__(self, section: Bilstm, vocabulary: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, section.embedding, padding_idx=0)
        self.lstm = nn.LSTM(section.embedding, section.hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * section.hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each text."""
        places: Tensor = self.lstm(self.embedding(x))[0]
        real = (x != 0).unsqueeze(-1)
        # A text without a word keeps its first place.
        real[:, 0] = True
        most = places.masked_fill(~real, float("-inf")).amax(1)
        logits: Tensor = self.fc(most)
        return logits


def make(section: Bilstm, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `section.vocabulary`."""
    if len(x_shape) != 1:
        raise ModelError(f"bilstm takes texts (time,), but x has shape {x_shape}.")
    if section.vocabulary == "auto":
        raise ModelError(
            "model.vocabulary = 'auto' is for data whose tokens are words, which these are not: give a number that is "
            "above all of x."
        )
    return BilstmModule(section, section.vocabulary, outputs)
