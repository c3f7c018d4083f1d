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


class Index(Section):
    """The folder at the URI.

    checksum: seals the file (storage/sealed.py). version: changes with every change of the folder. changes: their
    number, which tells an older state from a newer one; 0: written by a raysim that did not count. files: name -> its
    allowed contents: one, or two while it is replaced; None: the file may be missing.
    """

    checksum: str = sealed.BLANK
    version: str
    changes: int = Field(0, ge=0)
    files: dict[FileName, tuple[Content | None, ...]]


class Known(NamedTuple):
    """The state of a local file when it was equal to the file at the URI; mtime_ns: -1 if it must be read again."""

    content: Content
    mtime_ns: int


class Record(Section):
    """The uploaded or fetched files.

    checksum: as in `Index`. uri: of the folder. versions: the versions that this machine wrote or fetched; empty: it
    never reached the URI. changes: those of the last index that it wrote or fetched. ahead: what differs here from
    `files` may be newer than the URI, because raysim changes the copy, or was killed when it did; a record of an
    earlier raysim does not say. files: by name.
    """

    checksum: str = sealed.BLANK
    uri: str
    versions: tuple[str, ...] = ()
    changes: int = Field(0, ge=0)
    ahead: bool = True
    files: dict[FileName, Known] = Field(default_factory=dict)
