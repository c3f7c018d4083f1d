"""One file of a mirror, from the URI to this machine: whole and as the index says, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysim import whole
from raysim.elsewhere import here
from raysim.elsewhere.index import INDEX, Content
from raysim.elsewhere.remote import Remote
from raysim.errors import RemoteError


def fetch(remote: Remote, name: str, target: Path, allowed: Sequence[Content]) -> Content:
    """Write the file to `target`; returns which of the contents allowed it has.

    Raises:
        RemoteError: it has none of them, or cannot be read; `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole.aside(target) as aside:
        with aside.open("wb") as file:
            file.writelines(remote.read(name))
        found = here.content(aside)
        if found not in allowed:
            expected = " or ".join(f"{own.num_bytes} bytes with blake2b {own.blake2b}" for own in allowed)
            raise RemoteError(
                f"{remote.uri}/{name} is damaged: expected {expected}, as {INDEX} there says, found "
                f"{found.num_bytes} bytes with {found.blake2b}"
            )
    return found
