"""Defines the next-word transformer of A Field Guide to Federated Optimization (Wang et al. 2021)."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal

from pydantic import Field, model_validator
from torch import nn

from raysim.config.section import Section
from raysim.config.values import Depth, Width
from raysim.errors import ModelError
from raysim.models import keras
from raysim.models.layers import CausalSelfAttention, Positions, Residual, Tied
from raysim.models.model import ModelChoice


class TransformerWord(ModelChoice, Section):
    """Word embeddings, times sqrt(embedding), plus sinusoidal positions; a linear layer to `width` and dropout; then
    `layers` times causal self-attention and a network of one `hidden` relu layer, each with dropout, a residual
    connection and layer normalisation after it; back to `embedding`, and scores against the word embeddings.

    With d = embedding, m = width, h = hidden, V words: V d + 2 d m + m + d + layers (4 m^2 + 2 m h + 9 m + h)
    parameters. The vocabulary is the data's classes. Structure and initial weights are those of the paper's code, sizes
    those of the paper's text (the code's defaults are a width of 512, 2048 hidden and one layer).
    """

    name: Literal["transformer_word"] = "transformer_word"
    embedding: Width = Field(96, description="Width of a word's embedding.")
    width: Width = Field(96, description="Width of a position between the layers.")
    heads: Width = Field(8, description="Heads of self-attention; they divide the width.")
    hidden: Width = Field(1536, description="Hidden units of a layer's feed-forward network.")
    layers: Depth = Field(3, description="Number of layers.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Probability of dropout, everywhere in the layers.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerWord:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, but got heads = {self.heads} and width = {self.width}")
        return self


def make(section: TransformerWord, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time), integers below `outputs`."""
    if len(x_shape) != 1:
        raise ModelError(f"transformer_word takes texts (time,), but x has shape {x_shape}.")
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        positions=Positions(math.sqrt(section.embedding)),
        project=nn.Linear(section.embedding, section.width),
        drop=nn.Dropout(section.dropout),
    )
    for layer in range(1, section.layers + 1):
        parts[f"layer{layer}"] = _layer(section)
    parts["back"] = nn.Linear(section.width, section.embedding)
    module = Tied(outputs, section.embedding, nn.Sequential(parts))
    keras.embedding(module.embedding)
    for child in module.modules():
        if isinstance(child, nn.Linear):
            keras.dense(child)
    return module


def _layer(section: TransformerWord) -> nn.Sequential:
    width = section.width
    attention = OrderedDict(
        attention=CausalSelfAttention(width, section.heads),
        drop=nn.Dropout(section.dropout),
    )
    network = OrderedDict(
        fc1=nn.Linear(width, section.hidden),
        act=nn.ReLU(),
        fc2=nn.Linear(section.hidden, width),
        drop=nn.Dropout(section.dropout),
    )
    return nn.Sequential(
        OrderedDict(
            attend=Residual(nn.Sequential(attention)),
            norm1=nn.LayerNorm(width, eps=1e-6),
            think=Residual(nn.Sequential(network)),
            norm2=nn.LayerNorm(width, eps=1e-6),
        )
    )
