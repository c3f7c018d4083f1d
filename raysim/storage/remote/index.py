"""Defines a mirror's index beside the files at the URI, and the local record of uploads and fetches."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from raysim.config.section import Section

INDEX = "mirror.json"
"""The index's name at the URI, and the record's name here."""


class Content(NamedTuple):
    """Size and checksum of a file."""

    num_bytes: int
    blake2b: str


class Index(Section):
    """The folder at the URI.

    version: changes with every change of the folder. files: name -> its allowed contents: one, or two while it is
    replaced; None: the file may be missing.
    """

    version: str
    files: dict[str, tuple[Content | None, ...]]


class Known(NamedTuple):
    """The state of a local file when it was equal to the file at the URI."""

    content: Content
    mtime_ns: int


class Record(Section):
    """The uploaded or fetched files.

    uri: of the folder. versions: the versions that this machine wrote or fetched; empty: it never reached the URI.
    files: by name.
    """

    uri: str
    versions: tuple[str, ...] = ()
    files: dict[str, Known] = Field(default_factory=dict)
