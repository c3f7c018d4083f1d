"""Defines a mirror's index beside the files at the URI, and the local record of uploads and fetches."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from raysim.config.section import Section
from raysim.storage import inside, sealed

INDEX = "mirror.json"
"""The index's name at the URI, and the record's name here."""


def flaw(name: str) -> str | None:
    """Return why a mirror has no file of this name; None if it may have one."""
    if (why := inside.flaw(name)) is not None:
        return why
    return "is hidden" if any(part.startswith(".") for part in name.split("/")) else None


def _mirrored(name: str) -> str:
    if (why := flaw(name)) is not None:
        raise ValueError(f"the file name {name!r} {why}")
    return name


FileName = Annotated[str, AfterValidator(_mirrored)]
"""The name of a mirror's file: a path below the folder, no part of which is hidden."""


class Content(NamedTuple):
    """Size and checksum of a file."""

    num_bytes: int
    blake2b: str


class Stretch(NamedTuple):
    """Successive changes of a folder by one copy.

    writer: an identifier, drawn anew whenever a copy has taken what another machine wrote. changes: the number of the
    last change.
    """

    writer: str
    changes: int


Line = tuple[Stretch, ...]
"""The stretches that led to a state of a folder, oldest first; empty: an earlier raysim wrote it, or nobody."""


def descends(line: Line, known: Line) -> bool:
    """Return whether a state with this line was made from the one with the known line, or is that one.

    >>> first, second = Stretch("one", 4), Stretch("two", 9)
    >>> descends((first, second), (first,)), descends((first, second), (Stretch("one", 6),))
    (True, False)
    """
    return not known or any(each.writer == known[-1].writer and each.changes >= known[-1].changes for each in line)


class Index(Section):
    """The folder at the URI.

    checksum: seals the file (storage/sealed.py). version: changes with every change of the folder. changes: their
    number; 0: written by a raysim that did not count. line: who made them, which tells whether a state came from
    another. files: name -> its allowed contents: one, or two while it is replaced; None: the file may be missing.
    """

    checksum: str = sealed.BLANK
    version: str
    changes: int = Field(0, ge=0)
    line: Line = ()
    files: dict[FileName, tuple[Content | None, ...]]


class Known(NamedTuple):
    """The state of a local file when it was equal to the file at the URI; mtime_ns: -1 if it must be read again."""

    content: Content
    mtime_ns: int


class Record(Section):
    """The uploaded or fetched files.

    checksum: as in `Index`. uri: of the folder. versions: the versions that this machine wrote or fetched; empty: it
    never reached the URI. changes, line: those of the last index that it wrote or fetched. writer: see `Stretch`; "":
    not drawn yet. ahead: what differs here from `files` may be newer than the URI, because raysim changes the copy, or
    was killed when it did; a record of an earlier raysim does not say. files: by name.
    """

    checksum: str = sealed.BLANK
    uri: str
    versions: tuple[str, ...] = ()
    changes: int = Field(0, ge=0)
    line: Line = ()
    writer: str = ""
    ahead: bool = True
    files: dict[FileName, Known] = Field(default_factory=dict)
