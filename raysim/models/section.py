"""Defines the `[model]` section: the choice of a model, and its factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from raysim.models import (
    bilstm,
    causal_lm,
    cnn,
    cnn_mcmahan,
    cnn_tutorial,
    distilbert,
    linear,
    lstm_char,
    lstm_word,
    mlp,
    mobilenet_v2_gn,
    own_module,
    resnet18_gn,
    resnet56,
    transformer_word,
)
from raysim.models.lora import WithLora
from raysim.models.model import ModelChoice, ModuleFactory
from raysim.models.name_patterns import FreezesByName

ModelSection = Annotated[
    linear.Linear
    | mlp.Mlp
    | cnn.Cnn
    | cnn_mcmahan.CnnMcmahan
    | cnn_tutorial.CnnTutorial
    | resnet18_gn.Resnet18Gn
    | resnet56.Resnet56
    | mobilenet_v2_gn.MobilenetV2Gn
    | lstm_char.LstmChar
    | lstm_word.LstmWord
    | transformer_word.TransformerWord
    | bilstm.Bilstm
    | distilbert.Distilbert
    | causal_lm.CausalLm
    | own_module.Own,
    Field(discriminator="name"),
]

_MAKERS: Mapping[type[ModelChoice], Callable[[Any, tuple[int, ...], int], Any]] = MappingProxyType(
    {
        linear.Linear: linear.make,
        mlp.Mlp: mlp.make,
        cnn.Cnn: cnn.make,
        cnn_mcmahan.CnnMcmahan: cnn_mcmahan.make,
        cnn_tutorial.CnnTutorial: cnn_tutorial.make,
        resnet18_gn.Resnet18Gn: resnet18_gn.make,
        resnet56.Resnet56: resnet56.make,
        mobilenet_v2_gn.MobilenetV2Gn: mobilenet_v2_gn.make,
        lstm_char.LstmChar: lstm_char.make,
        lstm_word.LstmWord: lstm_word.make,
        transformer_word.TransformerWord: transformer_word.make,
        bilstm.Bilstm: bilstm.make,
        distilbert.Distilbert: distilbert.make,
        causal_lm.CausalLm: causal_lm.make,
    }
)


def factory(
    section: ModelSection, x_shape: tuple[int, ...], outputs: int, vectors: Tensor | None = None
) -> ModuleFactory:
    """Return a picklable function that makes the module for inputs (batch, *x_shape) and that many outputs.

    `vectors`: of the words, for a model that has a file of them.
    """
    of_shape = partial(_MAKERS[type(section)], section, x_shape, outputs)
    return of_shape if vectors is None else partial(of_shape, vectors=vectors)


def with_adapters(factory: ModuleFactory, section: ModelChoice) -> ModuleFactory:
    """Return the factory of modules in which what the section says is frozen, or has adapters."""
    if section.freeze:
        return FreezesByName(factory, section.freeze)
    return factory if section.lora is None else WithLora(factory, section.lora)
