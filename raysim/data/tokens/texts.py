"""Converts labelled texts to examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Key

from raysim.data.field import Field
from raysim.data.source import SourceExamples
from raysim.data.tokens import pretrained, words
from raysim.data.tokens.pretrained import Pretrained
from raysim.data.tokens.words import Words
from raysim.seeds import Int64s

Tokens = Annotated[Words | Pretrained, Key(discriminator="name")]


@dataclass(frozen=True, eq=False)
class Texts:
    """Training and test texts with a label each, in 0..num_classes - 1."""

    num_classes: int
    train: list[str]
    train_y: Int64s
    test: list[str]
    test_y: Int64s


def address(section: Words | Pretrained) -> dict[str, Any]:
    """Return the facts beyond the section's keys that determine the tokens."""
    return {"tokeniser": pretrained.address(section)} if isinstance(section, Pretrained) else {}


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
