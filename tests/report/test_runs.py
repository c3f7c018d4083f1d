"""Runs are found at any depth, and read as far as they go."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim
from raysim.report.runs import find, read_all
from raysim.run_folder import files
from tests.support.run_folders import accuracies, experiment, write


def test_runs_are_found_below_trials_and_sweeps_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    from raysim.run_folder import experiment_record

    for size in (5, 10, 20):
        for trial in range(2):
            write(tmp_path / f"cohort.size={size}" / f"trial-{trial}", accuracies(0.5, 0.6))
        # Trials lie in a folder that has a record of its own, and is not a run.
        experiment_record.write_experiment(tmp_path / f"cohort.size={size}", experiment(trials=2), "")
    found = [str(path.relative_to(tmp_path)) for path in find(tmp_path)]
    assert found == [f"cohort.size={size}/trial-{trial}" for size in (5, 10, 20) for trial in range(2)]


def test_an_empty_folder_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(raysim.RunFolderError, match=r"No run lies in .*: neither it nor a folder below it has an"):
        read_all([tmp_path])
    with pytest.raises(raysim.RunFolderError, match="There is no folder"):
        read_all([tmp_path / "nothing"])


def test_a_run_that_is_still_going_is_read_as_far_as_it_is_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5), rounds=3)
    (run,), notes = read_all([tmp_path])
    assert run.rounds.num_rows == 1
    assert [note.partition("run ")[2] for note in notes] == [
        "has finished 1 of 3 rounds: it is still going, or was stopped, and is shown as far as it is."
    ]


def test_what_is_true_of_several_runs_is_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for trial in range(6):
        write(tmp_path / f"trial-{trial}", accuracies(0.5), rounds=3 if trial else 2)
    monkeypatch.chdir(tmp_path)
    told = "rounds: it is still going, or was stopped, and is shown as far as it is."
    assert read_all([tmp_path])[1] == [
        f"trial-0 has finished 1 of 2 {told}",
        f"Each of trial-1, trial-2, trial-3 and 2 more runs has finished 1 of 3 {told}",
    ]
    assert read_all([tmp_path / "trial-1"])[0][0].notes == (f"trial-1 has finished 1 of 3 {told}",)


def test_a_finished_run_that_has_lost_its_rows_is_not_said_to_be_going(tmp_path: Path) -> None:
    """Its rows are written before their checkpoint, so a run under way has those of its newest checkpoint."""
    path = tmp_path / "run"
    raysim.run(experiment(engine={"workers": 0}), path=path, progress=False)
    (path / "rounds.parquet").unlink()
    (run,), notes = read_all([path])
    assert run.rounds.num_rows == 0
    assert [note for note in notes if "rounds.parquet" in note] == notes
    assert "is missing, but the newest checkpoint has 2 rounds: put the file back" in notes[0]
    with pytest.raises(raysim.RunFolderError, match=r"rounds\.parquet is missing"):
        raysim.read(path)


def test_a_damaged_checkpoint_says_nothing_of_a_run_that_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(engine={"workers": 0}), path=path, progress=False)
    files.checkpoint_file(path, 3).write_bytes(b"damaged")
    (run,), notes = read_all([path])
    assert (run.rounds.num_rows, notes) == (2, [])


def test_damaged_files_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "good", accuracies(0.5, 0.6), clients={"a": 1.0})
    for name in ("rounds", "clients", "record"):
        write(tmp_path / name, accuracies(0.5, 0.6), clients={"a": 1.0})
    (tmp_path / "rounds" / "rounds.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "clients" / "clients" / "round-000001.parquet").write_bytes(b"")
    (tmp_path / "record" / "experiment.json").write_text("{")
    runs, notes = read_all([tmp_path])
    rows = {run.path.name: (run.rounds.num_rows, run.clients.num_rows) for run in runs}
    assert rows == {"clients": (2, 0), "good": (2, 1), "rounds": (0, 1)}
    for note, file in zip(notes, ("record/experiment.json", "round-000001.parquet", "rounds.parquet"), strict=True):
        assert file in note
        assert "left out" in note


def test_a_run_is_read_once_however_often_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run", accuracies(0.5, 0.6))
    runs, _ = read_all([path, tmp_path])
    assert len(runs) == 1


def test_nothing_that_can_be_read_is_an_error_that_says_why(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5))
    (tmp_path / "run" / "experiment.json").write_text("{")
    with pytest.raises(raysim.RunFolderError, match=r"No run can be read\. .*experiment\.json is damaged"):
        read_all([tmp_path])
