"""Fits a model of texts to the tokens of the data: how many and which there are, and words' pretrained vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from raysim.config.section import replaced
from raysim.data.prepare import vocabulary
from raysim.data.section import AnyData
from raysim.data.sources import glove
from raysim.data.sources.ag_news import AgNews
from raysim.data.sources.instructions import Instructions
from raysim.data.sources.newsgroups import Newsgroups
from raysim.data.tokens import answers, pretrained
from raysim.data.tokens.pretrained import Pretrained
from raysim.data.tokens.texts import Tokens
from raysim.data.tokens.words import FIRST, Words
from raysim.errors import ExperimentError
from raysim.models.bilstm import Bilstm
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Distilbert
from raysim.models.section import ModelSection


def fit_vocabulary(model: ModelSection, data: AnyData | None) -> ModelSection:
    """Set a text model's "auto" vocabulary to the number of tokens of the data, and compare a pretrained one.

    Args:
        model: of any family.
        data: the section of the data; None: a script passes the dataset.

    Raises:
        ExperimentError: the model's vocabulary is smaller, or another.
    """
    if isinstance(model, CausalLm) and isinstance(data, Instructions):
        _check_tokens(model, data)
    if isinstance(model, Distilbert) and isinstance(data, AgNews | Newsgroups):
        _check_pretrained(model, data.tokens)
    if not (isinstance(model, Bilstm) and isinstance(data, AgNews | Newsgroups) and isinstance(data.tokens, Words)):
        return model
    needed = data.tokens.numbers
    if model.vocabulary == "auto":
        return replaced(model, vocabulary=needed)
    if model.vocabulary < needed:
        raise ExperimentError(
            f"model.vocabulary >= data.tokens.vocabulary + {FIRST} = {needed} must hold, as padding and unknown words "
            f"have numbers too, but got {model.vocabulary}: leave it out to take it from the data."
        )
    return model


def _check_tokens(model: CausalLm, data: Instructions) -> None:
    """Refuse a tokeniser whose tokens have other numbers than those of the one beside the model, if there is one."""
    folder = Path(model.path).expanduser()
    if not (folder / answers.NUMBERS).is_file():
        return
    own, given = (answers.tokeniser(each).get_vocab() for each in (folder, Path(data.tokenizer).expanduser()))
    _check_same(own, given, f"data.tokenizer = {data.tokenizer!r}", folder)


def _check_pretrained(model: Distilbert, tokens: Tokens) -> None:
    """Refuse tokens whose numbers are not those of the tokeniser beside the model, if there is one."""
    if not isinstance(tokens, Pretrained):
        raise ExperimentError(
            f"distilbert knows the tokens of its own tokeniser, so data.tokens.name must be 'pretrained', with a path, "
            f"but is {tokens.name!r}."
        )
    folder, given = Path(model.path).expanduser(), Path(tokens.path).expanduser()
    if folder.resolve() == given.resolve() or (own := pretrained.numbers(model.path)) is None:
        return
    if (others := pretrained.numbers(tokens.path)) is not None:
        _check_same(own, others, f"data.tokens.path = {tokens.path!r}", folder)


def _check_same(own: Mapping[str, int], given: Mapping[str, int], key: str, folder: Path) -> None:
    if own != given:
        token = min(own.items() ^ given.items())[0]
        there, here = (f"token {each[token]}" if token in each else "no token" for each in (given, own))
        raise ExperimentError(
            f"{key} must be that of the model, but {token!r:.60} is {there} there and {here} in {folder}."
        )


def vectors(model: ModelSection, data: AnyData | None) -> Tensor | None:
    """Return the vectors of the data's words, (vocabulary, embedding), if the model names a file of them.

    Args:
        model: `fit_vocabulary`.
        data: the section of the data; None: a script passes the dataset.

    Raises:
        ExperimentError: the words of the data are not known.
        DataError: see `glove.read`.
    """
    if not isinstance(model, Bilstm) or model.vectors is None:
        return None
    words = None if data is None else vocabulary(data)
    if words is None:
        raise ExperimentError(
            "model.vectors needs data whose words raysim numbers: ag_news or newsgroups with data.tokens.name = "
            "'words'."
        )
    assert isinstance(model.vocabulary, int)
    rows = torch.zeros(model.vocabulary, model.embedding)
    found = torch.from_numpy(glove.read(model.vectors, words, model.embedding))
    rows[: len(found)] = found
    return rows
