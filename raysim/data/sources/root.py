"""Where a source's public files lie."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.elsewhere.uri import uri_of
from raysim.errors import DataError


def places(root: str | None, folder: str) -> list[Path]:
    """Where a source's files may lie, the first one first: `root` alone where it is given, else
    `$RAYSIM_DATA/<folder>` and `data/<folder>`."""
    if root is not None:
        if (uri := uri_of(root)) is not None:
            raise DataError(
                f"data.root must be a folder of this machine for this source, but is {uri}: only data.name = 'arrow' "
                f"reads from a URI. What was prepared here, others fetch where RAYSIM_STORE names a URI"
            )
        return [Path(root).expanduser()]
    beside = os.environ.get("RAYSIM_DATA")
    return [*([Path(beside).expanduser() / folder] if beside else []), Path("data") / folder]


def locate(root: str | None, folder: str, published_at: str) -> Path:
    """The folder of a source's files: the first of its `places` that is there.

    Args:
        root: the section's key.
        folder: the source's usual folder name.
        published_at: addresses for the error.

    Raises:
        DataError: no such folder; says where it was looked for and where the files are published.
    """
    looked_at = places(root, folder)
    for place in looked_at:
        if place.is_dir():
            return place
    raise DataError(
        f"there is no folder {' or '.join(map(str, looked_at))}: put the files there (published at {published_at}), or "
        f"name another folder with data.root, or the folder above it in the environment variable RAYSIM_DATA"
    )
