"""A study's SQLite file has a log while it is open on a disk of this machine, and is one file before and after."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tuning import write_ahead
from tuning.storage import open_storage
from tuning.write_ahead import is_here

MOUNTS = """\
/dev/sda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb /home/me/my\\040disk xfs rw 0 0
proc /proc proc rw 0 0
first /twice ext4 rw 0 0
second /twice nfs rw 0 0
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's table of file systems")


def mode(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


@linux
@pytest.mark.parametrize(
    ("file", "here"),
    [
        ("/data/study.db", True),
        ("/homework/study.db", True),
        ("/home/me/study.db", False),
        ("/home/me/my disk/new/study.db", True),
        ("/proc/study.db", False),
        ("/twice/study.db", False),
    ],
)
def test_a_disk_is_known_by_its_file_system(file: str, here: bool, tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert is_here(Path(file), table) == here


@linux
def test_nothing_is_known_without_the_table(tmp_path: Path) -> None:
    assert not is_here(tmp_path / "study.db", tmp_path / "missing")
    (tmp_path / "mounts").write_bytes(b"\xff\n\n")
    assert not is_here(tmp_path / "study.db", tmp_path / "mounts")


def test_the_log_is_there_while_the_storage_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuning.storage.is_here", lambda file: True)
    file = tmp_path / "study.db"
    for _ in range(2):
        with open_storage(f"sqlite:///{file}") as storage:
            storage.get_all_studies()
            assert mode(file) == "wal"
        assert mode(file) == "delete"
        assert os.listdir(tmp_path) == [file.name]


def test_there_is_no_log_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuning.storage.is_here", lambda file: False)
    with open_storage(f"sqlite:///{tmp_path / 'study.db'}") as storage:
        storage.get_all_studies()
        assert mode(tmp_path / "study.db") == "delete"


def test_a_file_that_another_process_uses_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuning.storage.is_here", lambda file: True)
    file = tmp_path / "study.db"
    with open_storage(f"sqlite:///{file}") as one:
        one.get_all_studies()
        with open_storage(f"sqlite:///{file}") as other:
            other.get_all_studies()
        assert mode(file) == "wal"
        one.get_all_studies()
    assert mode(file) == "delete"


KILLED = """
import os, signal, sys
from optuna.study import StudyDirection
from tuning import storage
storage.is_here = lambda file: True
with storage.open_storage(sys.argv[1]) as opened:
    study = opened.create_new_study([StudyDirection.MAXIMIZE], "kept")
    opened.set_study_user_attr(study, "number", 7)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    root = Path(write_ahead.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", KILLED, url], cwd=root, timeout=240)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "study.db-wal").stat().st_size
    with open_storage(url) as storage:
        assert storage.get_study_user_attrs(storage.get_study_id_from_name("kept")) == {"number": 7}
    assert os.listdir(tmp_path) == ["study.db"]
