"""A source's files at a URI: fetched to this machine's cache, and again once they have changed there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from raysim import whole
from raysim.cache_root import cache_root
from raysim.checksum import hasher
from raysim.elsewhere.remote import Remote
from raysim.errors import DataError


def fetch(uri: str, names: Iterable[str]) -> Path:
    """The folder here that holds these files of the folder there.

    Raises:
        DataError: one of them is not there.
        RemoteError: nothing answers.
    """
    remote, digest = Remote(uri), hasher()
    digest.update(remote.uri.encode())
    folder = cache_root() / "files" / digest.hexdigest()
    for name in names:
        stamp, target = remote.stamp(name), folder / name
        if stamp is None:
            remote.check()
            raise DataError(f"{remote.uri}/{name} is missing: data.root names the folder of the files")
        known = target.with_name(f".{target.name}.stamp")
        if not (target.exists() and known.exists() and known.read_text() == stamp):
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole.aside(target) as aside:
                with aside.open("wb") as file:
                    file.writelines(remote.read(name))
                # Another process may do the same; whoever is last has what is there now.
                known.unlink(missing_ok=True)
            known.write_text(stamp)
    return folder
