"""What can be downloaded for a source: the files that are used as their publishers offer them."""

from __future__ import annotations

from pathlib import Path

from raysim.data.sources import ag_news, gld, newsgroups, shakespeare
from raysim.data.sources.cifar_files import CIFAR10, CIFAR100
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


# By source: its usual folder, and its files.
_FILES: dict[str, tuple[str, tuple[Published, ...]]] = {
    "mnist": (
        "mnist",
        _idx(
            _MNIST,
            {
                "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    ),
    "fashion_mnist": (
        "fashion-mnist",
        _idx(
            _FASHION,
            {
                "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
    ),
    "cifar10": ("cifar10", (CIFAR10.binary,)),
    "cifar100": ("cifar100", (CIFAR100.binary,)),
    "shakespeare": ("shakespeare", (shakespeare.EDITION_1994,)),
    "ag_news": ("ag_news_csv", (ag_news.TRAIN, ag_news.TEST)),
    "newsgroups": ("20news-bydate", (newsgroups.ARCHIVE,)),
    "gld": ("gld", gld.SETS["gld23k"][:2]),
}


def download(name: str, root: str | None) -> list[Path]:
    """Fetch a source's files into its folder, those that are not there yet.

    Args:
        name: of the source.
        root: the folder; None: the first of the source's usual places.

    Returns:
        What was fetched.

    Raises:
        DataError: the source's files cannot be used as they are published, or an address does not answer.
    """
    if name not in _FILES:
        raise DataError(
            f"--download is for files that are used as they are published, those of {', '.join(_FILES)}, but not of "
            f"{name!r}: without --download an error says where its files are published"
        )
    folder, files = _FILES[name]
    target = places(root, folder)[0]
    return [path for file in files if (path := file.fetch(target)) is not None]
