"""Defines the next-character network of McMahan et al. (2017) and Reddi et al. (2021): two layers of 256 units."""

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


class LstmChar(ModelChoice, Section):
    """Embedding, LSTM layers, and a linear layer at every place of the text.

    The vocabulary is the data's classes: inputs must be labels too, as each character is the target of the one before.

    With e = embedding, h = hidden, V characters and two layers: V e + 4 h (e + h + 2) + 4 h (2 h + 2) + (h + 1) V
    parameters, 822,570 at 90 characters. Departures: a gate has torch's two biases, which learn alike; Keras and the
    papers have one, so Reddi et al. state 820,522 (4 h less per layer). McMahan et al. state 866,578: 258 characters,
    one bias per gate, and peepholes from an LSTM's cell to its gates (3 h more per layer), which this model lacks.

    Initial weights are torch's: all of the LSTM and the linear layer uniform on +-1 / sqrt(h), so a forget gate starts
    half open, and the embedding normal with variance 1. The code of Reddi et al. and Charles et al. has other ones,
    which `initial = "keras"` draws; McMahan et al. do not state theirs.
    """

    name: Literal["lstm_char"] = "lstm_char"
    embedding: Width = Field(8, description="Width of a character's embedding.")
    hidden: Width = Field(256, description="Units of an LSTM layer.")
    layers: Depth = Field(2, description="Number of LSTM layers.")
    initial: Literal["torch", "keras"] = Field(
        "torch",
        description=(
            'Initial weights. "torch": those of its layers. "keras": those of the code of Reddi et al. and Charles et '
            "al., with one bias a gate, as there: the embedding uniform on +-0.05, input weights of variance 2 / "
            "features, orthogonal state weights, forget bias 1, and the last layer by Glorot."
        ),
    )


def make(section: LstmChar, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `outputs`."""
    if len(x_shape) != 1:
        raise ModelError(f"lstm_char takes texts (time,), but x has shape {x_shape}.")
    biases: Literal[1, 2] = 1 if section.initial == "keras" else 2
    embedding = nn.Embedding(outputs, section.embedding)
    recurrent = Lstm(section.embedding, section.hidden, section.layers, biases)
    fc = nn.Linear(section.hidden, outputs)
    if section.initial == "keras":
        embedding, recurrent, fc = keras.embedding(embedding), keras.lstm(recurrent), keras.dense(fc, normal=True)
    return nn.Sequential(OrderedDict(embedding=embedding, recurrent=recurrent, fc=fc))
