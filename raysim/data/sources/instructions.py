"""Reads instructions: lines of json with a user, a prompt and its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field as Key
from pydantic import model_validator

from raysim.config.section import Section
from raysim.config.values import FilePath, Name
from raysim.data.populated import Populated
from raysim.data.source import ClientRows, Population
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.data.tokens import answers
from raysim.data.tokens.answers import Line
from raysim.errors import DataError
from raysim.storage.reading import checked_object, json_value, parsing

MOST_LINE_BYTES = 16 << 20

_KINDS: Mapping[type, str] = MappingProxyType({int: "a number", str: "a text"})


class Instructions(Populated, Section):
    """Prompts with answers in files of json lines; a client is a user. Only answers are learnt.

    A row is the tokens of a prompt, the end, the answer and the end. All tokens of the answers in a batch weigh alike.
    Prompts are taken as they stand: what a template would put around them has to be in the file.
    """

    name: Literal["instructions"] = "instructions"
    root: FilePath | None = Key(
        None, description="Folder of the files. Absent: $RAYSIM_DATA/instructions or data/instructions."
    )
    train: FilePath = Key("train.jsonl", description="File of training lines.", examples=["train.jsonl"])
    validation: FilePath | None = Key(
        None, description="File of validation lines. Absent: none.", examples=["validation.jsonl"]
    )
    test: FilePath | None = Key(
        None, description="File of test lines. Absent: none, or `test_users`.", examples=["test.jsonl"]
    )
    test_users: Annotated[float, Key(ge=0, lt=1)] = Key(
        0.0, description="Share of the training file's users who are the test split's instead, chosen by their names."
    )
    user: Name = Key("user", description="Key of a line that says whose it is: a text or a whole number.")
    prompt: Name = Key("prompt", description="Key of a line's prompt.")
    answer: Name = Key("answer", description="Key of a line's answer.")
    tokenizer: FilePath = Key(
        description="Folder with tokenizer.json, the model's own; nothing is downloaded.", examples=["models/tinyllama"]
    )
    length: Annotated[int, Key(ge=4, le=10**6)] = Key(
        512, description="Tokens of a row; a prompt takes half of them at most, and what goes beyond is cut."
    )
    end: Name | None = Key(
        None,
        description=(
            "Token after a prompt and after an answer. Absent: eos_token of tokenizer_config.json in that folder, if "
            "it names one."
        ),
        examples=["</s>"],
    )

    @model_validator(mode="after")
    def _one_test_split(self) -> Self:
        if self.test is not None and self.test_users:
            raise ValueError("test names the test split's file, and test_users takes it from train: remove one")
        return self


def open_source(section: Instructions) -> Population:
    """Find the files and read the tokeniser; DataError naming what is missing."""
    named = {"train": section.train, "validation": section.validation, "test": section.test}
    own_files = tuple(Published(name, "") for name in named.values() if name is not None)
    folder = locate(section.root, "instructions", own_files)
    files = {split: SourceFile(folder / name) for split, name in named.items() if name is not None}
    tokens = answers.read(Path(section.tokenizer).expanduser(), section.end, section.length)
    address: dict[str, Any] = {
        "name": "instructions",
        "files": {split: file.digest for split, file in files.items()},
        **tokens.address,
    }

    @cache
    def splits() -> dict[str, dict[str, list[Line]]]:
        found = {split: lines_by_user(section, file) for split, file in files.items()}
        tested = users_to_test(found["train"], section.test_users)
        if section.test_users and not tested:
            raise DataError(
                f"data.test_users must leave at least one training and one test user, but {section.test_users:g} of "
                f"{len(found['train']):,} users of {files['train'].path} is none"
            )
        if tested:
            found["test"] = {user: found["train"].pop(user) for user in tested}
        return found

    def stream() -> Iterator[ClientRows]:
        with tokens.encoding() as encode:
            for split, users in splits().items():
                for user, lines in users.items():
                    yield ClientRows(split, user, *tokens.rows(lines, encode))

    def train_ids() -> list[str]:
        return list(splits()["train"])

    return Population(address, tokens.x, tokens.y, tokens.num_classes, train_ids, stream, tuple(files))


def lines_by_user(section: Instructions, file: SourceFile) -> dict[str, list[Line]]:
    """Return the lines of each user, users in the order of their first lines; empty lines of the file are left out.

    Raises:
        DataError: there is no line, one has another form, or a user is a number in one line and a text in another;
            names file and line.
    """
    found: dict[str, list[Line]] = {}
    kinds: dict[str, type] = {}
    with file.path.open("rb") as stream:
        for number in count(1):
            where = f"{file.path}, line {number}"
            written = stream.readline(MOST_LINE_BYTES)
            if len(written) == MOST_LINE_BYTES:
                raise DataError(f"{where}: expected less than {MOST_LINE_BYTES:,} bytes, found more")
            if not written and not found:
                raise DataError(f"{file.path}: expected lines of instructions, found none")
            if not written:
                return found
            if written.strip():
                said, line = _parsed(section, where, written)
                user = str(said)
                if kinds.setdefault(user, type(said)) is not type(said):
                    raise DataError(
                        f"{where}: the user {said!r:.60} is {_KINDS[type(said)]} here, and {_KINDS[kinds[user]]} in a "
                        f"line before: are they one?"
                    )
                found.setdefault(user, []).append(line)
    raise AssertionError


def _parsed(section: Instructions, where: str, written: bytes) -> tuple[str | int, Line]:
    """Return whose a line is, as it is written, and its texts."""
    with parsing(where, "an object of json", DataError, verdict=""):
        found = checked_object(json_value(written.decode("utf-8-sig")))
    user, prompt, answer = (found.get(key) for key in (section.user, section.prompt, section.answer))
    # Not isinstance: `true` would be a number.
    kinds = ((section.user, user, _KINDS), (section.prompt, prompt, (str,)), (section.answer, answer, (str,)))
    for key, value, allowed in kinds:
        if type(value) not in allowed:
            has = f"{value!r:.60}" if key in found else f"the keys {', '.join(found)}"
            raise DataError(f"{where}: expected a text in {key!r}, found {has:.200}")
    return cast("str | int", user), Line(where, str(prompt), str(answer))


def users_to_test(users: Collection[str], share: float) -> list[str]:
    """Return a share of the users, rounded, but not all: those whose names' digests are least.

    >>> users_to_test(["a", "b", "c", "d"], 0.5)
    ['a', 'd']
    """
    ranked = sorted(users, key=lambda user: hashlib.blake2b(user.encode(), digest_size=16).digest())
    chosen = set(ranked[: min(round(share * len(users)), len(users) - 1)] if users else ())
    return [user for user in users if user in chosen]
