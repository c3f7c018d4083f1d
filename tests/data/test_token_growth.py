"""Tokenisers whose texts grow are refused before a text is read; what their parts may do is bounded."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.data.prepare import prepare
from raysim.data.section import Instructions
from raysim.data.tokens import encoder, growth
from raysim.data.tokens.growth import growth_of
from raysim.data.tokens.pretrained import Pretrained, encode
from raysim.errors import DataError
from tests.support import language

tokenizers = pytest.importorskip("tokenizers")

LINE = json.dumps({"user": "ann", "prompt": "say one", "answer": "one " * 50}) + "\n"


@pytest.fixture(autouse=True)
def _few_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_LETTERS", 4096)


def doubling(times: int) -> dict[str, Any]:
    twice = {"type": "Replace", "pattern": {"String": "o"}, "content": "oo"}
    return {"type": "Sequence", "normalizers": [twice] * times}


def table(text: bytes) -> dict[str, Any]:
    """SentencePiece's table, with an empty trie."""
    charsmap = base64.b64encode(struct.pack("<II", 4, 0) + b"x\0" + text + b"\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": charsmap}


def template(single: list[str], ids: int = 1) -> dict[str, Any]:
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}} if each == "$A" else {"SpecialToken": {"id": each, "type_id": 0}}
        for each in single
    ]
    marks = {"</s>": {"id": "</s>", "ids": [1] * ids, "tokens": ["</s>"] * ids}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": marks}


def pieces_of_bytes(times: int) -> dict[str, Any]:
    part = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [part] * times}


GROWING: dict[str, tuple[str, dict[str, Any], str]] = {
    "doubled ten times": ("normalizer", doubling(10), "a text of 7 letters may become 7,168 by its parts"),
    "a long replacement": (
        "normalizer",
        {"type": "Replace", "pattern": {"Regex": "o*"}, "content": "o" * 999},
        "a text of 7 letters may become 7,000",
    ),
    "a long beginning": ("normalizer", {"type": "Prepend", "prepend": "o" * 5000}, "may become 5,007"),
    "a table": ("normalizer", table(b"o" * 3000), "may become 21,000"),
    "bytes of bytes": ("pre_tokenizer", pieces_of_bytes(5), "may become 229,376"),
    "a repeated text": ("post_processor", template(["$A"] * 3), "its template has a text 3 times and 0 tokens"),
    "a template without the text": ("post_processor", template(["</s>"]), "its template has a text 0 times"),
    "many marks": ("post_processor", template(["$A", "</s>"], 99), "has a text 1 times and 99 tokens around it"),
}


def changed(folder: Path, key: str, part: Any) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: part}))
    return folder


def opened(folder: Path) -> Any:
    (folder / "train.jsonl").write_text(LINE)
    section = Instructions.model_validate({"root": str(folder), "tokenizer": str(folder), "length": 8})
    return prepare(section, seed=0).train.client(0)[0]


@pytest.mark.parametrize("name", GROWING)
def test_a_tokeniser_that_makes_much_of_a_text_is_refused(name: str, tmp_path: Path) -> None:
    key, part, said = GROWING[name]
    changed(language.write_tokenizer(tmp_path), key, part)
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*{said}"):
        opened(tmp_path)


def test_pretrained_tokens_have_the_same_bound(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil")
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DistilBertTokenizer"}))
    section = Pretrained(path=str(tmp_path), length=4)
    # BertNormalizer's factor is 12, so that a group has two of these texts.
    texts = ["oil " * 40] * 5
    assert encode(section, texts).tolist() == [[2, 5, 5, 3]] * 5
    assert encode(section, []).shape == (0, 4)
    with pytest.raises(DataError, match="a text of 400 letters may become 4,800 by its parts"):
        encode(section, ["oil " * 100])


SLOW = {
    "type": "Split",
    # Each letter is the beginning of a try, which goes to the end of the text and back.
    "pattern": {"Regex": "o*(?!o)(?!$)"},
    "behavior": "Isolated",
    "invert": False,
}


def test_a_pattern_that_takes_for_ever_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_LETTERS", 2**26)
    monkeypatch.setattr(encoder, "CPU_S", 1)
    monkeypatch.setattr(encoder, "LETTERS_A_SECOND", 2**26)
    changed(language.write_tokenizer(tmp_path), "pre_tokenizer", SLOW)
    (tmp_path / "train.jsonl").write_text(json.dumps({"user": "ann", "prompt": "o" * 300_000, "answer": "one"}) + "\n")
    section = Instructions.model_validate({"root": str(tmp_path), "tokenizer": str(tmp_path), "length": 8})
    with pytest.raises(DataError, match=r"tokenizer\.json: .* it worked on 1 of the texts for 1 s of a proc"):
        prepare(section, seed=0)


def test_tokens_are_the_same_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(language.write_tokenizer(tmp_path), "normalizer", {"type": "Lowercase"})
    few = opened(tmp_path).tolist()
    monkeypatch.setattr(growth, "MOST_LETTERS", 2**26)
    assert opened(tmp_path).tolist() == few


def _sampled(found: dict[str, Any]) -> None:
    found["model"] = {"type": "BPE", "dropout": 0.1, "vocab": {"o": 0, "</s>": 1}, "merges": []}


def _marked(found: dict[str, Any]) -> None:
    words = {"o": 0, "</s>": 1}
    found["model"] = {"type": "BPE", "continuing_subword_prefix": "x" * 65, "vocab": words, "merges": []}


def _numbered(found: dict[str, Any]) -> None:
    found["model"]["vocab"]["what"] = 2**31


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_sampled, "its dropout of 0.1 draws other tokens each time"),
        (_marked, "its continuing_subword_prefix has more than 64 letters"),
        (_numbered, "an integer label must be at most 16777216, but one is 2147483648"),
    ],
)
def test_what_a_model_of_tokens_may_not_do(change: Callable[[dict[str, Any]], None], said: str, tmp_path: Path) -> None:
    file = language.write_tokenizer(tmp_path) / "tokenizer.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    with pytest.raises(DataError, match=said):
        opened(tmp_path)


def test_the_usual_tokenisers_multiply_letters_by_little() -> None:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    # As Llama 2, GPT-2, BERT and Gemma have them.
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    assert growth_of(made) == (1, 1)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.ByteLevel()]
    )
    made.post_processor = processors.ByteLevel()
    assert growth_of(made).factor <= 8
    made = Tokenizer(models.WordPiece())
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    assert growth_of(made).factor <= 12
