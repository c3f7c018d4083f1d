"""Frozen parameters: they are part of the run, can be given, and their norms can be held still."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.run_folder import files, frozen

Make = Callable[..., raysim.Experiment]


def factory(value: float) -> Callable[[], nn.Module]:
    """A network on a frozen layer of this value, and a frozen norm."""

    def make() -> nn.Module:
        first, norm = nn.Linear(5, 4), nn.BatchNorm1d(4)
        nn.init.constant_(first.weight, value)
        return nn.Sequential(first.requires_grad_(False), norm.requires_grad_(False), nn.Linear(4, 3))

    return make


@pytest.fixture
def here(experiment: Make) -> raysim.Experiment:
    return experiment(model=None, rounds=2, engine={"workers": 0}, client={"batch_size": "full"})


def test_a_folder_with_other_frozen_values_is_refused(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    raysim.run(here, path=tmp_path / "run", dataset=dataset, model=factory(0.1))
    raysim.resume(tmp_path / "run", rounds=3, dataset=dataset, model=factory(0.1))
    for call in (raysim.resume, lambda path, **parts: raysim.replay(path, 1, **parts)):
        with pytest.raises(raysim.RunFolderError, match=r"the frozen parameter '0\.weight' has other values"):
            call(tmp_path / "run", dataset=dataset, model=factory(0.2))


def test_frozen_values_of_another_dtype_are_other_values(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    raysim.run(here, path=tmp_path / "run", dataset=dataset, model=factory(0.1))
    double = here.changed({"engine.dtype": "float64"})
    with pytest.raises(
        raysim.RunFolderError, match=r"engine\.dtype.*the frozen parameters '0\.bias', '0\.weight'.* have other"
    ):
        raysim.run(double, path=tmp_path / "run", resume=True, dataset=dataset, model=factory(0.1))


def test_the_folder_holds_the_frozen_values(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    raysim.run(here, path=tmp_path / "run", dataset=dataset, model=factory(0.1))
    held = frozen.read(tmp_path / "run")
    assert sorted(held) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert torch.equal(held["0.weight"], torch.full((4, 5), 0.1))
    file = tmp_path / "run" / frozen.FILE
    (tmp_path / "usual").touch()
    assert file.stat().st_mode == (tmp_path / "usual").stat().st_mode
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(raysim.RunFolderError, match="damaged"):
        frozen.read(tmp_path / "run")


def test_params_of_frozen_tensors_alone_leave_the_trained_ones_as_they_are_drawn(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    base = {"0.weight": np.full((4, 5), 0.2)}
    given = raysim.run(here, path=tmp_path / "given", dataset=dataset, model=factory(0.1), params=base)
    made = raysim.run(here, path=tmp_path / "made", dataset=dataset, model=factory(0.2))
    assert torch.equal(given.params["2.weight"], made.params["2.weight"])
    with pytest.raises(raysim.ModelError, match=r"must hold every tensor of the model, but '2\.bias' .* is missing"):
        raysim.run(here, dataset=dataset, model=factory(0.1), params={"2.weight": np.zeros((3, 4))})
    said = (
        r"'2\.weight', .*'0\.weight', .* of which some are frozen, but got \['0\.weigth'\] \(did you mean '0\.weight'"
    )
    with pytest.raises(raysim.ModelError, match=said):
        raysim.run(here, dataset=dataset, model=factory(0.1), params={"0.weigth": np.zeros((4, 5))})
    with pytest.raises(raysim.RunFolderError, match=r"was passed params= by its script, .*: pass the same again\.$"):
        raysim.resume(tmp_path / "given", rounds=3, dataset=dataset, model=factory(0.1))
    raysim.resume(tmp_path / "given", rounds=3, dataset=dataset, model=factory(0.1), params=base)


def test_params_may_name_frozen_tensors(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    params = {"2.weight": np.zeros((3, 4)), "2.bias": np.zeros(3)}
    whole = {**params, "0.weight": np.full((4, 5), 0.2)}
    given = raysim.run(here, path=tmp_path / "given", dataset=dataset, model=factory(0.1), params=whole)
    made = raysim.run(here, path=tmp_path / "made", dataset=dataset, model=factory(0.2), params=params)
    other = raysim.run(here, path=tmp_path / "other", dataset=dataset, model=factory(0.1), params=params)
    assert torch.equal(given.params["2.weight"], made.params["2.weight"])
    assert not torch.equal(given.params["2.weight"], other.params["2.weight"])
    with pytest.raises(raysim.ModelError, match=r"params\['0.weight'\] must have shape \(4, 5\)"):
        raysim.run(here, dataset=dataset, model=factory(0.1), params={**params, "0.weight": np.zeros(5)})


def test_frozen_tensors_that_params_forgets_are_named(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    whole = factory(0.1)().state_dict()
    some = {name: value for name, value in whole.items() if name not in ("0.weight", "0.bias")}
    raysim.run(here, path=tmp_path / "some", dataset=dataset, model=factory(0.1), params=some)
    assert "params= names some frozen parameters, but not '0.weight', '0.bias'" in caplog.text
    caplog.clear()
    for params in (whole, {name: value for name, value in whole.items() if name.startswith("2.")}):
        raysim.run(here, path=tmp_path / str(len(params)), dataset=dataset, model=factory(0.1), params=params)
    assert "params= names" not in caplog.text


@pytest.mark.parametrize("freeze", [True, False])
def test_what_is_frozen_otherwise_is_named(
    freeze: bool, tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    def make(frozen: bool) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(not frozen), nn.Linear(4, 3))

    raysim.run(here, path=tmp_path / "run", dataset=dataset, model=make(not freeze))
    what = "are frozen now, and were not" if freeze else "were frozen, and are not now"
    with pytest.raises(raysim.RunFolderError, match=rf"the parameters '0\.bias', '0\.weight' {what}"):
        raysim.resume(tmp_path / "run", rounds=3, dataset=dataset, model=make(freeze))


@pytest.mark.parametrize(
    ("params", "hint"),
    [
        ("base.safetensors", r"load_file\(\.\.\.\) of it, or name it as model\.init"),
        (nn.Linear(1, 1), "its state_dict"),
    ],
)
def test_what_is_no_mapping_is_answered_with_the_mapping(
    params: Any, hint: str, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    with pytest.raises(raysim.ModelError, match=hint):
        raysim.run(here, dataset=dataset, model=factory(0.1), params=params)


@pytest.mark.parametrize("held", [False, True])
def test_frozen_norms_move_with_a_warning_or_are_held_still(
    held: bool, dataset: raysim.FederatedDataset, here: raysim.Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "raysim"):
        *_, last = raysim.rounds(here.changed({"client.hold_frozen_norms": held}), dataset=dataset, model=factory(0.1))
    moved = bool(last.params["1.running_mean"].any())
    assert moved is not held
    assert ("running statistics follow" in caplog.text) is not held


def test_who_holds_norms_of_a_model_without_frozen_ones_is_told(
    here: raysim.Experiment, dataset: raysim.FederatedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    model = partial(nn.Linear, 5, 3)
    for held in (True, False):
        caplog.clear()
        next(raysim.rounds(here.changed({"client.hold_frozen_norms": held}), dataset=dataset, model=model))
        assert ("holds nothing: the model has no BatchNorm" in caplog.text) is held


def test_values_that_are_not_finite_are_said_before_the_first_round(
    dataset: raysim.FederatedDataset, here: raysim.Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    pairs: dict[str, Any] = {str(k): dataset.train.client(k) for k in range(4)}
    pairs["3"] = pairs["3"][0] * np.nan, pairs["3"][1]
    spoiled = raysim.FederatedDataset.from_clients(pairs)
    with caplog.at_level(logging.WARNING, "raysim"):
        raysim.rounds(here.changed({"cohort.size": 2}), dataset=spoiled, model=factory(0.1))
    assert "of the first 4 training clients 1 have values that are not finite: 3" in caplog.text


def test_frozen_values_of_another_run_are_not_taken(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: raysim.Experiment
) -> None:
    for name, value in (("a", 0.1), ("b", 0.2)):
        raysim.run(here, path=tmp_path / name, dataset=dataset, model=factory(value))
    begun = here.changed({"model": {"name": "own", "init": str(files.checkpoint_file(tmp_path / "a", 2))}})
    raysim.run(begun, path=tmp_path / "c", dataset=dataset, model=factory(0.3))
    assert torch.equal(frozen.read(tmp_path / "c")["0.weight"], torch.full((4, 5), 0.1))
    shutil.copy(tmp_path / "b" / frozen.FILE, tmp_path / "a" / frozen.FILE)
    with pytest.raises(raysim.RunFolderError, match=r"frozen\.safetensors belongs to a run with fingerprint"):
        raysim.run(begun, path=tmp_path / "d", dataset=dataset, model=factory(0.3))
