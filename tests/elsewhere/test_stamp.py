"""A file at a URI is known again by what its file system says of it, also where a rewrite leaves size and time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from raysim.storage.remote.remote import Remote


def test_a_file_that_is_replaced_by_one_of_its_size_has_another_stamp(shared: str, tmp_path: Path) -> None:
    remote, here = Remote(shared), tmp_path / "here"
    tick_ns = time.time_ns()

    def put(text: str) -> str | None:
        here.write_text(text)
        remote.put(here, "t.parquet")
        if shared.startswith("file:"):
            # A copy that keeps the time of what it is a copy of.
            os.utime(Path(shared.removeprefix("file://")) / "t.parquet", ns=(tick_ns, tick_ns))
        return remote.stamp("t.parquet")

    assert remote.stamp("t.parquet") is None
    first = put("one")
    assert first is not None
    assert remote.stamp("t.parquet") == first
    assert put("two") != first
