"""Instructions: which tokens are inputs, which are learnt, whose they are, and which lines are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import raysim
from raysim.data.prepare import prepare
from raysim.data.section import Data
from raysim.errors import DataError
from tests.support import language

pytest.importorskip("tokenizers")

SECTIONS: TypeAdapter[Any] = TypeAdapter(Data)
NUMBER = {word: number for number, word in enumerate(language.WORDS)}
END = NUMBER["</s>"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    language.write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def opened(folder: Path, lines: Any, **keys: Any) -> raysim.FederatedDataset:
    """The dataset of these lines: objects, or the text of a whole file."""
    text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "train.jsonl").write_text(text)
    section = {"name": "instructions", "root": str(folder), "tokenizer": str(folder / "tokenizer"), "length": 8}
    return prepare(SECTIONS.validate_python({**section, **keys}), seed=0)


def line(user: Any, prompt: str, answer: str) -> dict[str, Any]:
    return {"user": user, "prompt": prompt, "answer": answer}


def numbers(words: str) -> list[int]:
    return [NUMBER[word] for word in words.split()]


def row(dataset: raysim.FederatedDataset) -> tuple[list[int], list[int]]:
    x, y = dataset.train.client(0)
    return x[0].tolist(), y[0].tolist()


def test_each_token_of_the_answer_and_the_end_is_a_target(root: Path) -> None:
    x, y = row(opened(root, [line("ann", "what is one", "two three")]))
    assert x == [*numbers("what is one </s> two three"), 0, 0]
    assert y == [-1, -1, -1, *numbers("two three </s>"), -1, -1]


def test_a_prompt_takes_half_of_the_row_and_the_answer_what_is_left(root: Path) -> None:
    x, y = row(opened(root, [line("ann", "what is the sum of one", "one two three four one two")]))
    assert x == numbers("what is the </s> one two three four")
    assert y == [-1, -1, -1, *numbers("one two three four one")]


def test_another_token_may_end_texts_or_none(root: Path) -> None:
    x, _ = row(opened(root, [line("ann", "say one", "two")], end="and"))
    assert x[:4] == numbers("say one and two")
    (root / "tokenizer" / "tokenizer_config.json").unlink()
    x, y = row(opened(root, [line("ann", "say one", "two")]))
    assert (x[:3], y[:3]) == ([*numbers("say one"), 0], [-1, NUMBER["two"], -1])


def test_only_answers_count(root: Path) -> None:
    data = opened(root, [line("ann", "say one", "two")])
    assert (data.y.padding, data.y.by_place, data.num_classes) == (-1, True, len(language.WORDS))
    assert END in data.train.client(0)[1]


def test_a_client_is_a_user_wherever_its_lines_are(root: Path) -> None:
    lines = [line("ann", "say one", "one"), line(7, "say two", "two"), line("ann", "say three", "three")]
    data = opened(root, lines)
    assert [data.train.id_of(position) for position in range(2)] == ["ann", "7"]
    x, _ = data.train.client(0)
    assert x[:, 1].tolist() == numbers("one three")


def test_keys_of_lines_have_any_names(root: Path) -> None:
    lines = [{"who": "ann", "question": "say one", "reply": "one", "more": [1]}]
    x, _ = row(opened(root, lines, user="who", prompt="question", answer="reply"))
    assert x[:4] == numbers("say one </s> one")


def test_splits_are_files_or_users_of_the_training_file(root: Path) -> None:
    users = [f"user {number}" for number in range(10)]
    lines = [line(user, "say one", "one") for user in users]
    language.write_lines(root / "later.jsonl", users=("zoe",))
    by_file = opened(root, lines, test="later.jsonl", validation="later.jsonl")
    assert [by_file.split(name).id_of(0) for name in ("validation", "test")] == ["zoe", "zoe"]
    found = [opened(root, lines, test_users=share) for share in (0.2, 0.4)]
    tested = [{data.split("test").id_of(place) for place in range(len(data.split("test")))} for data in found]
    trained = [{data.train.id_of(place) for place in range(len(data.train))} for data in found]
    assert [len(names) for names in tested] == [2, 4]
    assert tested[0] < tested[1]
    assert all(train | test == set(users) and not train & test for train, test in zip(trained, tested, strict=True))
    # The choice goes by the names, not by the order of lines.
    turned = opened(root, lines[::-1], test_users=0.2)
    assert {turned.split("test").id_of(place) for place in range(2)} == tested[0]


@pytest.mark.parametrize(("users", "share"), [(10, 0.04), (1, 0.9)])
def test_a_share_of_no_test_user_is_refused(root: Path, users: int, share: float) -> None:
    lines = [line(f"user {number}", "say one", "one") for number in range(users)]
    with pytest.raises(raysim.DataError, match=rf"data\.test_users must .* {share} of {users} users of .* is none"):
        opened(root, lines, test_users=share)


def test_clients_are_held_out_as_everywhere(root: Path) -> None:
    lines = [line(f"user {number}", "say one", "one") for number in range(10)]
    data = opened(root, lines, holdout=0.3)
    assert (len(data.train), len(data.split("validation"))) == (7, 3)


def test_the_cache_goes_by_content(root: Path) -> None:
    lines = [line("ann", "say one", "two")]
    first = opened(root, lines)
    other = language.write_tokenizer(root / "copy")
    assert opened(root, lines, tokenizer=str(other)).fingerprint == first.fingerprint
    reordered = language.write_tokenizer(root / "other", [*language.WORDS[:2], *reversed(language.WORDS[2:])])
    x, _ = row(opened(root, lines, tokenizer=str(reordered)))
    assert x[0] == len(language.WORDS) + 1 - NUMBER["say"]


GOOD = json.dumps(line("ann", "say one", "one")) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "{\n", r"train.jsonl, line 2: expected an object of json"),
        (GOOD + "\n" + "[1]\n", r"train.jsonl, line 3: expected an object of json: it holds a list"),
        (GOOD + "\xff", r"train.jsonl, line 2: expected"),
        (
            json.dumps({"user": "ann", "prompt": "say"}),
            r"line 1: expected a text in 'answer', found the keys user, prompt",
        ),
        (json.dumps(line(None, "say", "one")), r"line 1: expected a text in 'user', found None"),
        (
            "".join(json.dumps(line(user, "say", "one")) + "\n" for user in (1, 2, "1")),
            r"line 3: the user '1' is a text here, and a number in a line before",
        ),
        (json.dumps({**line(1, "say", "one"), "prompt": 1}), r"line 1: expected a text in 'prompt', found 1"),
        (json.dumps(line(True, "say", "one")), r"line 1: expected a text in 'user', found True"),
        (json.dumps(line("ann", "", "one")), r"train.jsonl, line 1: the prompt has no token"),
        (GOOD + json.dumps(line("bob", "say", "  ")), r"train.jsonl, line 2: the answer has no token"),
        ("\n", r"train.jsonl: expected lines of instructions, found none"),
        ('{"user": "\\ud800", "prompt": "say", "answer": "one"}', "line 1: expected an object of json"),
        (
            GOOD + '{"user": "a", "prompt": "say", "answer": "one", "answer": "two"}',
            "line 2: .* the key 'answer' twice",
        ),
    ],
)
def test_what_is_no_instruction_is_named_by_file_and_line(root: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(root, text)


def test_a_line_has_a_bound(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.data.sources.instructions.MOST_LINE_BYTES", len(GOOD))
    with pytest.raises(DataError, match=r"train.jsonl, line 1: expected less than"):
        opened(root, GOOD)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train": "gone.jsonl"}, r"gone.jsonl is missing"),
        ({"tokenizer": "nowhere"}, r"nowhere/tokenizer.json is missing"),
        ({"end": "<eos>"}, r"data.end must be a token of .*tokenizer.json, but '<eos>' is none"),
        ({"root": "elsewhere"}, "there is no folder elsewhere: put train.jsonl there, or name"),
    ],
)
def test_what_is_missing_is_named(root: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(root, GOOD, **keys)


@pytest.mark.parametrize(
    "content", [b"{}", b"\xff", b"[]", b'{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}}']
)
def test_a_damaged_tokeniser_is_an_error_of_raysim(root: Path, content: bytes) -> None:
    (root / "tokenizer" / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer.json: expected a tokeniser, as the package tokenizers saves it"):
        opened(root, GOOD)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_without_a_line_is_no_missing_split(root: Path, split: str) -> None:
    (root / "none.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"none.jsonl: expected lines of instructions, found none"):
        opened(root, GOOD, **{split: "none.jsonl"})


@pytest.mark.parametrize("token", [5, True, ["</s>"], {}, {"content": None}])
def test_an_end_that_is_no_text_is_not_left_out(root: Path, token: object) -> None:
    (root / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    with pytest.raises(DataError, match=r"tokenizer_config.json: expected a text as eos_token, found"):
        opened(root, GOOD)


def test_a_tokeniser_means_what_it_says(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = root / "tokenizer" / "tokenizer.json"
    whole = path.read_text()
    path.write_text(whole.replace('"one":', '"two":'))
    with pytest.raises(DataError, match=r"tokenizer.json: .* it has the key 'two' twice"):
        opened(root, GOOD)
    said = json.loads(whole)
    said["added_tokens"][0]["id"] = 7
    path.write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"tokenizer.json: .* says that '</s>' is 7, but its vocabulary has 1"):
        opened(root, GOOD)
    said = json.loads(whole)
    said["model"]["vocab"]["two"] = said["model"]["vocab"]["one"]
    path.write_text(json.dumps(said))
    opened(root, GOOD)
    assert "tokenizer.json: 1 tokens have the number of another one" in caplog.text


def test_a_test_split_has_one_origin(root: Path) -> None:
    with pytest.raises(ValueError, match="remove one"):
        opened(root, GOOD, test="train.jsonl", test_users=0.5)


def test_rows_are_stored_as_they_are_read(root: Path) -> None:
    x, y = opened(root, [line("ann", "say one", "two")]).train.client(0)
    assert x.dtype == y.dtype == np.dtype("int16")
