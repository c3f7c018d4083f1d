"""Where a source's public files lie."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.errors import DataError


def locate(root: str | None, folder: str, published_at: str) -> Path:
    """The folder of a source's files: `root` where it is given, else `$RAYSIM_DATA/<folder>`, else `data/<folder>`.

    Args:
        root: the section's key.
        folder: the source's usual folder name.
        published_at: addresses for the error.

    Raises:
        DataError: no such folder; says where it was looked for and where the files are published.
    """
    if root is not None:
        places = [Path(root).expanduser()]
    else:
        beside = os.environ.get("RAYSIM_DATA")
        places = [*([Path(beside).expanduser() / folder] if beside else []), Path("data") / folder]
    for place in places:
        if place.is_dir():
            return place
    looked = " or ".join(str(place) for place in places)
    raise DataError(
        f"there is no folder {looked}: put the files there (published at {published_at}), or name another folder with "
        f"data.root, or the folder above it in the environment variable RAYSIM_DATA"
    )
