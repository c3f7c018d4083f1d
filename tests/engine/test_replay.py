"""Replay: a recorded round, or a client of it, once more to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import raysim
from raysim.cli.recorded_runs import beside_record
from raysim.run_folder import cost_columns, round_table

Make = Callable[..., raysim.Experiment]

SERVER: dict[str, Any] = {
    "optimizer": {"name": "adam", "lr": 0.05},
    "glad": {"gamma": 0.1},
    "clip": {"initial": 0.5},
    "aggregator": {"name": "mean"},
}


@pytest.fixture
def folder(tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset) -> Path:
    made = experiment(
        rounds=7, server=SERVER, checkpoint={"every": 3}, cohort={"size": 6, "sampler": {"name": "adafl"}}
    )
    raysim.run(made, dataset=dataset, path=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("index", [0, 2, 3, 4, 6])
def test_every_figure_of_a_round_is_as_recorded(index: int, folder: Path, dataset: raysim.FederatedDataset) -> None:
    again = raysim.replay(folder, index, dataset=dataset)
    assert isinstance(again, raysim.Round)
    row = round_table.read_rounds(folder).to_pylist()[index]
    for name, value in again.metrics.items():
        if not cost_columns.tells_cost(name) and row.get(name) is not None:
            assert value == row[name], name
    head, *lines = beside_record(folder, index, again.metrics).splitlines()
    assert head == f"round {index}: every figure as recorded"
    # The figures stand below each other, each beside its name.
    width = max(len(line.split()[0]) for line in lines) + 2
    assert all(line[:width].split() == line.split()[:1] and line[width] != " " for line in lines)


def test_the_updates_of_a_cohort_make_its_pseudo_gradient(folder: Path, dataset: raysim.FederatedDataset) -> None:
    # Round 0 clips at 0.5: h_i = delta_i min(1, 0.5 / |delta_i|).
    whole = raysim.replay(folder, 0, dataset=dataset)
    total, weight = None, 0
    for client in whole.cohort:  # type: ignore[union-attr]
        one = raysim.replay(folder, 0, client=client, dataset=dataset)
        assert isinstance(one, raysim.ClientUpdate)
        assert one.update is not None
        assert client in one.chunk
        delta = torch.cat([tensor.flatten() for tensor in one.update.values()]).double()
        n = int(dataset.train.sizes()[dataset.train.position_of(client)])
        part = n * delta * min(1.0, 0.5 / float(delta.norm()))
        total, weight = part if total is None else total + part, weight + n
    assert total is not None
    assert float(total.norm()) / weight == pytest.approx(whole.metrics["pseudo_gradient_norm"], rel=1e-6)  # type: ignore[union-attr]


def test_replaying_leaves_the_folder_as_it_is(folder: Path, dataset: raysim.FederatedDataset) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    raysim.replay(folder, 5, dataset=dataset)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_what_was_not_there_cannot_be_replayed(folder: Path, dataset: raysim.FederatedDataset) -> None:
    with pytest.raises(raysim.RunFolderError, match=r"0 <= round < 7 must hold.*but got 7"):
        raysim.replay(folder, 7, dataset=dataset)
    cohort = raysim.replay(folder, 1, dataset=dataset).cohort  # type: ignore[union-attr]
    absent = next(f"c{i}" for i in range(20) if f"c{i}" not in cohort)
    with pytest.raises(raysim.RunFolderError, match=f"client '{absent}' was not in round 1"):
        raysim.replay(folder, 1, client=absent, dataset=dataset)
    for place in (1.0, True, "1"):
        with pytest.raises(raysim.RunFolderError, match="0 <= round < 7 must hold"):
            raysim.replay(folder, cast(int, place), dataset=dataset)


def test_an_update_is_the_clients_own_whatever_the_aggregator_divides_by(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    sent = []
    for name in ("mean", "fednova"):
        made = experiment(rounds=1, server={"aggregator": {"name": name}})
        raysim.run(made, dataset=dataset, path=tmp_path / name)
        cohort = raysim.replay(tmp_path / name, 0, dataset=dataset).cohort  # type: ignore[union-attr]
        one = raysim.replay(tmp_path / name, 0, client=cohort[0], dataset=dataset)
        assert isinstance(one, raysim.ClientUpdate)
        sent.append(one.update)
    assert sent[0] is not None
    assert sent[1] is not None
    assert all(torch.equal(sent[0][key], sent[1][key]) for key in sent[0])


def test_who_left_in_mid_round_is_not_called_absent(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    made = experiment(rounds=3, client={"mid_round_dropout": 0.5, "batch_size": 4})
    result = raysim.run(made, dataset=dataset, path=tmp_path / "run")
    index = next(i for i, dropped in enumerate(result.rounds["dropped"].to_pylist()) if dropped)
    cohort = raysim.replay(tmp_path / "run", index, dataset=dataset).cohort  # type: ignore[union-attr]
    said = []
    for client in cohort:
        try:
            raysim.replay(tmp_path / "run", index, client=client, dataset=dataset)
        except raysim.RunFolderError as error:
            said.append(str(error))
    assert len(said) == result.rounds["dropped"][index].as_py()
    assert all("left it before it sent anything" in sentence for sentence in said)
