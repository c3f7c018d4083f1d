"""Tokens of a pretrained model: what its tokeniser makes of a text, and what of its folder they depend on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from raysim.data.tokens.pretrained import Pretrained, address, encode
from raysim.errors import DataError
from tests.support import strange_code

PAD, UNKNOWN, BEGIN, END, _, OIL, UP, PER = range(8)
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil", "up", "##per")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokeniser of word pieces, as DistilBERT's is saved."""
    made = tmp_path / "tokeniser"
    made.mkdir()
    (made / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DistilBertTokenizer"}))
    return made


def test_a_text_is_its_pieces_between_two_marks_and_padded(folder: Path) -> None:
    rows = encode(Pretrained(path=str(folder), length=5), ["Oil upper", "costs", ""])
    assert rows.tolist() == [[BEGIN, OIL, UP, PER, END], [BEGIN, UNKNOWN, END, PAD, PAD], [BEGIN, END, PAD, PAD, PAD]]
    assert rows.dtype.name == "int32"


def test_a_text_that_is_too_long_is_cut_before_its_last_mark(folder: Path) -> None:
    rows = encode(Pretrained(path=str(folder), length=4), ["oil oil oil oil", "oil up"])
    assert rows.tolist() == [[BEGIN, OIL, OIL, END], [BEGIN, OIL, UP, END]]


def test_marks_in_a_text_are_split_where_the_folder_says_so(folder: Path) -> None:
    """The package tokenizers does not write this with a tokeniser."""
    settings = {"tokenizer_class": "DistilBertTokenizer", "split_special_tokens": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    rows = encode(Pretrained(path=str(folder), length=6), ["[SEP] oil"])
    assert rows.tolist() == [[BEGIN, UNKNOWN, UNKNOWN, UNKNOWN, OIL, END]]


def test_tokens_are_addressed_by_what_the_files_say_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    here = address(Pretrained(path=str(folder)))
    assert address(Pretrained(path=str(copy))) == here
    (copy / "vocab.txt").write_text("\n".join((*VOCABULARY, "down")) + "\n")
    assert address(Pretrained(path=str(copy))) != here


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "added_tokens.json", "source.spm", "config.json"])
def test_every_file_that_a_tokeniser_may_read_is_part_of_the_address(folder: Path, name: str) -> None:
    section = Pretrained(path=str(folder))
    met = [address(section)]
    for content in ("{}", '{"a": 1}'):
        (folder / name).write_text(content)
        met.append(address(section))
    assert met[0] != met[1] != met[2]
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "folder").mkdir()
    assert address(section) == met[2]


def test_padding_must_be_0_as_models_take_it_to_be(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(("oil", *VOCABULARY[:5])) + "\n")
    with pytest.raises(DataError, match="must pad with token 0, but pads with 1"):
        encode(Pretrained(path=str(folder)), ["oil"])


def test_a_folder_without_a_tokeniser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must hold a tokeniser's files \(tokenizer.json"):
        address(Pretrained(path=str(tmp_path)))
    with pytest.raises(DataError, match="expected a tokeniser that transformers reads"):
        encode(Pretrained(path=str(tmp_path / "nothing")), ["oil"])


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1}', "\udce9"])
def test_a_damaged_tokeniser_is_named_and_not_the_texts(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=f"^{folder}: expected a tokeniser that transformers reads"):
        encode(Pretrained(path=str(folder)), ["oil"])


def test_a_tokenisers_own_code_is_neither_run_nor_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = strange_code.placed(folder, monkeypatch, "Tokens")
    config = {"tokenizer_class": "Tokens", "auto_map": {"AutoTokenizer": ["strange.Tokens", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="expected a tokeniser that transformers reads"):
        encode(Pretrained(path=str(folder)), ["oil"])
    assert not ran.exists()


def test_without_its_package_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"pip install 'raysim\[transformers\]'"):
        encode(Pretrained(path=str(folder)), ["oil"])
