"""A run's folder knows which parts its script passed, and asks for them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor, nn

import raysim
from raysim.run_folder import records

Make = Callable[..., raysim.Experiment]


def linear(dataset: raysim.FederatedDataset) -> Callable[[], nn.Module]:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None
    return lambda: nn.Linear(inputs, classes)


def test_what_a_script_passed_is_asked_for(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    path, module = tmp_path / "run", linear(dataset)
    result = raysim.run(experiment(), dataset=dataset, model=module, path=path)
    assert records.stored_passed(path) == ("dataset", "model")
    assert str(result).splitlines()[-1].split(maxsplit=1) == [
        "next",
        f"raysim.resume('{path}', rounds=8, dataset=..., model=...)",
    ]
    for again in (
        lambda: raysim.resume(path, rounds=5, dataset=dataset),
        lambda: raysim.evaluate(path, dataset=dataset),
        lambda: raysim.export(path, tmp_path / "m.safetensors", dataset=dataset),
        lambda: raysim.replay(path, 1, dataset=dataset),
    ):
        with pytest.raises(
            raysim.RunFolderError, match=r"was passed model= by its script.*raysim\.resume\(path, model=\.\.\.\)"
        ):
            again()
    assert raysim.resume(path, rounds=5, dataset=dataset, model=module).rounds.num_rows == 5


def test_a_model_is_not_put_in_the_place_of_the_experiment_s(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(model={"name": "linear"}), dataset=dataset, path=path)
    with pytest.raises(raysim.RunFolderError, match=r"trains the experiment's \[model\], so model= cannot be passed"):
        raysim.resume(path, rounds=5, dataset=dataset, model=linear(dataset))


def test_a_loss_that_is_not_passed_again_is_said(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    raysim.run(experiment(), dataset=dataset, loss=loss, path=tmp_path / "run")
    raysim.resume(tmp_path / "run", rounds=5, dataset=dataset)
    assert "was passed loss= by its script, and now the task's own loss is used" in caplog.text


def test_a_run_that_began_at_a_scripts_values_does_not_begin_elsewhere(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, start = tmp_path / "run", experiment(model={"name": "linear"}, checkpoint={"every": 4})
    params = raysim.run(start, dataset=dataset, path=tmp_path / "before").params
    whole = raysim.run(start, dataset=dataset, params=params, path=tmp_path / "whole")
    for file in (tmp_path / "whole" / "checkpoints").iterdir():
        file.unlink()
    for again in (raysim.resume, lambda place, **parts: raysim.replay(place, 0, **parts)):
        with pytest.raises(
            raysim.RunFolderError, match=r"began at the params= of its script, and there is no checkpoint"
        ):
            again(whole.path, dataset=dataset)
    again_first = raysim.replay(whole.path, 0, dataset=dataset, params=params)
    assert isinstance(again_first, raysim.Round)
    assert again_first.metrics["loss"] == whole.rounds["loss"][0].as_py()
    raysim.run(start, dataset=dataset, path=path)
    raysim.resume(path, rounds=5, dataset=dataset, params=params)
    assert "params= is not used" in caplog.text
    assert records.stored_passed(path) == ("dataset",)


def test_a_run_that_was_passed_nothing_stays_one(
    experiment: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment(model={"name": "linear"}, data={"name": "digits", "clients": 10}, rounds=2)
    params = raysim.run(exp, path=tmp_path / "run").params
    raysim.resume(tmp_path / "run", rounds=3, params=params)
    assert "params= is not used" in caplog.text
    assert records.stored_passed(tmp_path / "run") == ()


def test_initial_values_need_not_be_passed_again(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path, start = tmp_path / "run", experiment(model={"name": "linear"})
    params = raysim.run(start, dataset=dataset, path=tmp_path / "before").params
    raysim.run(start, dataset=dataset, params=params, path=path)
    assert raysim.resume(path, rounds=5, dataset=dataset).rounds.num_rows == 5
