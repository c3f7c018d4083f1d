"""Defines the experiment's `[data]` section: a source and its division."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator
from pydantic import Field as Key
from pydantic_core import PydanticCustomError

from raysim.config import messages
from raysim.config.plain import shown
from raysim.data.field import OF_TABLES, TABLES
from raysim.data.sources.ag_news import AgNews
from raysim.data.sources.cifar import Cifar10, Cifar100
from raysim.data.sources.digits import Digits
from raysim.data.sources.emnist import Emnist
from raysim.data.sources.emnist_idx import EmnistIdx
from raysim.data.sources.fed_cifar100 import FedCifar100
from raysim.data.sources.gld import Gld
from raysim.data.sources.instructions import Instructions
from raysim.data.sources.leaf import Leaf
from raysim.data.sources.mnist import FashionMnist, Mnist
from raysim.data.sources.newsgroups import Newsgroups
from raysim.data.sources.quadratic import Quadratic
from raysim.data.sources.shakespeare import Shakespeare
from raysim.data.sources.stackoverflow import Stackoverflow
from raysim.data.sources.synthetic import Synthetic
from raysim.data.sources.table import Table

__all__ = [
    "FORMS",
    "AgNews",
    "AnyData",
    "Cifar10",
    "Cifar100",
    "Data",
    "Digits",
    "Emnist",
    "EmnistIdx",
    "FashionMnist",
    "FedCifar100",
    "Gld",
    "Instructions",
    "Leaf",
    "Mnist",
    "Newsgroups",
    "Quadratic",
    "Shakespeare",
    "Stackoverflow",
    "Synthetic",
    "Table",
    "paths",
]

AnyData = (
    Digits
    | Synthetic
    | Quadratic
    | Mnist
    | FashionMnist
    | Emnist
    | EmnistIdx
    | Cifar10
    | Cifar100
    | FedCifar100
    | Shakespeare
    | Stackoverflow
    | AgNews
    | Newsgroups
    | Leaf
    | Gld
    | Instructions
    | Table
)
FORMS = {
    "femnist": "emnist with data.form = 'leaf'",
    "gld23k": "gld with data.set = 'gld23k'",
    "gld160k": "gld with data.set = 'gld160k'",
    "noisyag": "ag_news with data.train = 'noisyag'",
    "tinyshakespeare": "shakespeare with data.form = 'tiny'",
}
"""Names of datasets that are a form of a source, and the keys that choose the form."""


def _no_file(given: Any) -> Any:
    """Refuse a file in the place of a source."""
    word = given.get("name") if isinstance(given, Mapping) else given
    if isinstance(word, str) and word.endswith((*TABLES, "csv", "parquet")):
        text = f"data.name must be a source, but got {shown(word)}: {OF_TABLES}"
        raise PydanticCustomError(messages.SAID, "{text}", {"text": text})
    return given


Data = Annotated[AnyData, Key(discriminator="name"), BeforeValidator(_no_file)]

PATHS = ("root", "noisyag_root")
PATHS_BY_SOURCE = {
    "arrow": ("train", "validation", "test"),
    "instructions": ("train", "validation", "test", "tokenizer"),
}
"""Keys that are paths for one source only."""


def paths(section: BaseModel) -> set[str]:
    """Return the section's keys that are paths: the content's identity is its fingerprint, not its path."""
    name = getattr(section, "name", "")
    return {key for key in (*PATHS, *PATHS_BY_SOURCE.get(name, ())) if key in type(section).model_fields}
