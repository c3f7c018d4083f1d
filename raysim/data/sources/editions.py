"""Names the files that lie where a source looks for its own, and the keys that read them: those of another edition."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

_FORM = "data.name = '{}' with data.{} = {}"
# Keys -> the files that they read.
_READ_BY: dict[str, tuple[str, ...]] = {
    "data.name = 'mnist' or 'fashion_mnist'": ("t10k-labels-idx1-ubyte*", "t*-images-idx3-ubyte*", "train-labels-*"),
    "data.name = 'cifar10'": ("cifar-10-*.tar.gz", "data_batch_1.bin"),
    "data.name = 'cifar100'": ("cifar-100-*.tar.gz", "train.bin"),
    "data.name = 'fed_cifar100'": ("fed_cifar100_*.h5", "cifar100.sqlite"),
    "data.name = 'emnist'": ("fed_emnist_train.h5", "fed_emnist_test.h5", "emnist_all.sqlite"),
    _FORM.format("emnist", "digits", "true"): ("fed_emnist_digitsonly_*.h5",),
    **{
        _FORM.format("emnist_idx", "split", repr(split)): (f"emnist-{split}-*-ubyte*",)
        for split in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")
    },
    _FORM.format("shakespeare", "form", "'mcmahan'"): ("pg100.txt", "t8.shakespeare.txt"),
    _FORM.format("shakespeare", "form", "'tff'"): ("shakespeare_train.h5", "shakespeare_test.h5"),
    _FORM.format("shakespeare", "form", "'tiny'"): ("input.txt",),
    "data.form = 'leaf' of emnist and shakespeare, and data.name = 'leaf'": ("data/train/*.json", "train/*.json"),
    _FORM.format("gld", "set", "'gld23k'"): ("mini_gld_*.csv",),
    _FORM.format("gld", "set", "'gld160k'"): ("federated_train.csv",),
    "data.name = 'stackoverflow'": ("stackoverflow_*.h5", "stackoverflow.sqlite", "stackoverflow.word_count"),
    "nothing here, being another edition": ("20news-1*.tar.gz",),
}


def instead(folder: Path, names: Collection[str]) -> str:
    """Return the beginning of an error about missing files: what lies there in their place; "" if nothing known does.

    Args:
        folder: the source's.
        names: names of the files that the source would read.
    """
    for keys, patterns in _READ_BY.items():
        if any(fnmatch(name, pattern) for name in names for pattern in patterns):
            continue
        for pattern in patterns:
            if (found := min(folder.glob(pattern), default=None)) is not None:
                return f"{found.relative_to(folder)}, which is there, is read by {keys}; "
    return ""
