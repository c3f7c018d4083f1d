"""Converts labelled texts to examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.data.field import Field
from raysim.data.source import Source, SourceExamples
from raysim.data.tokens import pretrained, words
from raysim.data.tokens.pretrained import Pretrained
from raysim.data.tokens.words import Words

Tokens = Annotated[Words | Pretrained, Key(discriminator="name")]


@dataclass(frozen=True, eq=False)
class Texts:
    """Training and test texts with a label each, in 0..num_classes - 1."""

    num_classes: int
    train: list[str]
    train_y: Int64s
    test: list[str]
    test_y: Int64s


def source(name: str, digests: list[str], read: Callable[[], Texts], section: Words | Pretrained) -> Source:
    """Return the source of texts that `read` returns, from files with these digests."""
    address: dict[str, Any] = {"name": name, "files": digests}
    if isinstance(section, Pretrained):
        return Source({**address, "tokeniser": pretrained.address(section)}, lambda: tokenise(read(), section))
    return Source(
        address,
        lambda: tokenise(read(), section),
        lambda: list(words.most_frequent(read().train, section.vocabulary)),
    )


def tokenise(texts: Texts, section: Words | Pretrained) -> SourceExamples:
    """Return x: int32 (length,). A vocabulary of words is that of the training texts."""
    if isinstance(section, Pretrained):
        train, test = pretrained.encode(section, texts.train), pretrained.encode(section, texts.test)
    else:
        numbers = words.most_frequent(texts.train, section.vocabulary)
        train, test = (words.encode(part, numbers, section.length) for part in (texts.train, texts.test))
    return SourceExamples(
        x=Field((section.length,), np.dtype(np.int32).name),
        num_classes=texts.num_classes,
        train_x=train,
        train_y=texts.train_y,
        test_x=test,
        test_y=texts.test_y,
    )
