"""Downloads a source's files from their publishers, directly or from archives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from raysim.data.section import (
    AgNews,
    AnyData,
    Cifar10,
    Cifar100,
    Emnist,
    EmnistIdx,
    FashionMnist,
    FedCifar100,
    Gld,
    Mnist,
    Newsgroups,
    Shakespeare,
    Stackoverflow,
)
from raysim.data.sources import (
    ag_news,
    cifar,
    emnist,
    emnist_idx,
    fed_cifar100,
    gld,
    mnist,
    newsgroups,
    shakespeare,
    stackoverflow,
)
from raysim.data.sources.cifar_files import CIFAR10, CIFAR100
from raysim.data.sources.packed import Packed
from raysim.data.sources.published import Published
from raysim.data.sources.root import places
from raysim.errors import DataError, MissingFileError

_TFF = "https://storage.googleapis.com/tff-datasets-public"


class Offered(NamedTuple):
    """Files to fetch into a folder."""

    folder: Path
    files: tuple[Published | Packed, ...]


def download(section: AnyData, missing: MissingFileError) -> list[Path]:
    """Fetch a source's missing files into its folder.

    Args:
        section: the source, with `root` or the first of its usual places.
        missing: the error that `prepare` raised. A source whose files exist in another form needs no download.

    Returns:
        The fetched files.

    Raises:
        DataError: nobody offers the source's files in a form that raysim reads, or an address does not answer.
    """
    sources = offered(section)
    if not sources:
        raise DataError(f"{missing}; --download has no address for data.name = {section.name!r} as it is set here")
    return [path for folder, files in sources for file in files for path in _fetched(file, folder)]


def _fetched(file: Published | Packed, folder: Path) -> list[Path]:
    if isinstance(file, Packed):
        return file.fetch(folder)
    path = file.fetch(folder)
    return [] if path is None else [path]


def offered(section: AnyData) -> list[Offered]:
    """Return the files and folders of a source that `download` fetches; empty if nobody offers them."""
    match section:
        case Mnist() | FashionMnist():
            return [_into(section.root, section.name.replace("_", "-"), *mnist.FILES[section.name])]
        case Cifar10() if cifar.is_whole(section):
            return [_into(section.root, "cifar10", CIFAR10.binary)]
        case Cifar100():
            return [_into(section.root, "cifar100", CIFAR100.binary)]
        case FedCifar100():
            sources = Packed(fed_cifar100.ARCHIVE, _names(fed_cifar100.HDF5), fed_cifar100.CHECKSUM)
            return [_into(section.root, "fed_cifar100", sources)]
        case Emnist(form="tff"):
            stem = "fed_emnist_digitsonly" if section.digits else "fed_emnist"
            return [
                _into(section.root, "emnist", Packed(f"{_TFF}/{stem}.tar.bz2", _names(emnist.HDF5[section.digits])))
            ]
        case EmnistIdx():
            return [_into(section.root, "emnist", Packed(emnist_idx.ARCHIVE, _names(emnist_idx.published(section))))]
        case Shakespeare(form="mcmahan"):
            return [_into(section.root, "shakespeare", shakespeare.EDITION_1994)]
        case Shakespeare(form="tiny"):
            return [_into(section.root, "tinyshakespeare", shakespeare.TINY)]
        case Shakespeare(form="tff"):
            return [_into(section.root, "shakespeare", Packed(f"{_TFF}/shakespeare.tar.bz2", _names(shakespeare.TFF)))]
        case Stackoverflow():
            return [_stackoverflow(section)]
        case AgNews(train="published"):
            return [_into(section.root, "ag_news_csv", ag_news.TRAIN, ag_news.TEST)]
        case AgNews():
            return [
                _into(section.root, "ag_news_csv", ag_news.TEST),
                _into(section.noisyag_root, "agnews-noisyag-10k", ag_news.NOISY),
            ]
        case Newsgroups():
            return [_into(section.root, "20news-bydate", newsgroups.ARCHIVE)]
        case Gld(set="gld23k"):
            return [_into(section.root, "gld", *gld.SETS["gld23k"][:2])]
    return []


def _into(root: str | None, folder: str, *files: Published | Packed) -> Offered:
    return Offered(places(root, folder)[0], files)


def _names(files: Iterable[Published]) -> tuple[str, ...]:
    return tuple(file.name for file in files)


def _stackoverflow(section: Stackoverflow) -> Offered:
    """Return the sentences as HDF5, unless SQLite has them, and the word counts, a separate file."""
    counts = Packed(f"{_TFF}/{stackoverflow.WORD_COUNTS.name}.tar.bz2", (stackoverflow.WORD_COUNTS.name,))
    sentences = Packed(f"{_TFF}/stackoverflow.tar.bz2", _names(stackoverflow.HDF5.values()))
    alone = _into(section.root, "stackoverflow", counts)
    if (alone.folder / stackoverflow.SQLITE.name).is_file():
        return alone
    return _into(section.root, "stackoverflow", sentences, counts)
