"""What can be downloaded for a source: its files as their publishers offer them, or out of the archives they are in."""

from __future__ import annotations

from pathlib import Path

from raysim.data.section import (
    AgNews,
    AnyData,
    Cifar10,
    Cifar100,
    Emnist,
    EmnistIdx,
    FashionMnist,
    Gld,
    Mnist,
    Newsgroups,
    Shakespeare,
    Stackoverflow,
)
from raysim.data.sources import ag_news, emnist, gld, newsgroups, shakespeare, stackoverflow
from raysim.data.sources.cifar_files import CIFAR10, CIFAR100
from raysim.data.sources.packed import Packed
from raysim.data.sources.published import Published
from raysim.data.sources.root import places
from raysim.errors import DataError

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"


def _idx(address: str, checksums: dict[str, str]) -> tuple[Published, ...]:
    return tuple(
        Published(f"{stem}-ubyte.gz", f"{address}/{stem}-ubyte.gz", f"md5:{md5}", (f"{stem}-ubyte",))
        for stem, md5 in checksums.items()
    )


_MNIST_FILES = _idx(
    _MNIST,
    {
        "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
_FASHION_FILES = _idx(
    _FASHION,
    {
        "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
_TFF = "https://storage.googleapis.com/tff-datasets-public"
_EMNIST = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"

Offered = tuple[str, tuple[Published | Packed, ...]]
"""A source's usual folder, and what to fetch into it."""


def download(section: AnyData) -> list[Path]:
    """Fetch a source's files into its folder, those that are not there yet.

    Args:
        section: the source, with `root` or the first of its usual places.

    Returns:
        What was fetched.

    Raises:
        DataError: the source's files are not offered in a form that is used, or an address does not answer.
    """
    offered = _offered(section)
    if offered is None:
        raise DataError(
            f"--download has no address for data.name = {section.name!r} as it is set here: without --download an "
            f"error says where its files are published, or what makes them"
        )
    folder, files = offered
    target = places(getattr(section, "root", None), folder)[0]
    return [path for file in files for path in _fetched(file, target)]


def _fetched(file: Published | Packed, folder: Path) -> list[Path]:
    if isinstance(file, Packed):
        return file.fetch(folder)
    path = file.fetch(folder)
    return [] if path is None else [path]


def _offered(section: AnyData) -> Offered | None:
    match section:
        case Mnist():
            return "mnist", _MNIST_FILES
        case FashionMnist():
            return "fashion-mnist", _FASHION_FILES
        case Cifar10():
            return "cifar10", (CIFAR10.binary,)
        case Cifar100():
            return "cifar100", (CIFAR100.binary,)
        case Emnist(form="tff"):
            stem = "fed_emnist_digitsonly" if section.digits else "fed_emnist"
            names = tuple(file.name for file in emnist.HDF5[section.digits])
            return "emnist", (Packed(f"{_TFF}/{stem}.tar.bz2", names),)
        case EmnistIdx():
            names = tuple(
                f"emnist-{section.split}-{side}-{kind}-ubyte.gz"
                for side in ("train", "test")
                for kind in ("images-idx3", "labels-idx1")
            )
            return "emnist", (Packed(_EMNIST, names),)
        case Shakespeare(form="mcmahan"):
            return "shakespeare", (shakespeare.EDITION_1994,)
        case Shakespeare(form="tiny"):
            return "tinyshakespeare", (shakespeare.TINY,)
        case Shakespeare(form="tff"):
            names = tuple(file.name for file in shakespeare.TFF)
            return "shakespeare", (Packed(f"{_TFF}/shakespeare.tar.bz2", names),)
        case Stackoverflow():
            names = tuple(file.name for file in stackoverflow.HDF5.values())
            counts = stackoverflow.WORD_COUNTS.name
            return "stackoverflow", (
                Packed(f"{_TFF}/stackoverflow.tar.bz2", names),
                Packed(f"{_TFF}/{counts}.tar.bz2", (counts,)),
            )
        case AgNews():
            return "ag_news_csv", (ag_news.TRAIN, ag_news.TEST)
        case Newsgroups():
            return "20news-bydate", (newsgroups.ARCHIVE,)
        case Gld(set="gld23k"):
            return "gld", gld.SETS["gld23k"][:2]
    return None
