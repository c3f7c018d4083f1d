"""What a mirror knows: the index beside the files at the URI, and the record of what was put or fetched here."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from raysim.config.section import Section

INDEX = "mirror.json"
"""The index's name at the URI, and the record's name here."""


class Content(NamedTuple):
    """What a file holds, as far as a reader must know."""

    num_bytes: int
    blake2b: str


class Index(Section):
    """The folder at the URI.

    version: another one each time that the folder has changed. files: name -> what its content may be: one, or two
    while it is being replaced; None: it may not be there yet.
    """

    version: str
    files: dict[str, tuple[Content | None, ...]]


class Known(NamedTuple):
    """A file as it lay here when it was the same at the URI."""

    content: Content
    mtime_ns: int


class Record(Section):
    """What was put or fetched.

    uri: of the folder. versions: which of its versions were written or fetched by this machine; none: it was never
    reached. files: by name.
    """

    uri: str
    versions: tuple[str, ...] = ()
    files: dict[str, Known] = Field(default_factory=dict)
