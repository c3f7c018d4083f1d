"""Defines the next-word network of Reddi et al. (2021), appendix C: 4,050,748 parameters at 10,004 words."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import nn

from raysim.config.section import Section
from raysim.config.values import Depth, Width
from raysim.errors import ModelError
from raysim.models import keras
from raysim.models.lstm import Lstm
from raysim.models.model import ModelChoice


class LstmWord(ModelChoice, Section):
    """Embedding, LSTM, a linear layer back to the embedding's width, and one to a score for every word at every place.

    With e = embedding, h = hidden, V words and one layer: V e + 4 h (e + h + 1) + (h + 1) e + (e + 1) V parameters; one
    bias a gate, as in Keras. The vocabulary is the data's classes. Initial weights are those of Reddi et al.'s code.

    McMahan et al. (2017) have embedding = 192, hidden = 256 and projection = false: V e + 4 h (e + h + 1) + (h + 1) V,
    or 4,949,776 at 10,000 words. Departure: they state 4,950,544, which is 3 h more, the weights of peepholes from an
    LSTM's cell to its gates; there are none here.
    """

    name: Literal["lstm_word"] = "lstm_word"
    embedding: Width = Field(96, description="Width of a word's embedding.")
    hidden: Width = Field(670, description="Units of an LSTM layer.")
    layers: Depth = Field(1, description="Number of layers, each an LSTM and its linear layer.")
    projection: bool = Field(
        True, description="Linear layers back to the embedding's width; otherwise scores come from the last LSTM."
    )


def make(section: LstmWord, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `outputs`."""
    if len(x_shape) != 1:
        raise ModelError(f"lstm_word takes texts (time,), but x has shape {x_shape}.")
    embedding, hidden = section.embedding, section.hidden
    parts: OrderedDict[str, nn.Module] = OrderedDict(embedding=keras.embedding(nn.Embedding(outputs, embedding)))
    width = embedding
    for layer in range(1, section.layers + 1):
        parts[f"recurrent{layer}"] = keras.lstm(Lstm(width, hidden, 1, biases=1))
        if section.projection:
            parts[f"project{layer}"] = keras.dense(nn.Linear(hidden, embedding), normal=True)
        width = embedding if section.projection else hidden
    parts["fc"] = keras.dense(nn.Linear(width, outputs), normal=True)
    return nn.Sequential(parts)
