"""A study's database that was damaged or edited: an error that names it, and no other numbers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

import tuning
from tuning import trials_file
from tuning.storage import answering

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
        ("delete from trial_user_attributes", "Trial 0 is damaged in the study's storage: its slot is None"),
        ("delete from trial_user_attributes where key = 'seal'", "its record is not the one that was written"),
        ("update trials set number = 9 - number", "it was lost|its record is not the one that was written"),
        ("update trials set number = 1 - number where number < 2 and state = 'COMPLETE'", "is damaged|was lost"),
        (
            "update trial_intermediate_values set intermediate_value = intermediate_value + 0.125",
            "its record is not the one that was written",
        ),
        ("delete from trial_intermediate_values", "its record is not the one that was written"),
        ("delete from trials where number = 0", "has no trial 0, and has later ones"),
        (
            "update trial_user_attributes set value_json = '\"x\"' where key = 'kind'",
            "Row 0 of the study's processes is damaged in its storage: its kind is 'x'",
        ),
        ("delete from trial_user_attributes where key = 'process'", "processes is damaged .* its process is None"),
        ("delete from trial_user_attributes where key = 'identity'", "processes is damaged .* its identity is None"),
        (
            "update trial_user_attributes set value_json = '99999999999' where key = 'count'",
            "processes is damaged .* its count is 99999999999",
        ),
        ("delete from trials", "but its storage, .*, has none of them"),
        ("update trials set datetime_start = 'yesterday'", "is damaged"),
    ],
)
def test_a_damaged_row_is_an_error(statement: str, why: str, study: Study, tmp_path: Path) -> None:
    study(final=0)
    edited(tmp_path / "study", statement)
    with pytest.raises(tuning.StudyError, match=why):
        study(final=0)


@pytest.mark.parametrize(
    ("start", "content"),
    [
        (0, b"no database"),
        (16, b"\xff" * 84),
        (4096, bytes(40_000)),
    ],
)
def test_a_damaged_file_is_named_with_the_way_on(start: int, content: bytes, study: Study, tmp_path: Path) -> None:
    study(final=0)
    file = tmp_path / "study" / "study.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:start] + content + whole[start + len(content) :])
    calls: list[Callable[[], object]] = [lambda: study(final=0), lambda: tuning.read(tmp_path / "study")]
    for call in calls:
        with pytest.raises(tuning.StorageError, match=r"study\.db is damaged: .*Put back a copy of it.*another folder"):
            call()


def test_a_lost_table_is_damage(study: Study, tmp_path: Path) -> None:
    study(final=0)
    connection = sqlite3.connect(tmp_path / "study" / "study.db")
    connection.execute("alter table trials drop column state")
    connection.close()
    with pytest.raises(tuning.StorageError, match=r"study\.db is damaged: .*state"):
        study(final=0)


def test_a_busy_file_is_not_damaged() -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    with pytest.raises(tuning.StorageError, match="no longer answers"), answering("sqlite:///x.db"):
        raise SQLAlchemyError("wrapped") from busy


def test_a_step_of_a_trial_that_is_not_at_its_end_is_compared(study: Study, tmp_path: Path) -> None:
    study(final=0)
    opened = "select trial_id from trial_user_attributes where key = 'slot' and value_json = '2'"
    edited(tmp_path / "study", f"update trials set state = 'RUNNING' where trial_id in ({opened})")
    edited(
        tmp_path / "study",
        f"update trial_intermediate_values set intermediate_value = 0.125 where trial_id in ({opened})",
    )
    with pytest.raises(
        tuning.StudyError, match=r"Trial 2 is damaged .* its value at step \d+ is .*, and the storage has 0"
    ):
        study(final=0)


def a_trial_under_way(folder: Path, slot: int) -> None:
    """Have the storage say that the trial in a slot is still under way."""
    of_slot = f"select trial_id from trial_user_attributes where key = 'slot' and value_json = '{slot}'"
    edited(folder, f"update trials set state = 'RUNNING' where trial_id in ({of_slot})")


@pytest.mark.parametrize("other", [0, 7])
def test_a_trial_under_way_keeps_its_slot(other: int, study: Study, tmp_path: Path) -> None:
    """It would stand for the trial of the other slot, whose result was lost, and its own slot would be filled again."""
    study(final=0)
    a_trial_under_way(tmp_path / "study", 2)
    edited(
        tmp_path / "study",
        f"update trial_user_attributes set value_json = '{other}' where key = 'slot' and value_json = '2'",
    )
    with pytest.raises(tuning.StudyError, match=f"Trial 2 is damaged in the study's storage: its slot is {other}"):
        study(final=0)


def test_a_trial_under_way_of_an_earlier_version_has_no_digest_of_its_slot(study: Study, tmp_path: Path) -> None:
    found = study(final=0)
    a_trial_under_way(tmp_path / "study", 2)
    edited(tmp_path / "study", "delete from trial_user_attributes where key = 'slot_seal'")
    assert study(final=0).best == found.best


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("update study_directions set direction = 'MAXIMIZE'", "is to maximize, and its objective is to minimize"),
        ("update trials set state = 'FAIL' where state = 'PRUNED'", "its outcome is 'pruned', and its state FAIL"),
        ("update trials set state = 'COMPLETE' where state = 'PRUNED'", "its outcome is 'pruned', and its state COMP"),
        (
            "update trial_params set distribution_json = replace(distribution_json, '10.0', '90.0')",
            r"client\.optimizer\.lr is of .*high=90\.0.*, and the space has .*high=10\.0",
        ),
    ],
)
def test_what_later_trials_are_proposed_from_is_compared(
    statement: str, why: str, study: Study, tmp_path: Path
) -> None:
    """Samplers and pruners read it: the trials to come would be others, without a word."""
    settings: Any = {
        "space": {"client.optimizer.lr": {"log": [0.001, 10.0]}},
        "sampler": {"name": "tpe", "startup": 2},
        "objective": {"name": "loss"},
        "pruner": {"name": "median", "startup": 1},
        "final": 0,
    }
    begun = study(**settings, trials=5)
    assert begun.counts["pruned"]
    edited(tmp_path / "study", statement)
    with pytest.raises(tuning.StudyError, match=why):
        study(**settings, trials=6)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "update study_user_attributes set value_json = replace(value_json, '\"accuracy\"', '\"loss\"') "
            "where key = 'identity'",
            "its settings are not those that .*study was claimed with",
        ),
        ("update study_user_attributes set value_json = '\"rouods\"' where key = 'unit'", "its budget counts 'rouods'"),
    ],
)
def test_what_a_study_is_read_by_is_compared(statement: str, why: str, study: Study, tmp_path: Path) -> None:
    """By another objective another trial would be the best."""
    study(final=0)
    edited(tmp_path / "study", statement)
    with pytest.raises(tuning.StudyError, match=why):
        tuning.read(tmp_path / "study")


def test_a_storage_without_the_folders_trials_is_refused(study: Study, tmp_path: Path) -> None:
    found = study(final=0)
    (tmp_path / "study" / "study.db").write_bytes(b"")
    with pytest.raises(tuning.StudyError, match=r"holds trials of the study, but its storage"):
        study(final=0)
    shutil.rmtree(tmp_path / "study" / "trials")
    assert study(final=0).best == found.best


def test_trials_and_tables_of_another_study_are_refused(study: Study, tmp_path: Path) -> None:
    own = study(final=0).path
    other = own.rename(tmp_path / "other")
    study(final=0, seeds=2)
    for of_study in (own, other):
        assert tuning.read(of_study).regret
    shutil.copy(other / "trials.parquet", own)
    with pytest.raises(tuning.StudyError, match=r"trials\.parquet is of another study than"):
        trials_file.read(own)
    shutil.rmtree(own / "trials" / "0001" / "seed-1")
    shutil.copytree(own / "trials" / "0001" / "seed-0", own / "trials" / "0001" / "seed-1")
    with pytest.raises(tuning.StudyError, match=r"seed-1 holds another run than that of its trial"):
        tuning.read(own)


@pytest.mark.parametrize("lost", ["clients", "rounds.parquet"])
def test_a_study_says_that_figures_of_clients_are_lost(
    lost: str, study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The regret would be left out in silence; or be that of fewer rounds than count."""
    settings: Any = {"final": 0, "objective": {"name": "loss", "last": 4}}
    whole = study(**settings)
    assert tuning.read(whole.path).regret == whole.regret != ()
    run = whole.path / "trials" / "0001" / "seed-0"
    tables = sorted((run / "clients").iterdir())
    assert len(tables) > 1
    (tables[-1] if lost == "clients" else run / lost).unlink()
    for again in (study(**settings), tuning.read(whole.path)):
        assert again.regret == ()
        assert again.best == whole.best
    assert sum("regret of the study's choice is not estimated" in said for said in caplog.messages) == 2


def test_a_damaged_study_is_not_read(study: Study, tmp_path: Path) -> None:
    study(final=0)
    edited(tmp_path / "study", "update study_user_attributes set value_json = '{}' where key = 'identity'")
    with pytest.raises(tuning.StudyError, match=r"is damaged: its settings are not those"):
        tuning.read(tmp_path / "study")


@pytest.mark.parametrize(
    "statement",
    [
        "update study_user_attributes set value_json = replace(value_json, '0.', '1.') where key = 'final/0'",
        "update study_user_attributes set value_json = '{}' where key = 'final/0'",
        "update study_user_attributes set value_json = '5' where key = 'final/0'",
        "update study_user_attributes set key = 'final/x' where key = 'final/0'",
        "update study_user_attributes set key = 'final/77' where key = 'final/0'",
    ],
)
def test_the_result_of_a_final_run_is_the_one_that_was_written(statement: str, study: Study, tmp_path: Path) -> None:
    found = study()
    edited(tmp_path / "study", statement.replace("final/0", f"final/{found.best.number}"))
    why = r"The result of the final runs of trial \w+ is damaged"
    with pytest.raises(tuning.StudyError, match=why):
        study()
    with pytest.raises(tuning.StudyError, match=why):
        tuning.read(tmp_path / "study")


def test_clients_of_another_round_are_refused(study: Study, tmp_path: Path) -> None:
    study(final=0)
    clients = tmp_path / "study" / "trials" / "0000" / "seed-0" / "clients"
    first, *_, last = sorted(clients.iterdir())
    first.replace(tmp_path / "aside")
    last.replace(first)
    (tmp_path / "aside").replace(last)
    with pytest.raises(tuning.StudyError, match="holds round 1: files were exchanged"):
        study(final=0)


@pytest.mark.parametrize("place", ["trials", "trials/0001", "trials/0001/seed-0", "study.db", "best.toml"])
def test_nothing_is_written_or_removed_through_a_link_out_of_the_folder(
    place: str, study: Study, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    (victim / "seed-0").mkdir(parents=True)
    (victim / "notes.txt").write_text("mine")
    link = tmp_path / "study" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(victim / "notes.txt" if link.suffix else victim)
    before = sorted(victim.rglob("*"))
    with pytest.raises(tuning.StudyError, match=rf"{place} is a symbolic link to .*victim.*, outside of"):
        study(final=0)
    assert sorted(victim.rglob("*")) == before
    assert (victim / "notes.txt").read_text() == "mine"


def test_a_link_within_the_folder_and_a_folder_that_is_a_link_are_the_users(study: Study, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "study" / "newest").symlink_to("trials")
    assert study(final=0).best.number in (0, 1, 2)
