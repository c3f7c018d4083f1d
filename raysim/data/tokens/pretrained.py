"""Defines the tokens of a pretrained model, by the tokeniser in its folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import FilePath, Width
from raysim.data.tokens.encoder import encoding
from raysim.data.tokens.growth import growth_of
from raysim.errors import DataError
from raysim.storage.reading import MOST_BYTES, listed, parsing, regular

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "config.json",
)
"""Of tokenisers; of the last one transformers takes the tokeniser's class, where no other file names it."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".ot")
"""How names of files end which no tokeniser has."""

_VOCABULARIES = ("tokenizer.json", "vocab.txt")


class Pretrained(Section):
    """Tokens of a text by `transformers.AutoTokenizer`, cut to `length` and padded at the end with 0."""

    name: Literal["pretrained"] = "pretrained"
    path: FilePath = Key(
        description="Folder with the tokeniser's files, such as the `distilbert` model's; nothing is downloaded."
    )
    length: Width = Key(128, description="Tokens of an example, its first and last mark included.")


def address(section: Pretrained) -> list[str]:
    """Return digests of all files in the folder but weights: they determine the tokens, in any folder.

    Tokenisers have files of many names.
    """
    folder = Path(section.path).expanduser()
    for name in _FILES:
        if os.path.lexists(folder / name):
            regular(folder / name, DataError)
    found = sorted(listed(folder, DataError)) if folder.is_dir() else []
    there = [file for file in found if file.is_file() and file.suffix not in _WEIGHTS]
    if not {file.name for file in there}.intersection(_FILES[:-1]):
        raise DataError(
            f"{section.path} must hold a tokeniser's files ({', '.join(_FILES[:-1])}), but has none of them"
        )
    with parsing(section.path, "files that can be read", DataError, verdict=""):
        return [f"{file.name} {_digest(file)}" for file in there]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def numbers(folder: str) -> dict[str, int] | None:
    """Return the number of each token of the tokeniser in a folder; None if none of its files are there.

    Raises:
        DataError: transformers cannot read it.
    """
    place = Path(folder).expanduser()
    if not any((place / name).is_file() for name in _VOCABULARIES):
        return None
    from transformers import AutoTokenizer  # optional, and takes seconds to import

    with parsing(folder, "a tokeniser that transformers reads", DataError, verdict=""):
        found = AutoTokenizer.from_pretrained(str(place), local_files_only=True, trust_remote_code=False).get_vocab()
        return {str(token): int(number) for token, number in found.items()}


def encode(section: Pretrained, texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return rows of `length` numbers, (texts, length).

    Raises:
        DataError: transformers is not installed, cannot read the folder, or pads with another token than 0.
    """
    try:
        from transformers import AutoTokenizer  # optional, and takes seconds to import
    except ImportError:
        raise DataError(
            "data.tokens 'pretrained' needs the package transformers: pip install 'raysim[transformers]'"
        ) from None
    folder = Path(section.path).expanduser()
    for name in _FILES:
        if (folder / name).exists() and regular(folder / name, DataError).stat().st_size > MOST_BYTES:
            raise DataError(f"{folder / name} must have at most {MOST_BYTES:,} bytes")
    # What is said of these files is not said of the texts' own: whoever reads them would blame those.
    with parsing(section.path, "a tokeniser that transformers reads", DataError, verdict=""):
        # A stranger's folder may name code of its own, for which transformers would ask at the terminal.
        tokeniser: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if tokeniser.pad_token_id != 0:
            raise DataError(f"{section.path} must pad with token 0, but pads with {tokeniser.pad_token_id}")
        if not tokeniser.is_fast:
            raise ValueError(f"its {type(tokeniser).__name__} is not of the package tokenizers")
        # It sets up what does the work, which keeps it.
        tokeniser("", padding="max_length", truncation=True, max_length=section.length)
        backend = tokeniser.backend_tokenizer
        with encoding(backend, growth_of(backend), section.length, marks=True) as encode:
            return np.fromiter(encode(texts), np.dtype((np.int32, section.length)), len(texts))
