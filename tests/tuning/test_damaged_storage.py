"""A study's database that was damaged or edited: an error that names it, and no other numbers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import tuning

Study = Callable[..., tuning.Study]


def edited(folder: Path, statement: str) -> None:
    """Carry out a statement of SQL, which must change something."""
    connection = sqlite3.connect(folder / "study.db")
    with connection:
        assert connection.execute(statement).rowcount
    connection.close()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("delete from trial_params", "it has no value of client.optimizer.lr"),
        ("update trial_params set param_value = 77", "is damaged"),
        ("update trial_params set param_value = (param_value + 1) % 3", "its record is not the one that was written"),
        ("update trial_values set value = value + 0.125", "its record is not the one that was written"),
        ("delete from trial_values", "its value is None"),
        ("update trial_values set value = null", "is damaged"),
        ("update trial_user_attributes set value_json = '\"x\"' where key = 'slot'", "its slot is 'x'"),
        ("update trial_user_attributes set value_json = '-5' where key = 'slot'", "its slot is -5"),
        ("update trial_user_attributes set value_json = '[]' where key = 'facts'", r"its facts are \[\]"),
        ("update trial_user_attributes set value_json = '\"won\"' where key = 'outcome'", "its outcome is 'won'"),
        ("update trial_user_attributes set value_json = '{' where key = 'facts'", "is damaged"),
        ("delete from trial_user_attributes", "but its storage, .*, has none of them"),
        ("delete from trials", "but its storage, .*, has none of them"),
        ("update trials set datetime_start = 'yesterday'", "is damaged"),
    ],
)
def test_a_damaged_row_is_an_error(statement: str, why: str, study: Study, tmp_path: Path) -> None:
    study(final=0)
    edited(tmp_path / "study", statement)
    with pytest.raises(tuning.StudyError, match=why):
        study(final=0)


def test_a_storage_without_the_folders_trials_is_refused(study: Study, tmp_path: Path) -> None:
    found = study(final=0)
    (tmp_path / "study" / "study.db").write_bytes(b"")
    with pytest.raises(tuning.StudyError, match=r"holds trials of the study, but its storage"):
        study(final=0)
    shutil.rmtree(tmp_path / "study" / "trials")
    assert study(final=0).best == found.best


def test_a_damaged_study_is_not_read(study: Study, tmp_path: Path) -> None:
    study(final=0)
    edited(tmp_path / "study", "update study_user_attributes set value_json = '{}' where key = 'identity'")
    with pytest.raises(tuning.StudyError, match="'tuning'"):
        tuning.read(tmp_path / "study")
