"""Defines a bidirectional LSTM over words, for texts with one label (Yang et al. 2023: 300 hidden units)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from raysim.config.section import Section
from raysim.config.values import FilePath, Width
from raysim.errors import ModelError
from raysim.models.model import ModelChoice

VECTORS = "embedding.weight"
"""The parameter that holds the words' vectors."""


class Bilstm(ModelChoice, Section):
    """Words as vectors, one LSTM forwards and one backwards, one output of each unit for the text, a linear layer.

    0 is padding: its vector stays zero, and its outputs are left out. The paper states neither how it pools a text's
    outputs nor where its dropout is; its code takes the last ones, puts dropout on these, and trains no pretrained
    vector.
    """

    name: Literal["bilstm"] = "bilstm"
    vocabulary: Width | Literal["auto"] = Field(
        "auto", description='Number of tokens, padding and unknown included; "auto": `data.tokens.vocabulary` + 2.'
    )
    embedding: Width = Field(300, description="Width of a word's embedding.")
    hidden: Width = Field(300, description="Units of each LSTM.")
    vectors: FilePath | None = Field(
        None,
        description=(
            "Text file of the words' vectors as GloVe is published, a word and `embedding` numbers a line. They are "
            "not trained; a word that is not there is zero. Absent: vectors are drawn, and trained."
        ),
    )
    pooling: Literal["max", "last"] = Field(
        "max", description="A unit's output for a text: its largest over the places, or that of the last place."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Probability of dropout before the linear layer.")


class BilstmModule(nn.Module):
    """(batch, time) integers -> (batch, outputs)."""

    def __init__(self, section: Bilstm, vocabulary: int, outputs: int, vectors: Tensor | None) -> None:
        super().__init__()
        self.takes_last = section.pooling == "last"
        self.embedding = nn.Embedding(vocabulary, section.embedding, padding_idx=0)
        self.lstm = nn.LSTM(section.embedding, section.hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(section.dropout) if section.dropout else nn.Identity()
        self.fc = nn.Linear(2 * section.hidden, outputs)
        if vectors is not None:
            self.embedding.weight = nn.Parameter(vectors.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each text."""
        places: Tensor = self.lstm(self.embedding(x))[0]
        real = x != 0
        # A text without a word keeps its first place.
        real[:, 0] = True
        if self.takes_last:
            # A product, not an index: its gradient is the same on every run on a GPU.
            last = real & (real.flip(1).cumsum(1).flip(1) == 1)
            pooled = (places * last.unsqueeze(-1).to(places.dtype)).sum(1)
        else:
            pooled = places.masked_fill(~real.unsqueeze(-1), float("-inf")).amax(1)
        logits: Tensor = self.fc(self.drop(pooled))
        return logits


def make(section: Bilstm, x_shape: tuple[int, ...], outputs: int, vectors: Tensor | None = None) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `section.vocabulary`.

    Args:
        section, x_shape, outputs: see `factory` in section.py.
        vectors: (vocabulary, embedding), the rows of the file `section.vectors`.
    """
    if len(x_shape) != 1:
        raise ModelError(f"bilstm takes texts (time,), but x has shape {x_shape}.")
    if section.vocabulary == "auto":
        raise ModelError(
            "model.vocabulary = 'auto' is for data whose tokens are words, which these are not: give a number that is "
            "above all of x."
        )
    return BilstmModule(section, section.vocabulary, outputs, vectors)
