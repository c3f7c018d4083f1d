"""Which study a folder and a storage hold: the same one goes on, another one is refused."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.storages import _CachedStorage

import raysim
import tuning
from tuning import folder
from tuning.ledger import Held, Ledger
from tuning.processes import Processes

Make = Callable[..., raysim.Experiment]


def test_a_study_that_is_done_is_read(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    first = study()
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("rounds.parquet")}
    again = study()
    assert again.best == first.best
    assert again.trials == first.trials
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("rounds.parquet")} == written


def test_a_folder_that_cannot_be_made_is_named(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(raysim.DiskError, match=r"file/study could not be written: Not a directory\. First see to that"):
        tuning.tune(tuned(), dataset=small, path=tmp_path / "file" / "study")


def test_a_study_is_read_again(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    found = study(budget={"rounds": 8}, final=1)
    assert tuning.read(tmp_path / "study") == found
    with pytest.raises(raysim.RunFolderError, match=r"tuning\.read\('.*study'\) reads its result"):
        raysim.read(tmp_path / "study")
    with pytest.raises(tuning.StudyError, match=r"is a run's folder: raysim\.read"):
        tuning.read(tmp_path / "study" / "trials" / "0000" / "seed-0")
    with pytest.raises(tuning.StudyError, match=r"no study\.json"):
        tuning.read(tmp_path)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"name": "x", "storage": "sqlite:////etc/passwd"}, "pass the study's storage"),
        ({"name": "x", "storage": "postgresql://host/db"}, "pass the study's storage"),
        ({"name": "x", "storage": "sqlite:///../outside.db"}, "outside|'\\.\\.'"),
        ({"name": "x", "storage": "a table"}, "is not kept"),
        ({"name": "x", "storage": "sqlite:///gone.db"}, "is not there"),
        ({"name": 1}, "must be texts"),
    ],
)
def test_a_folder_from_elsewhere_opens_nothing_outside_of_it(record: dict[str, Any], why: str, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text(json.dumps(record))
    with pytest.raises(tuning.StudyError, match=why):
        tuning.read(tmp_path / "study")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["study", "study.json"]


def test_a_folder_that_was_half_made_is_made_anew(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    first = study(final=1)
    assert first.second is not None
    (tmp_path / "study" / "final" / f"{first.second.number:04d}" / "seed-0" / "checkpoints").mkdir(parents=True)
    whole = study(final=2)
    assert whole.second is not None
    assert "eval/test/accuracy" in whole.second.test


def test_a_study_can_have_more_trials_than_before(study: Callable[..., tuning.Study]) -> None:
    first = study(trials=1)
    assert first.trials.num_rows == 1
    whole = study()
    assert whole.trials.num_rows == 3
    assert sorted(whole.trials["client.optimizer.lr"].to_pylist()) == [0.01, 0.1, 1.0]
    assert whole.trials.slice(0, 1)["value"] == first.trials["value"]


def test_a_study_with_fewer_trials_than_it_has_is_refused(study: Callable[..., tuning.Study]) -> None:
    """Else the best of a few would take the place of the best of all."""
    whole = study(final=0)
    best = (whole.path / "best.toml").read_text()
    with pytest.raises(
        tuning.StudyError, match=r"has 3 ended trials, and tuning\.trials = 1 would leave 2 of them out"
    ):
        study(trials=1, final=0)
    assert (whole.path / "best.toml").read_text() == best


def test_an_interrupted_study_says_how_it_goes_on(
    study: Callable[..., tuning.Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(search: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuning.search.Search.run", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        study()
    assert raised.value.__notes__ == [
        f"stopped; the same call of tuning.tune continues the study in {tmp_path / 'study'}"
    ]


def test_a_file_in_place_of_an_experiment_is_answered_by_what_reads_it() -> None:
    wrong: Any = "configs/quickstart.toml"
    with pytest.raises(
        raysim.ExperimentError, match=r"but got 'configs/quickstart\.toml': raysim\.load\(path\) reads one"
    ):
        tuning.tune(wrong)
    with pytest.raises(AttributeError, match=r"it is tuning\.tune"):
        _ = raysim.tune


def test_a_trial_whose_process_was_killed_as_it_ended_goes_on(
    study: Callable[..., tuning.Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome was written, and its value was not."""

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            study(concurrent=1)
    found = study(concurrent=1)
    assert found.counts == {"finished": 3}
    assert None not in found.trials["value"].to_pylist()


@pytest.mark.parametrize("name", ["random", "tpe", "gp", "cmaes"])
def test_a_configuration_that_was_half_drawn_is_drawn_as_if_it_were_not(
    name: str, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("gp", "cmaes"):
        pytest.importorskip({"gp": "scipy", "cmaes": "cmaes"}[name])
    store, calls = _CachedStorage.set_trial_param, itertools.count(1)

    def killed(*given: Any) -> None:
        # Before the third key of the first trial is stored, and of the last one, when the sampler has learnt.
        if next(calls) in (3, 12):
            raise KeyboardInterrupt
        store(*given)

    space = {
        # No sampler is asked for a key with one value.
        "client.lr_decay": {"grid": [1.0]},
        "client.optimizer.lr": {"log": [0.01, 1.0]},
        "client.batch_size": {"int": [2, 60]},
        "server.weighting": {"choices": ["examples", "uniform"]},
    }
    sampler = {"name": name} if name in ("random", "cmaes") else {"name": name, "startup": 2}
    exp = tuned(space=space, sampler=sampler, trials=3, concurrent=1, final=0).changed(["rounds=1"])
    whole = tuning.tune(exp, dataset=small, path=tmp_path / "whole")
    monkeypatch.setattr(_CachedStorage, "set_trial_param", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(exp, dataset=small, path=tmp_path / "killed")
    found = tuning.tune(exp, dataset=small, path=tmp_path / "killed")
    assert found.trials.drop_columns(["seconds"]) == whole.trials.drop_columns(["seconds"])


def test_a_trial_is_not_stopped_by_a_step_before_it_comes_to_it(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may leave steps in the storage whose rounds the folder has lost: they are run again."""
    end = Ledger.end

    def killed(ledger: Ledger, held: Held, outcome: str, *given: Any) -> None:
        if outcome == "pruned":
            raise KeyboardInterrupt
        end(ledger, held, outcome, *given)

    sampler = {"name": "listed", "configurations": [{"client.optimizer.lr": 1.0}, {"client.optimizer.lr": 0.01}]}
    exp = tuned(sampler=sampler, concurrent=1, pruner={"name": "halving", "min_rounds": 2, "factor": 2}, final=0)
    exp = exp.changed({"evaluation.every": 1})
    whole = tuning.tune(exp, dataset=small, path=tmp_path / "whole")
    assert whole.trials["outcome"].to_pylist() == ["finished", "pruned"]
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "end", killed)
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(exp, dataset=small, path=tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "trials" / "0001")
    found = tuning.tune(exp, dataset=small, path=tmp_path / "killed")
    assert found.trials["rounds"].to_pylist() == whole.trials["rounds"].to_pylist() == [4, 2]


def test_a_study_that_goes_on_knows_the_best_of_before(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning.tune(tuned(trials=2), dataset=small, path=tmp_path, progress=True)
    capsys.readouterr()
    values = tuning.tune(tuned(trials=3), dataset=small, path=tmp_path, progress=True).trials["value"].to_pylist()
    # Else the last trial is the best whether or not the ones before count.
    assert max(values) != values[-1]
    assert "(best so far)" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}}},
            r"space\.client\.optimizer\.lr\.grid was \[0\.01, 0\.1, 1\.0\]",
        ),
        ({"seeds": 2}, r"tuning\.seeds was 1, and is 2"),
        ({"objective": {"name": "loss"}}, r"tuning\.objective\.name was 'accuracy', and is 'loss'"),
        ({"sampler": {"name": "random"}}, r"tuning\.sampler\.name was 'grid', and is 'random'"),
        ({"holdout": 0.4}, "content of the data was"),
    ],
)
def test_another_study_is_not_gone_on_with(
    changes: dict[str, Any], said: str, study: Callable[..., tuning.Study]
) -> None:
    study(trials=1, final=0)
    with pytest.raises(tuning.StudyError, match=said):
        study(trials=1, final=0, **changes)


def test_a_study_of_other_parts_is_another_study(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    tuning.tune(tuned(trials=1, final=0), dataset=small, loss=loss, path=tmp_path)
    with pytest.raises(tuning.StudyError, match=r"tuning\.passed was \['loss'\]"):
        tuning.tune(tuned(trials=2, final=0), dataset=small, path=tmp_path)


def test_a_folder_is_of_one_study(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    study(trials=1, final=0)
    written = {file: file.read_bytes() for file in (tmp_path / "study" / "trials").rglob("rounds.parquet")}
    said = r"is the folder of the study 'test' in sqlite:///study\.db, and this is 'test' in .*another folder \(--path"
    with pytest.raises(tuning.StudyError, match=said):
        study(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'other.db'}")
    assert {file: file.read_bytes() for file in (tmp_path / "study" / "trials").rglob("rounds.parquet")} == written
    assert not (tmp_path / "other.db").exists()


def test_two_studies_of_a_storage_have_a_folder_each(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    one = tuned(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'shared.db'}")
    tuning.tune(one, dataset=small, path=tmp_path / "study")
    with pytest.raises(tuning.StudyError, match=r"folder of the study 'test' in .*shared\.db, and this is 'other'"):
        tuning.tune(one.changed({"name": "other"}), dataset=small, path=tmp_path / "study")
    found = tuning.tune(one.changed({"name": "other"}), dataset=small, path=tmp_path / "second")
    assert found.counts == {"finished": 1}


def test_a_study_of_a_shared_storage_is_of_one_folder(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    """Two would take turns with the trials of one study, whose checkpoints lie in two places."""
    one = tuned(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'shared.db'}")
    first = tuning.tune(one, dataset=small, path=tmp_path / "first")
    said = r"the study 'test' of another folder, .*first, and this is .*second: go on with that one there \(--path"
    for trials in (1, 2):
        with pytest.raises(tuning.StudyError, match=said):
            tuning.tune(one.changed({"tuning.trials": trials}), dataset=small, path=tmp_path / "second")
    assert not (tmp_path / "second" / "study.json").exists(), "another study may have the folder"
    claim = json.loads((tmp_path / "first" / "study.json").read_text())
    (tmp_path / "second" / "study.json").write_text(json.dumps({**claim, "mark": "of a process that was killed"}))
    with pytest.raises(tuning.StudyError, match=said):
        tuning.tune(one, dataset=small, path=tmp_path / "second")
    assert not (tmp_path / "second" / "study.json").exists(), "an older claim is none either"
    (tmp_path / "first" / "study.json").rename(tmp_path / "kept.json")
    with pytest.raises(
        tuning.StudyError, match=r"of .*first, but the folder there has lost its study\.json, .* no shared disk"
    ):
        tuning.tune(one, dataset=small, path=tmp_path / "first")
    (tmp_path / "kept.json").rename(tmp_path / "first" / "study.json")
    (tmp_path / "first").rename(tmp_path / "moved")
    assert tuning.tune(one, dataset=small, path=tmp_path / "moved").trials == first.trials
    with pytest.raises(tuning.StudyError, match=r"of another folder, .*moved, and this is .*third"):
        tuning.tune(one, dataset=small, path=tmp_path / "third")
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    with pytest.raises(tuning.StudyError, match=r"copy is a copy of the study's folder, .*moved: go on with that one"):
        tuning.tune(one, dataset=small, path=tmp_path / "copy")
    (tmp_path / "linked").symlink_to(tmp_path / "moved")
    assert tuning.tune(one, dataset=small, path=tmp_path / "linked").trials == first.trials
    other = one.changed({"name": "other"})
    assert tuning.tune(other, dataset=small, path=tmp_path / "second").counts == {"finished": 1}


def test_a_study_that_an_earlier_version_began_keeps_its_folder(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not tell its folder to the storage: the first one after that may be a wrong one."""
    one = tuned(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'shared.db'}")
    with monkeypatch.context() as earlier:
        earlier.setattr(Processes, "tell_folder", lambda *given: None)
        first = tuning.tune(one, dataset=small, path=tmp_path / "first")
    with pytest.raises(tuning.StudyError, match=r"has trials of .* and .*second has no study\.json"):
        tuning.tune(one, dataset=small, path=tmp_path / "second")
    assert not (tmp_path / "second" / "study.json").exists()
    assert tuning.tune(one, dataset=small, path=tmp_path / "first").trials == first.trials


def test_a_folder_that_was_moved_goes_on(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    first = study(trials=1, final=0)
    (tmp_path / "study").rename(tmp_path / "moved")
    again = tuning.tune(tuned(trials=1, final=0), dataset=small, path=tmp_path / "moved")
    assert again.trials == first.trials


@pytest.mark.parametrize(
    ("has_storage", "has_folder", "said"),
    [
        (False, False, "another name or folder (--path, path=)."),
        (False, True, "another folder (--path, path=)."),
        (True, False, "another name."),
        (True, True, "another name, and a folder of its own (--path, path=)."),
    ],
)
def test_only_what_helps_is_advised(has_storage: bool, has_folder: bool, said: str) -> None:
    assert folder.way_out(has_storage, has_folder) == f"Give this one {said}"


def test_another_experiment_is_another_study(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    study(trials=1, final=0)
    with pytest.raises(tuning.StudyError, match="rounds was 4, and is 3"):
        tuning.tune(tuned().changed(["rounds=3"]), dataset=small, path=tmp_path / "study")
    with pytest.raises(tuning.StudyError, match=r"client\.batch_size was 4, and is 5"):
        tuning.tune(tuned().changed(["client.batch_size=5"]), dataset=small, path=tmp_path / "study")


def test_trials_that_begin_at_other_values_are_another_study(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    one = tuned(trials=1, final=0)
    params = raysim.run(one, dataset=small, path=tmp_path / "run").params
    tuning.tune(one, dataset=small, params=params, path=tmp_path / "study")
    assert tuning.tune(one, dataset=small, params=dict(params), path=tmp_path / "study").counts == {"finished": 1}
    moved = {name: value + 1 for name, value in params.items()}
    with pytest.raises(tuning.StudyError, match=r"params was '\w+', and is '\w+'"):
        tuning.tune(one, dataset=small, params=moved, path=tmp_path / "study")


def test_a_run_s_folder_is_not_a_study_s(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    raysim.run(tuned(), dataset=small, path=tmp_path / "run")
    with pytest.raises(tuning.StudyError, match="is a run's folder"):
        tuning.tune(tuned(), dataset=small, path=tmp_path / "run")


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("postgresql://me:secret@127.0.0.1:1/x", r"postgresql://me:\*\*\*@127\.0\.0\.1:1/x cannot be opened"),
        ("sqlite:////nowhere/at/all/study.db", "cannot be opened: .*unable to open database file"),
        ("journal:/nowhere/at/all/journal.log", "cannot be opened"),
        ("study.db", "A storage is journal:PATH or a database's URL"),
        ("sqlite://me:secret@host:port/x", r"a database's URL, .* but got 'sqlite://me:\*\*\*@host:port/x'"),
    ],
)
def test_a_storage_that_cannot_be_reached(
    storage: str, said: str, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    if storage.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs PostgreSQL's driver: pip install 'psycopg[binary]'")
    with pytest.raises(tuning.StorageError, match=said) as caught:
        tuning.tune(tuned(storage=storage), dataset=small, path=tmp_path / "study")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "study").exists()
