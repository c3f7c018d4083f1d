"""Reads Shakespeare by role, for the next character: in the forms of McMahan et al., TensorFlow Federated and LEAF."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key
from pydantic import model_validator

from raysim.config.section import Section, has_other
from raysim.config.values import FilePath, Width
from raysim.data.field import Field
from raysim.data.populated import Populated
from raysim.data.source import ClientRows, Population
from raysim.data.sources import characters, gutenberg, hdf5, leaf_json
from raysim.data.sources.gutenberg import Role
from raysim.data.sources.leaf_json import LeafUser
from raysim.data.sources.published import Digests, Published, SourceFile
from raysim.data.sources.root import locate
from raysim.errors import DataError

EDITION_1994 = Published(
    "t8.shakespeare.txt", "https://ocw.mit.edu/ans7870/6/6.006/s08/lecturenotes/files/t8.shakespeare.txt"
)
WORKS = Published(
    "pg100.txt",
    f"https://www.gutenberg.org/ebooks/100 (editions of 1994 to 2011; {EDITION_1994.address} is one)",
    others=(EDITION_1994.name,),
)
TINY = Published(
    "input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    size_bytes=1_115_394,
)
_TFF = "https://storage.googleapis.com/tff-datasets-public/shakespeare.tar.bz2"
TFF = (
    Published("shakespeare_train.h5", f"{_TFF} (unpack it)"),
    Published("shakespeare_test.h5", f"{_TFF} (unpack it)"),
)
_LEAF = "https://github.com/TalwalkarLab/leaf, data/shakespeare"


class Shakespeare(Populated, Section):
    """x: `length` characters; y: the next character at each place. 90 classes with padding, unknown, begin and end.

    Accuracy counts neither padding nor the other three marks (Charles et al. 2021, A.1).
    """

    name: Literal["shakespeare"] = "shakespeare"
    root: FilePath | None = Key(
        None,
        description=(
            'Folder of the form\'s files. Absent: $RAYSIM_DATA/shakespeare or data/shakespeare; for "tiny", '
            "tinyshakespeare there."
        ),
    )
    form: Literal["mcmahan", "tff", "leaf", "tiny"] = Key(
        "mcmahan",
        description=(
            '"mcmahan": pg100.txt or t8.shakespeare.txt; a client is a role of a play with at least two lines, the '
            'first 80 % of them for training, the rest for test (McMahan et al. 2017). "tff": shakespeare_train.h5 '
            'and _test.h5, every snippet cut on its own (Reddi et al. 2021). "leaf": data/train/*.json and '
            "data/test/*.json of LEAF's script; its overlapping windows, of which only the last place is scored, are "
            "joined to the text they were cut from, so that every character is a target once. "
            '"tiny": input.txt of tinyshakespeare, by name of the speaker, split as mcmahan.'
        ),
    )
    example: Literal["line", "window"] = Key(
        "line",
        description=(
            'What an example is ("mcmahan" and "tiny"). "line": a line and its line end, as in McMahan et al.; a line '
            'of more than `length` characters is several. "window": `length` characters of the joined lines. Every '
            "character is a target once."
        ),
    )
    min_lines: int = Key(
        2,
        ge=2,
        le=10**9,
        description=(
            'Roles with fewer lines are left out ("mcmahan" and "tiny"). With 2, as McMahan et al. state, the '
            "edition of 2011 gives 1,201 clients; with 3 it gives 1,144, and they count 1,146. Local steps speak for "
            "3 as well: table 2 has u = 7.4 for E = 1 and B = 10, and 3 gives 7.45, 2 gives 7.10."
        ),
    )
    length: Width = Key(80, description="Characters of an example.")

    @model_validator(mode="after")
    def _lines_are_roles(self) -> Self:
        if self.form in ("tff", "leaf") and has_other(self, "example", "min_lines"):
            raise ValueError(
                f"example and min_lines are of forms 'mcmahan' and 'tiny', which have lines; form {self.form!r} has "
                "its own examples: remove them"
            )
        return self


def open_source(section: Shakespeare) -> Population:
    """Find the form's files; DataError naming what is missing."""
    length = section.length
    match section.form:
        case "mcmahan":
            return _by_role(section, WORKS.find(locate(section.root, "shakespeare", (WORKS,))), gutenberg.roles)
        case "tiny":
            tiny = TINY.find(locate(section.root, "tinyshakespeare", (TINY,)))
            return _by_role(section, tiny, gutenberg.tiny_roles)
        case "tff":
            folder = locate(section.root, "shakespeare", TFF)
            train, test = (file.find(folder) for file in TFF)
            digests = [train.digest, test.digest]
            return _population(section, digests, lambda: hdf5.ids(train), lambda: _snippets(train, test, length))
        case "leaf":
            return _leaf(section, locate(section.root, "shakespeare", leaf_json.published(_LEAF)))


def _population(
    section: Shakespeare,
    digests: Digests,
    train_ids: Callable[[], list[str]],
    stream: Callable[[], Iterator[ClientRows]],
) -> Population:
    return Population(
        address={"name": "shakespeare", "files": digests},
        x=Field((section.length,), "uint8"),
        y=Field((section.length,), "uint8", padding=characters.PADDING, uncounted=characters.UNCOUNTED),
        num_classes=characters.NUM_CLASSES,
        train_ids=train_ids,
        stream=stream,
    )


def _by_role(section: Shakespeare, file: SourceFile, read: Callable[[SourceFile], list[Role]]) -> Population:
    @cache
    def roles() -> list[Role]:
        return [role for role in read(file) if len(role.lines) >= section.min_lines]

    def stream() -> Iterator[ClientRows]:
        for split in ("train", "test"):
            for role in roles():
                lines = role.lines[: num_train(role)] if split == "train" else role.lines[num_train(role) :]
                if section.example == "line":
                    x, y = characters.by_line(lines, section.length)
                else:
                    x, y = characters.continuous(characters.numbers("\n".join(lines)), section.length)
                yield ClientRows(split, role.name, x, y)

    return _population(section, [file.digest], lambda: [role.name for role in roles()], stream)


def num_train(role: Role) -> int:
    """Return the number of training lines: all but a fifth, which is rounded down and at least one."""
    return len(role.lines) - max(len(role.lines) // 5, 1)


def _snippets(train: SourceFile, test: SourceFile, length: int) -> Iterator[ClientRows]:
    for split, file in (("train", train), ("test", test)):
        for client, columns in hdf5.clients(file, ["snippets"]):
            with file.reading(f"texts in UTF-8 as snippets of client {client!r}"):
                texts = [snippet.decode() if isinstance(snippet, bytes) else snippet for snippet in columns["snippets"]]
                pairs = [characters.separate(characters.numbers(text), length) for text in texts]
            yield ClientRows(split, client, *_stacked(pairs, length))


def _leaf(section: Shakespeare, folder: Path) -> Population:
    sides = {side: leaf_json.find(folder, side, _LEAF) for side in ("train", "test")}

    def stream() -> Iterator[ClientRows]:
        for split, files in sides.items():
            for file, user in leaf_json.all_users(files):
                where = f"{file.path}, user {user.name!r}"
                pairs = [
                    characters.continuous(characters.known(text, where), section.length)
                    for text in joined_windows(user, where)
                ]
                yield ClientRows(split, user.name, *_stacked(pairs, section.length))

    return _population(section, leaf_json.digests(sides), lambda: leaf_json.names(sides["train"]), stream)


def joined_windows(user: LeafUser, where: str) -> list[str]:
    """Join a user's windows to texts: x is any number of characters and y the next one.

    A window that does not continue the one before begins a new text.
    """
    texts: list[list[str]] = []
    expected = None
    for x, y in zip(user.x, user.y, strict=True):
        if not (isinstance(x, str) and isinstance(y, str) and x and len(y) == 1):
            raise DataError(f"{where}: expected x a text and y its next character, found {x!r:.40} and {y!r:.40}")
        if x == expected:
            texts[-1].append(y)
        else:
            texts.append([x, y])
        expected = (x + y)[1:]
    return ["".join(pieces) for pieces in texts]


def _stacked(
    pairs: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]], length: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    nothing = np.empty((0, length), np.uint8)
    return np.concatenate([nothing, *(x for x, _ in pairs)]), np.concatenate([nothing, *(y for _, y in pairs)])
