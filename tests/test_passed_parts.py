"""A run's folder knows which parts its script passed, and asks for them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

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
            raysim.RunFolderError, match=r"was passed model= by its script.*raysim\.resume\(.*model=\.\.\."
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


def test_initial_values_need_not_be_passed_again(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path, start = tmp_path / "run", experiment(model={"name": "linear"})
    params = raysim.run(start, dataset=dataset, path=tmp_path / "before").params
    raysim.run(start, dataset=dataset, params=params, path=path)
    assert raysim.resume(path, rounds=5, dataset=dataset).rounds.num_rows == 5
