"""Clients that remember: the same bits everywhere, one trace of a round, no files that nothing names, damage named."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.errors import CheckpointError
from raysim.run_folder import checkpoint
from raysim.run_folder.client_states import ClientStore
from raysim.server import manifest
from raysim.server.manifest import StatePlace
from tests.support.executors import EXECUTORS, DiesOnce, bits
from tests.support.interrupted import Stops, same_records
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
SCAFFOLD: dict[str, Any] = {"optimizer": {"lr": 0.3}, "batch_size": 4, "correction": {"name": "scaffold"}}
MIME: dict[str, Any] = {**SCAFFOLD, "correction": {"name": "mime"}}
DANE: dict[str, Any] = {**SCAFFOLD, "correction": {"name": "feddane", "mu": 0.1}}
PD: dict[str, Any] = {**SCAFFOLD, "correction": {"name": "fedpd", "mu": 0.1}}
ADABEST: dict[str, Any] = {**SCAFFOLD, "correction": {"name": "adabest", "beta": 0.9}}


def trace(folder: Path) -> dict[str, bytes]:
    """Every file of clients' states, by name."""
    return {path.name: path.read_bytes() for path in sorted((folder / "client_state").iterdir())}


@pytest.mark.parametrize("client", [SCAFFOLD, MIME, DANE], ids=["scaffold", "mime", "feddane"])
@pytest.mark.parametrize("engine", list(EXECUTORS.values())[1:], ids=list(EXECUTORS)[1:])
@pytest.mark.usefixtures("ray_cluster")
def test_the_same_bits_for_any_number_of_workers(
    engine: dict[str, Any], client: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    chunked = {"chunk_size": 2}
    reference = raysim.rounds(experiment(client=client, engine={"workers": 0, **chunked}), dataset=dataset)
    got = raysim.rounds(experiment(client=client, engine={**engine, **chunked}), dataset=dataset)
    for expected, finished in zip(reference, got, strict=True):
        assert bits(finished) == bits(expected)


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_killed_in_mid_round_leaves_one_trace(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    cohorts = [["c1", "c2", "c3", "c0"], ["c5", "c0", "c6", "c2", "c8"], ["c1", "c0"], ["c2", "c0"]]
    settings: dict[str, Any] = {
        "client": {**SCAFFOLD, "batch_size": "full"},
        "cohort": {"sampler": {"name": "replay", "cohorts": cohorts}},
    }
    alone: dict[str, Any] = {"workers": 0, "chunk_size": 1, "trainer": "one_by_one"}
    # In this process it ends nothing. Client states say of which run they are, which its parts tell, too.
    parts: Any = {"dataset": dataset, "loss": DiesOnce(tmp_path / "note", size=3)}
    undisturbed = list(raysim.rounds(experiment(**settings, engine=alone), **parts, path=tmp_path / "alone"))

    pair = {**alone, "workers": 2, "cpus_per_worker": 0.5}
    got = list(raysim.rounds(experiment(**settings, engine=pair), **parts, path=tmp_path / "pair"))
    assert [bits(r) for r in got] == [bits(r) for r in undisturbed]
    # An evaluation that the lost worker had besides is run again too.
    assert sum(r.metrics["retries"] or 0 for r in got) >= 1
    assert trace(tmp_path / "pair") == trace(tmp_path / "alone")


@pytest.mark.parametrize("client", [SCAFFOLD, ADABEST, MIME, PD], ids=["scaffold", "adabest", "mime", "fedpd"])
@pytest.mark.parametrize("after", [40, 90])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    after: int, client: dict[str, Any], tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    settings: dict[str, Any] = {"rounds": 8, "checkpoint": {"every": 3}, "evaluation": {"every": 1}, "client": client}
    settings["engine"] = {"workers": 0, "trainer": "one_by_one"}
    # FedPD is defined with every client in every round.
    settings |= {"cohort": {"size": 20}} if client is PD else {}
    whole = raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "cut", loss=Stops(after))
    same_records(raysim.resume(tmp_path / "cut", dataset=dataset, executor="local"), whole)
    if client is not MIME:
        named = manifest.files(checkpoint.read(newest(tmp_path / "cut")).clients)
        assert named <= {file_of(name) for name in trace(tmp_path / "cut")}


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir())


def file_of(name: str) -> tuple[int, int]:
    words = name.removesuffix(".npy").split("-")
    return int(words[1]), int(words[3])


def test_only_files_that_a_checkpoint_names_are_left(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(rounds=9, client=SCAFFOLD, checkpoint={"every": 2, "keep": 2}, engine={"workers": 0})
    raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    kept = [checkpoint.read(file) for file in (tmp_path / "run" / "checkpoints").iterdir()]
    assert sorted(state.round for state in kept) == [8, 9]
    assert {file_of(name) for name in trace(tmp_path / "run")} == set().union(
        *(manifest.files(state.clients) for state in kept)
    )


def test_a_pipe_in_the_place_of_a_state_does_not_hold_the_run_up(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(rounds=4, client=SCAFFOLD, checkpoint={"every": 2}, engine={"workers": 0})
    steps = raysim.rounds(exp, dataset=dataset, path=tmp_path / "run")
    next(steps)
    for path in (tmp_path / "run" / "client_state").iterdir():
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"chunk-0\d{4}\.npy must be a file, but is a pipe"):
        list(steps)


def test_without_a_folder_nothing_is_left_behind(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    steps = raysim.rounds(experiment(client=SCAFFOLD), dataset=dataset)
    next(steps)
    assert list(tmp_path.rglob("*.npy"))
    steps.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


def test_a_stateless_method_writes_no_states_and_sends_no_more(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(client={"correction": {"name": "prox", "mu": 0.1}}), dataset=dataset, path=tmp_path / "run")
    assert not (tmp_path / "run" / "client_state").exists()
    assert checkpoint.read(newest(tmp_path / "run")).clients == {}


def test_a_truncated_state_names_client_file_and_where_to_resume_from(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    cohorts = [["c1", "c2"], ["c3", "c4"], ["c5"], ["c3"]]
    exp = experiment(
        rounds=3,
        client=SCAFFOLD,
        cohort={"sampler": {"name": "replay", "cohorts": cohorts}},
        checkpoint={"every": 1, "keep": 5},
        engine={"workers": 0, "chunk_size": 2},
    )
    folder = tmp_path / "run"
    raysim.run(exp, dataset=dataset, path=folder)
    whole = raysim.resume(folder, dataset=dataset, rounds=4).params
    for late in (newest(folder), folder / "client_state" / "round-000003-chunk-00000.npy"):
        late.unlink()
    (file,) = (folder / "client_state").glob("round-000001-*")
    with file.open("rb+") as states:
        np.load(states)
        rows = np.load(states)
        # 40 bytes of the first of its two rows.
        states.truncate(states.tell() - rows.nbytes + 40)
    with pytest.raises(
        raysim.CheckpointError, match=r"client 'c[34]' cannot be read from .*round-000001-chunk-00000"
    ) as e:
        raysim.resume(folder, dataset=dataset, rounds=4)
    assert "truncated" in str(e.value)
    assert "at most 1 finished rounds" in str(e.value)
    for state in (2, 3):
        (folder / "checkpoints" / f"round-{state:06d}.safetensors").unlink()
    again = raysim.resume(folder, dataset=dataset, rounds=4).params
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_a_method_cannot_change_between_checkpoint_and_resume(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(client=SCAFFOLD), dataset=dataset, path=tmp_path / "run")
    other = experiment(client={**SCAFFOLD, "correction": {"name": "adabest", "beta": 0.5}})
    with pytest.raises(raysim.RunFolderError, match=r"client.correction.name was 'scaffold', and is 'adabest'"):
        raysim.run(other, dataset=dataset, path=tmp_path / "run", resume=True)


def test_a_rejected_client_remembers_nothing_of_the_round(tmp_path: Path, experiment: Make) -> None:
    train = make_clients([6, 6, 6])
    train["c1"][0][:] = np.inf
    exp = experiment(rounds=2, client=SCAFFOLD, cohort={"size": 3}, engine={"workers": 0, "chunk_size": 3})
    result = raysim.run(exp, dataset=raysim.FederatedDataset.from_clients(train=train), path=tmp_path / "run")
    assert result.rounds["rejected_clients"].to_pylist() == [["c1"], ["c1"]]
    state = checkpoint.read(newest(tmp_path / "run"))
    assert state.clients["position"].tolist() == [0, 2]
    assert torch.isfinite(state.correction["c"]).all()


@pytest.mark.parametrize("client", [MIME, DANE], ids=["mime", "feddane"])
def test_a_client_whose_full_gradient_is_not_finite_leaves_the_whole_round(
    client: dict[str, Any], experiment: Make
) -> None:
    train = make_clients([6, 6, 6])
    train["c1"][0][:] = np.inf
    data = raysim.FederatedDataset.from_clients(train=train)
    here = {"workers": 0, "chunk_size": 1, "dtype": "float64"}
    cohorts = {"sampler": {"name": "replay", "cohorts": [["c0", "c1", "c2"]] * 3}}
    without = {"sampler": {"name": "replay", "cohorts": [["c0", "c2"]] * 3}}
    got = list(raysim.rounds(experiment(rounds=3, client=client, cohort=cohorts, engine=here), dataset=data))
    expected = raysim.rounds(experiment(rounds=3, client=client, cohort=without, engine=here), dataset=data)
    for one, other in zip(got, expected, strict=True):
        assert one.rejected == ("c1",)
        assert one.metrics["clients"] == 2
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("client", [SCAFFOLD, MIME], ids=["scaffold", "mime"])
def test_a_recorded_round_and_a_client_of_it_are_replayed(
    client: dict[str, Any], tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(
        rounds=6, client=client, checkpoint={"every": 2, "keep": 2}, evaluation={"every": 1}, engine={"workers": 0}
    )
    result = raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    before = trace(tmp_path / "run") if client is SCAFFOLD else {}
    again: Any = raysim.replay(tmp_path / "run", 5, dataset=dataset)
    for name, value in again.params.items():
        assert torch.equal(value, result.params[name])
    one: Any = raysim.replay(tmp_path / "run", 5, client=again.cohort[0], dataset=dataset)
    assert one.update is not None
    if client is SCAFFOLD:
        assert trace(tmp_path / "run") == before


# The files and the manifest themselves


def test_rows_are_read_back_bit_for_bit_whatever_the_order_of_writing(tmp_path: Path) -> None:
    rows = torch.randn(3, 8, dtype=torch.float64)
    store = ClientStore(tmp_path, None, str)
    with store.chunk(4, 1, (9, 2, 5), {}, rows[0]) as states:
        assert states.read(9) is None
        for row in (2, 0):
            states.write(row, rows[row])
    for row, position in ((2, 5), (0, 9)):
        assert torch.equal(store.read(position, StatePlace(4, 1, row), rows[0]), rows[row])
    with pytest.raises(raysim.CheckpointError, match="not of this client"):
        store.read(9, StatePlace(4, 1, 2), rows[0])
    with pytest.raises(raysim.CheckpointError, match=r"is missing.*at most 3 finished rounds"):
        store.read(9, StatePlace(3, 1, 2), rows[0])


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store, row = ClientStore(tmp_path, None, str), torch.zeros(4)

    def breaks_off() -> None:
        with store.chunk(0, 0, (1,), {}, row) as states:
            states.write(0, row)
            raise KeyError

    with pytest.raises(KeyError):
        breaks_off()
    assert not list(tmp_path.iterdir())


def test_a_file_is_three_numpy_arrays(tmp_path: Path) -> None:
    store, row = ClientStore(tmp_path, None, str), torch.arange(4.0)
    with store.chunk(0, 0, (7, 1), {}, row) as states:
        states.write(1, row)
    (file,) = tmp_path.iterdir()
    with file.open("rb") as opened:
        assert np.load(opened).tolist() == [7, 1]
        assert np.load(opened)[1].tolist() == row.tolist()
        assert np.load(opened).tolist() == [0, zlib.crc32(bytes(row.numpy()), zlib.crc32(b"0 1"))]
        assert not opened.read()


def test_any_other_file_is_no_state(tmp_path: Path) -> None:
    store, row = ClientStore(tmp_path, None, str), torch.arange(4.0)
    with store.chunk(0, 0, (7, 1), {}, row) as states:
        states.write(1, row)
    (file,) = tmp_path.iterdir()
    content, place = file.read_bytes(), StatePlace(0, 0, 1)
    for like in (torch.zeros(5), torch.zeros(4, dtype=torch.float64)):
        with pytest.raises(raysim.CheckpointError, match="row 1 is not of this client and model"):
            store.read(1, place, like)
    # Cut short anywhere, or with another bit anywhere, but where only the client beside it is concerned.
    own, beside = content.index(bytes(row.numpy())), content.index((7).to_bytes(8, "little"))
    others = {*range(beside, beside + 8), *range(own - row.nbytes, own), *range(own + row.nbytes, len(content) - 4)}
    cut = [content[:size] for size in range(len(content))]
    changed = [flipped(content, at) for at in range(len(content)) if at not in others]
    for damaged in (*cut, *changed):
        file.write_bytes(damaged)
        with pytest.raises(raysim.CheckpointError, match=r"client '1' cannot be read from .*round-000000-chunk-00000"):
            store.read(1, place, row)
    for at in others:
        file.write_bytes(flipped(content, at))
        assert torch.equal(store.read(1, place, row), row)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def test_a_state_of_another_round_is_refused_under_this_ones_name(tmp_path: Path) -> None:
    store, row = ClientStore(tmp_path, None, str), torch.arange(4.0)
    for index in (0, 1):
        with store.chunk(index, 0, (7,), {}, row) as states:
            states.write(0, row + index)
    older, newer = sorted(tmp_path.iterdir())
    older.replace(newer)
    with pytest.raises(raysim.CheckpointError, match="another run's: row 0 does not match its checksum"):
        store.read(7, StatePlace(1, 0, 0), row)


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    row, place = torch.arange(4.0), StatePlace(0, 0, 0)
    for written, read in (("one", "another"), ("one", "one"), ("", "one")):
        folder = tmp_path / f"{written}-{read}"
        with ClientStore(folder, None, str, written).chunk(0, 0, (7,), {}, row) as states:
            states.write(0, row)
        reader = ClientStore(folder, None, str, read)
        if written and written != read:
            with pytest.raises(raysim.CheckpointError, match="another run's: row 0 does not match its checksum"):
                reader.read(7, place, row)
        else:
            # Earlier versions' do not tell whose they are.
            assert torch.equal(reader.read(7, place, row), row)


def test_a_run_does_not_go_on_with_another_runs_states(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """Which has the same clients in the same rounds: only the learning rate differs."""
    for name, lr in (("run", 0.3), ("other", 0.2)):
        exp = experiment(rounds=2, client={**SCAFFOLD, "optimizer": {"lr": lr}}, checkpoint={"every": 1})
        raysim.run(exp, dataset=dataset, path=tmp_path / name, progress=False)
    for file in (tmp_path / "other" / "client_state").iterdir():
        shutil.copy(file, tmp_path / "run" / "client_state")
    with pytest.raises(raysim.CheckpointError, match="another run's"):
        raysim.resume(tmp_path / "run", dataset=dataset, rounds=6, progress=False)


def test_the_manifest_names_the_newest_row_of_each_client() -> None:
    first = manifest.with_round(manifest.empty(), 0, [(7, 3), (5,)], [])
    second = manifest.with_round(first, 1, [(3, 9, 5)], [9, 5])
    assert manifest.places(second, [3, 9, 5, 7]) == {
        3: StatePlace(1, 0, 0),
        5: StatePlace(0, 1, 0),
        7: StatePlace(0, 0, 0),
    }
    assert manifest.files(second) == {(0, 0), (0, 1), (1, 0)}
    assert manifest.places(first, [3]) == {3: StatePlace(0, 0, 1)}
