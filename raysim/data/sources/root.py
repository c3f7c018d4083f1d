"""Where a source's public files lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from raysim.data.sources.published import Published
from raysim.errors import DataError, MissingFileError
from raysim.storage.remote.uri import uri_of


def places(root: str | None, folder: str, key: str = "root") -> list[Path]:
    """Where a source's files may lie, the first one first: `root` alone where it is given, else
    `$RAYSIM_DATA/<folder>` and `data/<folder>`; `key` names it in the error."""
    if root is not None:
        if (uri := uri_of(root)) is not None:
            raise DataError(
                f"data.{key} must be a folder of this machine for this source, but is {uri}: only data.name = 'arrow' "
                f"reads from a URI. What was prepared here, others fetch where RAYSIM_STORE names a URI"
            )
        return [Path(root).expanduser()]
    beside = os.environ.get("RAYSIM_DATA")
    return [*([Path(beside).expanduser() / folder] if beside else []), Path("data") / folder]


def locate(root: str | None, folder: str, wanted: Sequence[Published], key: str = "root") -> Path:
    """The folder of a source's files: the first of its `places` that is there.

    Args:
        root: the section's key.
        folder: the source's usual folder name.
        wanted: the files, for the error.
        key: the name of the section's key.

    Raises:
        MissingFileError: no such folder; says where it was looked for, what belongs there and where it is published.
    """
    looked_at = places(root, folder, key)
    for place in looked_at:
        if place.is_dir():
            return place
    above = "" if root is not None else ", or the folder above it in the environment variable RAYSIM_DATA"
    raise MissingFileError(
        f"there is no folder {' or '.join(map(str, looked_at))}: put {_listed(wanted)} there (published at "
        f"{_address(wanted)}), or name another folder with data.{key}{above}"
    )


def _listed(wanted: Sequence[Published]) -> str:
    *names, last = (file.name for file in wanted)
    return f"{', '.join(names)} and {last}" if names else last


def _address(wanted: Sequence[Published]) -> str:
    """Of one file or archive, or the folders above those of several."""
    addresses = dict.fromkeys(file.address for file in wanted)
    if len(addresses) > 1:
        addresses = dict.fromkeys(address.rpartition("/")[0] for address in addresses)
    return " and ".join(addresses)
