"""Tells two machines that upload to one URI at the same moment of each other: at least one of them, or both.

To look at the index and to change the folder are two requests, between which another machine may do the same; a store
has no lock. So an upload puts a claim, an empty file of its own, before it looks at the index for the last time. Then
it deletes the claims that others have put before. At its end it looks once more: its claim was deleted by a later
upload, or there is a new one, or nobody was there meanwhile.

Of two uploads that overlap, let B have put its claim after A. If A's is there when B lists them, B deletes it, and A
misses it at the end. If it is not, A was at its end by then: it saw the claim of B, or had ended before B looked at the
index. No clock is asked, and the claim of a killed upload harms nobody. It takes a store that shows what was put and
deleted at once, as S3, Google's, Azure's and disks of one machine do; NFS may show it later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from raysim.errors import RemoteError
from raysim.storage.remote.remote import Remote

_CLAIM = ".uploading-"


@contextmanager
def claimed(remote: Remote, check: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Claim the folder during the block.

    Args:
        remote: the folder.
        check: looks at the index, and raises if it is another machine's.

    Yields:
        A function that returns whether no other upload has claimed the folder since; call it after the last change.

    Raises:
        RemoteError: nothing answers, or from `check`.
    """
    own = f"{_CLAIM}{uuid.uuid4().hex}"
    remote.mark(own)
    try:
        check()
        for other in remote.beginning_with(_CLAIM):
            if other != own:
                remote.delete(other)
        yield lambda: remote.beginning_with(_CLAIM) == [own]
    finally:
        # What stays of it harms nobody, and an error of the block is not replaced.
        with suppress(RemoteError):
            remote.delete(own)
