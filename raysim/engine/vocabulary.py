"""How many words a model of texts knows follows from how the data number them."""

from __future__ import annotations

from raysim.data.section import AnyData
from raysim.data.sources.ag_news import AgNews
from raysim.data.sources.newsgroups import Newsgroups
from raysim.data.tokens.words import FIRST, Words
from raysim.errors import ExperimentError
from raysim.models.bilstm import Bilstm
from raysim.models.section import ModelSection


def fitted(model: ModelSection, data: AnyData | None) -> ModelSection:
    """The model with as many words as the data's tokens have numbers, where it leaves that open and the data say it.

    Args:
        model: of any family.
        data: where the examples come from; None: a script's own.

    Raises:
        ExperimentError: the model has fewer.
    """
    if not (isinstance(model, Bilstm) and isinstance(data, AgNews | Newsgroups) and isinstance(data.tokens, Words)):
        return model
    needed = data.tokens.numbers
    if model.vocabulary == "auto":
        return model.model_copy(update={"vocabulary": needed})
    if model.vocabulary < needed:
        raise ExperimentError(
            f"model.vocabulary >= data.tokens.vocabulary + {FIRST} = {needed} must hold, as padding and unknown words "
            f"have numbers too, but got {model.vocabulary}: leave it out, and it follows."
        )
    return model
