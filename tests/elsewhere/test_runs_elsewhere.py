"""Runs whose folder is a URI equal those on this machine's disk, are resumed elsewhere, and never lose their copy."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import raysim
from raysim.cli import app
from raysim.errors import DiskError
from raysim.run_folder.cost_columns import tells_cost
from raysim.storage.remote import folder, removed
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote
from raysim.storage.remote.removed import MIRRORS

Make = Callable[..., raysim.Experiment]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's cache of the test's own."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "machine"))
    return tmp_path / "machine"


def equal(result: raysim.Result, other: raysim.Result) -> bool:
    same = [name for name in other.rounds.column_names if not tells_cost(name)]
    params = all(torch.equal(value, other.params[name]) for name, value in result.params.items())
    return params and bool(result.rounds.select(same).equals(other.rounds.select(same)))


def read(uri: str) -> raysim.Result:
    found = raysim.read(uri)
    assert isinstance(found, raysim.Result)
    return found


def lose(machine: Path) -> None:
    """The machine's disk is gone; what is elsewhere is left."""
    shutil.rmtree(machine / MIRRORS)


def test_a_run_elsewhere_equals_one_here(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path, machine: Path
) -> None:
    here = raysim.run(experiment(), dataset=dataset, path=tmp_path / "here")
    there = raysim.run(experiment(), dataset=dataset, path=shared)
    assert equal(here, there)
    lose(machine)
    assert equal(here, raysim.resume(shared, dataset=dataset))
    assert raysim.replay(shared, 2, dataset=dataset).index == 2
    with pytest.raises(raysim.RunFolderError, match=f"{shared} exists already"):
        raysim.run(experiment(), dataset=dataset, path=shared)


def test_another_machine_resumes_what_one_left(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path, machine: Path
) -> None:
    scaffold = {"client": {"optimizer": {"name": "sgd", "lr": 0.3}, "correction": {"name": "scaffold"}}}
    exp = experiment(**scaffold, checkpoint={"every": 1})
    for finished in raysim.rounds(exp, dataset=dataset, path=shared):
        if finished.index == 1:
            break
    lose(machine)
    resumed = raysim.resume(shared, dataset=dataset)
    assert equal(resumed, raysim.run(exp, dataset=dataset, path=tmp_path / "here"))
    lose(machine)
    afresh = raysim.run(experiment(rounds=1), dataset=dataset, path=shared, overwrite=True)
    assert afresh.rounds.num_rows == 1
    assert Remote(shared).find("checkpoints/round-000004.safetensors") is None


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EIO])
@pytest.mark.parametrize("fails_first", [True, False], ids=["before anything is deleted", "behind the first deletion"])
@pytest.mark.parametrize("is_read", [True, False], ids=["then read", "then overwritten"])
def test_a_run_whose_files_cannot_go_at_the_uri_is_not_overwritten(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, monkeypatch: pytest.MonkeyPatch, machine: Path,
    number: int, fails_first: bool, is_read: bool,
) -> None:  # fmt: skip
    """Its later checkpoints would be fetched, and belong to another run."""
    old = raysim.run(experiment(rounds=3, checkpoint={"every": 1}), dataset=dataset, path=shared)
    notes, calls = removed._notes, list[Path]()
    copy = Mirror.of(shared).path
    here = set(copy.rglob("*"))

    def fails(home: Path, mode: str) -> Any:
        calls.extend([home] if mode == "a" else [])
        if mode == "a" and (fails_first or len(calls) > 1):
            raise OSError(number, os.strerror(number), str(home / removed.NOTES))
        return notes(home, mode)

    with monkeypatch.context() as patch:
        patch.setattr(removed, "_notes", fails)
        with pytest.raises(DiskError, match=f"{removed.NOTES} could not be written"):
            raysim.run(experiment(rounds=1, seed=1), dataset=dataset, path=shared, overwrite=True)
    assert not fails_first or here <= set(copy.rglob("*"))
    assert not is_read or equal(read(shared), old)
    new = raysim.run(experiment(rounds=1, seed=1), dataset=dataset, path=shared, overwrite=True)
    assert equal(read(shared), new)
    lose(machine)
    assert equal(read(shared), new)
    assert Remote(shared).find("checkpoints/round-000003.safetensors") is None


def test_a_sweep_lies_elsewhere_and_is_compared_from_there(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, machine: Path
) -> None:
    raysim.run_sweep(experiment(rounds=1), {"cohort.size": [3, 7]}, dataset=dataset, path=shared)
    lose(machine)
    compared = CliRunner().invoke(app, ["compare", shared])
    assert compared.exit_code == 0, compared.output
    assert "cohort.size" in compared.output


def test_the_command_line_names_the_uri(shared: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('rounds = 2\n[data]\nname = "digits"\nclients = 10\n[model]\nname = "linear"\n[cohort]\nsize = 2\n')
    done = CliRunner().invoke(app, ["run", str(file), "--path", shared, "--set", "engine.workers=0"])
    assert done.exit_code == 0, done.output
    assert f"raysim resume {shared} --rounds 4" in done.output
    again = CliRunner().invoke(app, ["resume", shared, "--rounds", "3"])
    assert again.exit_code == 0, again.output
    for more in ((), ("--json",)):
        replayed = CliRunner().invoke(app, ["replay", shared, "--round", "2", *more])
        assert replayed.exit_code == 0, replayed.output
        assert ('"differs": []' if more else "round 2: every figure as recorded") in replayed.output
    for of_data in (["data", "inspect", shared], ["evaluate", shared, "--data", shared]):
        looked_at = CliRunner().invoke(app, of_data)
        assert looked_at.exit_code == 0, looked_at.output
    absent = CliRunner().invoke(app, ["resume", f"{shared}-not"])
    assert absent.exit_code == 2
    assert f"{shared}-not is not a run's folder" in absent.output


def test_a_run_goes_on_where_nothing_answers_any_more_and_says_what_is_where(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "PAUSES_S", (0.0, 0.0))
    attempts: list[str] = []

    def refuse(self: Remote, file: Path, name: str) -> None:
        attempts.append(name)
        raise raysim.RemoteError("nothing answers.")

    with monkeypatch.context() as gone:
        gone.setattr(Remote, "put", refuse)
        with pytest.raises(raysim.RemoteError, match=r"is behind by \d+ file.*Nothing is lost: the whole folder is"):
            raysim.run(experiment(), dataset=dataset, path=shared)
        assert len(attempts) >= 3
        told = folder.put_rest(Mirror.of(shared).path)
        assert told is not None
        assert f"{shared} is behind by" in told
    put = raysim.resume(shared, dataset=dataset)
    assert put.rounds.num_rows == 4
    assert Remote(shared).find("rounds.parquet") is not None
    assert folder.put_rest(Mirror.of(shared).path) is None


def test_a_cleaned_cache_costs_no_rows(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path
) -> None:
    kept = {"every": 1, "keep": 2}
    raysim.run(experiment(checkpoint=kept), dataset=dataset, path=shared)
    copy = Mirror.of(shared).path
    (copy / "rounds.parquet").unlink()
    shutil.rmtree(copy / "clients")
    whole = raysim.run(experiment(rounds=6, checkpoint=kept), dataset=dataset, path=tmp_path / "here")
    assert equal(raysim.resume(shared, dataset=dataset, rounds=6), whole)
    shutil.rmtree(copy)
    read = raysim.read(shared)
    assert isinstance(read, raysim.Result)
    assert equal(read, whole)
    assert read.clients.equals(whole.clients)
    names = {name for name in Remote(shared).sizes() if name.startswith("checkpoints/")}
    assert names == {"checkpoints/round-000005.safetensors", "checkpoints/round-000006.safetensors"}


def test_a_copy_that_is_refused_replaces_nothing_there(
    experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path
) -> None:
    raysim.run(experiment(rounds=2), dataset=dataset, path=tmp_path / "older")
    raysim.run(experiment(), dataset=dataset, path=shared)
    whole = Remote(shared).find("rounds.parquet")
    copy = Mirror.of(shared)
    with copy.changing():
        shutil.copy(tmp_path / "older" / "rounds.parquet", copy.path)
    with pytest.raises(raysim.RunFolderError, match="rows are lost"):
        raysim.resume(shared, dataset=dataset)
    assert Remote(shared).find("rounds.parquet") == whole


@pytest.mark.parametrize("put_back", ["rounds.parquet", "clients", "."])
def test_what_is_put_back_into_a_copy_from_a_backup_is_not_ahead(
    put_back: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    shared: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The evaluation after the third round is the first end's alone.
    raysim.run(experiment(rounds=3), dataset=dataset, path=shared)
    copy = Mirror.of(shared).path
    shutil.copytree(copy, tmp_path / "backup")
    whole = raysim.resume(shared, dataset=dataset, rounds=4)
    there = Remote(shared).sizes()
    for again in (raysim.read, lambda path: raysim.resume(path, dataset=dataset, rounds=4)):
        if put_back in ("clients", "."):
            shutil.rmtree(copy / put_back)
        if put_back == "rounds.parquet":
            shutil.copy(tmp_path / "backup" / put_back, copy)
        else:
            shutil.copytree(tmp_path / "backup" / put_back, copy / put_back)
        found = again(shared)
        assert isinstance(found, raysim.Result)
        assert found.rounds.equals(whole.rounds)
        assert found.clients.equals(whole.clients)
        assert "something else than raysim has changed this machine's copy" in caplog.text
        caplog.clear()
    assert len(list(copy.parent.glob("*.aside-*"))) == 2
    assert Remote(shared).sizes().keys() == there.keys()


@pytest.mark.parametrize("put_back", ["rounds.parquet", "."])
def test_what_is_put_back_into_a_copy_after_a_kill_is_refused_where_it_lacks_rows_of_a_checkpoint(
    put_back: str, experiment: Make, dataset: raysim.FederatedDataset, shared: str, tmp_path: Path
) -> None:
    """The copy is ahead then, so its files are not taken for older ones."""
    exp = {"checkpoint": {"every": 1}}
    raysim.run(experiment(rounds=3, **exp), dataset=dataset, path=shared)
    copy = Mirror.of(shared).path
    shutil.copytree(copy, tmp_path / "backup")
    whole = raysim.resume(shared, dataset=dataset, rounds=4)
    there = Remote(shared).find("rounds.parquet")
    code = (
        "import os, sys\nfrom raysim.storage.remote.mirror import Mirror\n"
        "with Mirror.of(sys.argv[1]).changing(): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, shared], check=True)
    if put_back == ".":
        shutil.rmtree(copy)
        shutil.copytree(tmp_path / "backup", copy)
    else:
        shutil.copy(tmp_path / "backup" / put_back, copy)
    for again in (raysim.read, lambda path: raysim.resume(path, dataset=dataset)):
        with pytest.raises(raysim.RunFolderError, match=rf"{shared}/rounds\.parquet .*This machine's copy of it is"):
            again(shared)
        assert Remote(shared).find("rounds.parquet") == there
    (copy / "rounds.parquet").unlink()
    found = raysim.read(shared)
    assert isinstance(found, raysim.Result)
    assert found.rounds.equals(whole.rounds)
