"""The `[model]` section: a choice of family, and the factory that the choice means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from raysim.models import cnn, cnn_mcmahan, linear, lstm_char, lstm_word, mlp, transformer_word
from raysim.models.choice import ModelChoice
from raysim.models.model import ModuleFactory

ModelSection = Annotated[
    linear.Linear
    | mlp.Mlp
    | cnn.Cnn
    | cnn_mcmahan.CnnMcmahan
    | lstm_char.LstmChar
    | lstm_word.LstmWord
    | transformer_word.TransformerWord,
    Field(discriminator="name"),
]

_MAKERS: dict[type[ModelChoice], Callable[[Any, tuple[int, ...], int], Any]] = {
    linear.Linear: linear.make,
    mlp.Mlp: mlp.make,
    cnn.Cnn: cnn.make,
    cnn_mcmahan.CnnMcmahan: cnn_mcmahan.make,
    lstm_char.LstmChar: lstm_char.make,
    lstm_word.LstmWord: lstm_word.make,
    transformer_word.TransformerWord: transformer_word.make,
}


def factory(section: ModelSection, x_shape: tuple[int, ...], outputs: int) -> ModuleFactory:
    """A picklable function that makes the module for inputs (batch, *x_shape) and that many outputs."""
    return partial(_MAKERS[type(section)], section, x_shape, outputs)
