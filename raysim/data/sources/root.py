"""Locates the folder of a source's public files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysim.data.sources.published import Published
from raysim.errors import DataError, MissingFileError
from raysim.storage.cache import named_folder
from raysim.storage.remote.uri import uri_of


def places(root: str | None, folder: str, key: str = "root") -> list[Path]:
    """Return the possible folders of a source's files, in order of search.

    These are `root` alone if it is set, else `$RAYSIM_DATA/<folder>` and `data/<folder>`; `key` names it in the error.
    """
    if root is not None:
        if (uri := uri_of(root)) is not None:
            raise DataError(
                f"data.{key} must be a folder of this machine for this source, but is {uri}: only data.name = 'arrow' "
                f"reads from a URI. Set RAYSIM_STORE to a URI to share prepared datasets between machines"
            )
        return [Path(root).expanduser()]
    beside = named_folder("RAYSIM_DATA")
    return [*([] if beside is None else [beside / folder]), Path("data") / folder]


def locate(root: str | None, folder: str, files: Sequence[Published], key: str = "root") -> Path:
    """Return the folder of a source's files: the first of its `places` that exists.

    Args:
        root: the section's key.
        folder: the source's usual folder name.
        files: the files, for the error.
        key: the name of the section's key.

    Raises:
        MissingFileError: no such folder; states the places searched, the files and where they are published.
    """
    looked_at = places(root, folder, key)
    for place in looked_at:
        if place.is_dir():
            return place
    if file := next((place for place in looked_at if place.is_file()), None):
        raise MissingFileError(f"{file} is a file: name the folder that holds {_listed(files)} (data.root)")
    above = "" if root is not None else ", or the folder above it in the environment variable RAYSIM_DATA"
    published = f" (published at {address})" if (address := _address(files)) else ""
    raise MissingFileError(
        f"there is no folder {' or '.join(map(str, looked_at))}: put {_listed(files)} there{published}, or name "
        f"another folder with data.{key}{above}"
    )


def _listed(files: Sequence[Published]) -> str:
    *names, last = (file.name for file in files)
    return f"{', '.join(names)} and {last}" if names else last


def _address(files: Sequence[Published]) -> str:
    """Return the address of one file or archive, or the folders above those of several."""
    addresses = dict.fromkeys(file.address for file in files)
    if len(addresses) > 1:
        addresses = dict.fromkeys(address.rpartition("/")[0] for address in addresses)
    return " and ".join(addresses)
