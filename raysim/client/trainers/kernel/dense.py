"""Which recognised modules the kernel can train: dense layers, with relu, tanh or nothing behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from torch import nn

from raysim.client.trainers.recognise import Recognised
from raysim.storage.compiled_c import CSource

SOURCE = CSource(Path(__file__).with_name("dense.c"))


@dataclass(frozen=True)
class Dense:
    """A line of D dense layers.

    widths: (D + 1,) numbers of an activation: inputs, hidden, outputs. behind: (D,) what is behind the layer: 0, or a
    number of `BEHIND`. weights, biases: (D,) names of parameters, (out, in) and (out,); None: no bias. flattens:
    examples are flattened first; otherwise all their axes but the last are so many rows.
    """

    widths: tuple[int, ...]
    behind: tuple[int, ...]
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    flattens: bool


BEHIND: Mapping[type[nn.Module], int] = MappingProxyType({nn.ReLU: 1, nn.Tanh: 2})

MOST_LAYERS = 64
"""As many as the kernel has room for."""


def dense(recognised: Recognised) -> Dense | str:
    """The line as the kernel takes it, or the reason why it does not."""
    layers = recognised.layers
    flattens = type(layers[0].module) is nn.Flatten
    widths: list[int] = []
    behind: list[int] = []
    weights: list[str] = []
    biases: list[str | None] = []
    for placed in layers[1:] if flattens else layers:
        module = placed.module
        if isinstance(module, nn.Linear):
            if widths and widths[-1] != module.in_features:
                return f"a Linear of {module.in_features} inputs is behind one of {widths[-1]} outputs"
            widths += [module.out_features] if widths else [module.in_features, module.out_features]
            behind.append(0)
            weights.append(f"{placed.path}weight")
            biases.append(None if module.bias is None else f"{placed.path}bias")
        elif type(module) in BEHIND and behind and not behind[-1]:
            behind[-1] = BEHIND[type(module)]
        else:
            return f"the kernel knows Linear, and ReLU or Tanh behind one, but no {type(module).__name__} there"
    if not 0 < len(behind) <= MOST_LAYERS:
        return f"the kernel takes 1 to {MOST_LAYERS} dense layers, and there are {len(behind)}"
    return Dense(tuple(widths), tuple(behind), tuple(weights), tuple(biases), flattens)
