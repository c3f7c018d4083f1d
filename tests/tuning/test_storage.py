"""What a study says when its storage is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from sqlalchemy.dialects.postgresql import dialect

import raysim
import tuning
from tuning.errors import StorageError, StudyError
from tuning.storage import answering, default_url


def _of_the_library() -> None:
    """Have SQLAlchemy read a row that a server did not send."""
    connection = Mock()
    connection.cursor.return_value.fetchone.return_value = None
    postgresql: Any = dialect
    postgresql().get_isolation_level(connection)


@pytest.fixture
def lost() -> str:
    """The URL of a server that is not there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"postgresql://user:secret@127.0.0.1:{probe.getsockname()[1]}/name"


def test_a_row_that_never_came_is_a_storage_that_no_longer_answers(lost: str) -> None:
    pytest.importorskip("psycopg")
    said = r"no longer answers: 'NoneType' object is not subscriptable"
    with pytest.raises(StorageError, match=said) as raised, answering(lost):
        _of_the_library()
    assert "secret" not in str(raised.value)


def test_an_error_of_others_passes_unchanged_while_a_server_is_lost(lost: str) -> None:
    with pytest.raises(TypeError, match="of a part"), answering(lost):
        raise TypeError("of a part")


@pytest.mark.parametrize("url", ["sqlite:///study.db", "journal:study.log"])
def test_an_error_of_the_library_passes_unchanged_where_there_is_no_server(url: str) -> None:
    with pytest.raises(TypeError, match="not subscriptable"), answering(url):
        _of_the_library()


def test_a_study_lies_in_its_folder_whatever_its_letters(
    tuned: Callable[..., raysim.Experiment], small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """In a URL "?" ends a path, "%20" is a blank, and Optuna fills in what stands in braces."""
    where = tmp_path / "lr?=50%20{x}" / "study"
    found = tuning.tune(tuned(), dataset=small, path=where)
    assert (where / "study.db").is_file()
    assert [each.name for each in tmp_path.iterdir() if each.name != "runs"] == [where.parent.name]
    assert tuning.read(where).best == found.best


def test_a_folder_that_no_url_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="because no URL names it"):
        default_url(Path(f"{tmp_path}/\udcff"))


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///study.db", "study.db"),
        ("journal:study.log", "study.log"),
        ("sqlite:///file:study.db?uri=true", "study.db"),
    ],
)
def test_a_storage_stays_where_it_was_opened_when_a_part_changes_the_working_folder(
    url: str,
    file: str,
    tuned: Callable[..., raysim.Experiment],
    small: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    def linear() -> torch.nn.Module:
        os.chdir(elsewhere)
        return torch.nn.Linear(5, 3)

    exp = tuned(storage=url, final=0).changed({"model": None})
    how: dict[str, Any] = {"dataset": small, "model": linear, "path": "study"}
    found = tuning.tune(exp, **how)
    assert (tmp_path / file).is_file()
    assert not [*elsewhere.iterdir()]
    os.chdir(tmp_path)
    assert tuning.read("study", storage=url).best == tuning.tune(exp, **how).best == found.best
