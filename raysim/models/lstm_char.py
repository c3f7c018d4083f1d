"""Defines the next-character network of McMahan et al. (2017) and Reddi et al. (2021): two layers of 256 units."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import nn

from raysim.config.values import Depth, Width
from raysim.errors import ModelError
from raysim.models.lstm import Lstm
from raysim.models.model import ModelChoice


class LstmChar(ModelChoice):
    """Embedding, LSTM layers, and a linear layer at every place of the text.

    The vocabulary is the data's classes: inputs must be labels too, as each character is the target of the one before.

    With e = embedding, h = hidden, V characters and two layers: V e + 4 h (e + h + 2) + 4 h (2 h + 2) + (h + 1) V
    parameters, 822,570 at 90 characters. Departures: a gate has torch's two biases, which learn alike; Keras and the
    papers have one, so Reddi et al. state 820,522 (4 h less per layer). McMahan et al. state 866,578: 258 characters,
    one bias per gate, and peepholes from an LSTM's cell to its gates (3 h more per layer), which this model lacks.
    """

    name: Literal["lstm_char"] = "lstm_char"
    embedding: Width = Field(8, description="Width of a character's embedding.")
    hidden: Width = Field(256, description="Units of an LSTM layer.")
    layers: Depth = Field(2, description="Number of LSTM layers.")


def make(section: LstmChar, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `outputs`."""
    if len(x_shape) != 1:
        raise ModelError(f"lstm_char takes texts (time,), but x has shape {x_shape}.")
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(outputs, section.embedding),
            recurrent=Lstm(section.embedding, section.hidden, section.layers),
            fc=nn.Linear(section.hidden, outputs),
        )
    )
