"""A study in a journal goes on after a full disk, and after a kill in the middle of a line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

import raysim
import tuning

Study = Callable[..., tuning.Study]


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b'{"op_code":4,"worker_id":"abc","trial')


def test_a_full_disk_leaves_whole_lines(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, calls = tmp_path / "study.log", 0

    def written(file: FileIO, lines: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            file.write(lines[: len(lines) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(lines)

    with monkeypatch.context() as full:
        full.setattr("tuning.journal._write", written)
        with pytest.raises(
            raysim.DiskError, match=r"study\.log could not be written: No space left .* make room, then"
        ):
            study(storage=f"journal:{journal}", final=0)
    assert journal.read_bytes().endswith(b"\n")
    assert study(storage=f"journal:{journal}", final=0).counts == {"finished": 3}


def test_a_line_that_was_cut_off_is_dropped(study: Study, tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    found = study(storage=f"journal:{journal}", final=0)
    cut_off(journal)
    for _ in range(2):
        assert study(storage=f"journal:{journal}", final=0).best == found.best
