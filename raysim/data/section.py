"""The experiment's `[data]` section: which source, divided how."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field as Key

from raysim.data.sources.ag_news import AgNews
from raysim.data.sources.cifar import Cifar10, Cifar100
from raysim.data.sources.digits import Digits
from raysim.data.sources.emnist import Emnist
from raysim.data.sources.emnist_idx import EmnistIdx
from raysim.data.sources.gld import Gld
from raysim.data.sources.leaf import Leaf
from raysim.data.sources.mnist import FashionMnist, Mnist
from raysim.data.sources.newsgroups import Newsgroups
from raysim.data.sources.shakespeare import Shakespeare
from raysim.data.sources.stackoverflow import Stackoverflow
from raysim.data.sources.synthetic import Synthetic
from raysim.data.sources.table import Table

__all__ = [
    "AgNews",
    "AnyData",
    "Cifar10",
    "Cifar100",
    "Data",
    "Digits",
    "Emnist",
    "EmnistIdx",
    "FashionMnist",
    "Gld",
    "Leaf",
    "Mnist",
    "Newsgroups",
    "Shakespeare",
    "Stackoverflow",
    "Synthetic",
    "Table",
]

AnyData = (
    Digits
    | Synthetic
    | Mnist
    | FashionMnist
    | Emnist
    | EmnistIdx
    | Cifar10
    | Cifar100
    | Shakespeare
    | Stackoverflow
    | AgNews
    | Newsgroups
    | Leaf
    | Gld
    | Table
)
Data = Annotated[AnyData, Key(discriminator="name")]
