"""A run's folder knows which parts its script passed, and asks for them again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.run_folder import experiment_record, sealed_record
from raysim.run_folder.passed_parts import Passed
from tests.support import sealed_json
from tests.support.run_folders import accuracies, write

Make = Callable[..., raysim.Experiment]


Parts = dict[str, Any]


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def smoothed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def linear(dataset: raysim.FederatedDataset) -> Callable[[], nn.Module]:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None
    return lambda: nn.Linear(inputs, classes)


def test_what_a_script_passed_is_asked_for(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    path, module = tmp_path / "run", linear(dataset)
    result = raysim.run(experiment(), dataset=dataset, model=module, path=path)
    stored = experiment_record.stored_passed(path)
    assert stored is not None
    assert stored.names == ("dataset", "model")
    assert len(stored.answers["model"]) == 2 * (dataset.num_classes or 0) + 1
    assert str(result).splitlines()[-1].split(maxsplit=1) == [
        "next",
        f"raysim.resume('{path}', rounds=8, dataset=..., model=...)",
    ]
    calls: dict[str, Callable[[], object]] = {
        "resume(path": lambda: raysim.resume(path, rounds=5, dataset=dataset),
        "evaluate(path": lambda: raysim.evaluate(path, dataset=dataset),
        "export(path, out": lambda: raysim.export(path, tmp_path / "m.safetensors", dataset=dataset),
        "replay(path, round": lambda: raysim.replay(path, 1, dataset=dataset),
    }
    for beginning, again in calls.items():
        advice = re.escape(f"raysim.{beginning}, model=...)")
        with pytest.raises(raysim.RunFolderError, match=rf"was passed model= by its script.*: {advice}"):
            again()
    assert raysim.resume(path, rounds=5, dataset=dataset, model=module).rounds.num_rows == 5


def test_a_run_that_goes_on_with_a_section_in_place_of_the_module_is_told_the_call(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, model=linear(dataset), path=path)
    advice = re.escape("raysim.resume(path, model=...)")
    with pytest.raises(raysim.RunFolderError, match=rf"was passed model= by its script.*: {advice}"):
        raysim.run(experiment(model={"name": "linear"}), dataset=dataset, path=path, resume=True)


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
    raysim.run(experiment(), dataset=dataset, loss=own_loss, path=tmp_path / "run")
    raysim.resume(tmp_path / "run", rounds=5, dataset=dataset)
    assert "was passed loss= by its script, and now the task's own loss is used" in caplog.text
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "other")
    raysim.resume(tmp_path / "other", rounds=5, dataset=dataset, loss=own_loss)
    assert "had the task's own loss, and now loss= of the script is used" in caplog.text


class Scaled(nn.Module):
    """Two of these with other factors have the same shapes: a folder cannot tell them apart."""

    def __init__(self, dataset: raysim.FederatedDataset, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = linear(dataset)(), factor

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x) * self.factor
        return outputs


def test_figures_that_are_not_those_on_record_are_said(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another module of the same shapes, or another loss, would score the run as if it were its own."""
    path, exp = tmp_path / "run", experiment(evaluation={"every": 1})
    same: Parts = {"dataset": dataset, "model": lambda: Scaled(dataset, 1.0), "loss": smoothed_loss}
    raysim.run(exp, path=path, **same)

    def said(read: Callable[..., Any], *given: Any, **parts: Any) -> str:
        caplog.clear()
        read(path, *given, **{**same, **parts})
        return caplog.text

    last = exp.rounds - 1
    assert said(raysim.evaluate) == said(raysim.replay, last) == ""
    others: Parts = {
        "model": lambda: Scaled(dataset, 2.0),
        "loss": lambda outputs, targets: 2 * smoothed_loss(outputs, targets),
    }
    for name, other in others.items():
        expected = f"round {last} of {path} is on record with other figures ("
        assert expected in said(raysim.evaluate, **{name: other})
        assert expected in said(raysim.replay, last, **{name: other})
    # Other data have no figures on record.
    assert "on record" not in said(raysim.evaluate, data=dataset, model=others["model"])
    # Without a record that can be read the model is scored all the same.
    (path / "rounds.parquet").write_bytes(b"")
    assert "cannot be compared with the record" in said(raysim.evaluate)


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
    moved = {name: value + 1 for name, value in params.items()}
    for again in (raysim.resume, lambda place, **parts: raysim.replay(place, 0, **parts)):
        with pytest.raises(raysim.RunFolderError, match="at the params= of its script, which are not those passed now"):
            again(whole.path, dataset=dataset, params=moved)
    again_first = raysim.replay(whole.path, 0, dataset=dataset, params=params)
    assert isinstance(again_first, raysim.Round)
    assert again_first.metrics["loss"] == whole.rounds["loss"][0].as_py()
    raysim.run(start, dataset=dataset, path=path)
    raysim.resume(path, rounds=5, dataset=dataset, params=params)
    assert caplog.text.count("params= is not used") == 1
    raysim.run(start, dataset=dataset, params=params, path=tmp_path / "other")
    raysim.resume(tmp_path / "other", rounds=5, dataset=dataset, params=params)
    assert caplog.text.count("params= is not used") == 1
    raysim.resume(tmp_path / "other", rounds=6, dataset=dataset, params=moved)
    assert caplog.text.count("params= is not used") == 2
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(raysim.RunFolderError, match=r"began at the experiment's initial values.*leave params= out"):
        raysim.resume(path, dataset=dataset, params=params)
    assert experiment_record.stored_passed(path) == Passed(("dataset",))


def test_a_run_that_was_passed_nothing_stays_one(
    experiment: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment(model={"name": "linear"}, data={"name": "digits", "clients": 10}, rounds=2)
    params = raysim.run(exp, path=tmp_path / "run").params
    raysim.resume(tmp_path / "run", rounds=3, params=params)
    assert "params= is not used" in caplog.text
    assert experiment_record.stored_passed(tmp_path / "run") == Passed()


def test_initial_values_need_not_be_passed_again(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path, start = tmp_path / "run", experiment(model={"name": "linear"})
    params = raysim.run(start, dataset=dataset, path=tmp_path / "before").params
    raysim.run(start, dataset=dataset, params=params, path=path)
    assert raysim.resume(path, rounds=5, dataset=dataset).rounds.num_rows == 5


def sweep_of(cohorts: list[int], start: raysim.Experiment, **how: Any) -> raysim.SweepResult:
    return raysim.run_sweep(start, {"cohort.size": cohorts}, **how)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"params": 0.0}, {}, "it was passed params= by its script, which is not passed now"),
        ({}, {"params": 0.0}, "params= is passed now, and was not"),
        ({"params": 0.0}, {"params": 1.0}, "it began at other values than those of params= now"),
        ({"loss": own_loss}, {}, "it was passed loss= by its script, which is not passed now"),
        ({}, {"loss": own_loss}, "loss= is passed now, and was not"),
    ],
)
def test_a_series_does_not_go_on_with_runs_that_begin_otherwise(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, before: Parts, after: Parts, said: str
) -> None:
    start = experiment(model={"name": "linear"}, rounds=1)
    trained = raysim.run(start, dataset=dataset, path=tmp_path / "before").params

    def parts(of: Parts) -> Parts:
        by = of.get("params")
        moved = {} if by is None else {"params": {name: value + by for name, value in trained.items()}}
        return {**of, **moved, "dataset": dataset}

    here, there = tmp_path / "sweep", tmp_path / "trials"
    sweep_of([5], start, **parts(before), path=here)
    raysim.run_trials(start.changed({"trials.count": 2}), **parts(before), path=there)
    with pytest.raises(raysim.RunFolderError, match=rf"size=7 would begin differently from .*size=5, so .*: {said}"):
        # The new run would be the first.
        sweep_of([7, 5], start, **parts(after), path=here, resume=True)
    assert not (here / "cohort.size=7").exists()
    with pytest.raises(raysim.RunFolderError, match=rf"trial-2 would begin differently from .*trial-0, so .*: {said}"):
        raysim.run_trials(start.changed({"trials.count": 3}), **parts(after), path=there, resume=True)
    whole = sweep_of([7, 5], start, **parts(before), path=here, resume=True)
    assert [point.rounds.num_rows for point in whole.points] == [1, 1]
    if "params" in before:
        # Nothing begins any more.
        sweep_of([7, 5], start, dataset=dataset, path=here, resume=True)


def test_data_are_known_otherwise_and_need_not_be_passed_again() -> None:
    assert Passed(("dataset", "loss")).other_names(Passed(("loss",))) == []
    assert Passed(("loss",)).other_names(Passed()) == ["loss"]


def test_initial_values_are_known_by_their_numbers() -> None:
    given = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(3.0)}
    known = Passed.of({"params": given, "model": None})
    assert known.names == ("params",)
    assert Passed.of({"params": {"b": np.float32(3), "a": [[1, 2]]}}) == known
    other: list[Any] = [{**given, "b": 3.5}, {**given, "a": [[2.0, 1.0]]}, {**given, "a": [1.0, 2.0]}, [given, given]]
    assert len({Passed.of({"params": each}).params for each in [given, *other]}) == 5
    assert Passed.of({"params": 3}).params is None


@pytest.mark.parametrize("names", [["model", "\x1b[2J"], [1], ["a b"], [["model"]]])
def test_a_folder_does_not_say_more_than_keywords(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, names: list[Any]
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, path=path)
    record = json.loads((path / "experiment.json").read_text())
    del record["checksum"]
    sealed_record.write_json({**record, "passed": names}, path / "experiment.json")
    with pytest.raises(raysim.RunFolderError, match=r"experiment\.json is damaged: expected keywords as its 'passed'"):
        raysim.resume(path, rounds=5, dataset=dataset)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("passed", value) for value in ("model", {"model": 1}, True)),
        *(("passed_params", 3), ("passed_params", ["a"])),
        *(("privacy", []), ("tensors", "params"), ("trained_by", ["fused"])),
    ],
)
def test_what_was_passed_is_of_its_kind(tmp_path: Path, key: str, value: object) -> None:
    """An entry of another kind is not a missing one, by which a run would go on unchecked."""
    run = write(tmp_path / "run", accuracies(0.5))
    record = {**json.loads((run / "experiment.json").read_text()), "passed": ["model", "params"], "passed_params": "a"}
    sealed_json.write(run / "experiment.json", record)
    assert experiment_record.stored_passed(run) == Passed(("model", "params"), "a")
    sealed_json.write(run / "experiment.json", {**record, key: value})
    with pytest.raises(raysim.RunFolderError, match=rf"experiment\.json is damaged: expected [a-z]+ as its '{key}'"):
        experiment_record.stored_passed(run)


def test_a_module_of_the_same_tensors_that_computes_otherwise_is_noticed(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None

    def with_(activation: type[nn.Module]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(inputs, 5), activation(), nn.Linear(5, classes))

    path = tmp_path / "run"
    parts: Parts = {"dataset": dataset, "loss": own_loss}
    raysim.run(experiment(), model=with_(nn.ReLU), path=path, **parts)
    with pytest.raises(raysim.RunFolderError, match=r": model= and loss= gave other numbers"):
        raysim.resume(path, rounds=5, model=with_(nn.Tanh), **parts)
    with pytest.raises(raysim.RunFolderError, match=r": loss= gave other numbers"):
        raysim.resume(
            path, rounds=5, dataset=dataset, model=with_(nn.ReLU), loss=lambda outputs, y: 3 * own_loss(outputs, y)
        )
    assert raysim.resume(path, rounds=5, model=with_(nn.ReLU), **parts).rounds.num_rows == 5


def test_another_rate_of_dropout_is_noticed(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None

    def with_(rate: float) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(inputs, 5), nn.Dropout(rate), nn.Linear(5, classes))

    raysim.run(experiment(), model=with_(0.5), path=tmp_path / "run", dataset=dataset)
    with pytest.raises(raysim.RunFolderError, match=r"model= has other rates of dropout than at the run's start"):
        raysim.resume(tmp_path / "run", rounds=5, model=with_(0.25), dataset=dataset)
    assert raysim.resume(tmp_path / "run", rounds=5, model=with_(0.5), dataset=dataset).rounds.num_rows == 5


@pytest.mark.parametrize("drops_first", [False, True])
def test_dropout_that_comes_or_goes_is_noticed(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, drops_first: bool
) -> None:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None

    def make(drops: bool) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(
            nn.Linear(inputs, 5), nn.Dropout(0.5) if drops else nn.Identity(), nn.Linear(5, classes)
        )

    raysim.run(experiment(), model=make(drops_first), path=tmp_path / "run", dataset=dataset)
    with pytest.raises(raysim.RunFolderError, match=r"model= has other rates of dropout than at the run's start"):
        raysim.resume(tmp_path / "run", rounds=5, model=make(not drops_first), dataset=dataset)


def test_params_and_values_that_are_not_finite_hide_no_other_module(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    (inputs,), classes = dataset.x.shape, dataset.num_classes
    assert classes is not None

    def with_(factor: float) -> Callable[[], nn.Module]:
        class Late(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                outputs = super().forward(x)
                far = torch.cat([outputs[:, :-1], torch.full_like(outputs[:, :1], -torch.inf)], 1)
                return far * factor if factor > 0 else far - 1.0

        return lambda: Late(inputs, classes)

    params = {"weight": np.zeros((classes, inputs)), "bias": np.zeros(classes)}
    path = tmp_path / "run"
    raysim.run(experiment(), model=with_(1.0), path=path, params=params, dataset=dataset)
    every: list[Parts] = [{}, {"params": params}, {"params": {**params, "bias": np.ones(classes)}}]
    for given in every:
        with pytest.raises(raysim.RunFolderError, match=r": model= gave other numbers"):
            raysim.resume(path, rounds=5, model=with_(-1.0), dataset=dataset, **given)


def test_answers_that_are_no_numbers_are_damage(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path, module = tmp_path / "run", linear(dataset)
    raysim.run(experiment(), dataset=dataset, model=module, path=path)
    record = json.loads((path / "experiment.json").read_text())
    sealed_json.write(path / "experiment.json", {**record, "passed_answers": {"model": ["no number"]}})
    with pytest.raises(raysim.RunFolderError, match=r"experiment.json is damaged: expected the record of what was"):
        raysim.resume(path, rounds=5, dataset=dataset, model=module)


def own_correction(section: Any) -> raysim.Correction:
    return raysim.Correction(raysim.ClientHalf(bend=lambda at: 2 * at.gradient))


def own_objective(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    return own_loss(module(x), y)


@pytest.mark.parametrize(
    ("keys", "parts", "said"),
    [
        ({"client.posterior": {}}, {"correction": own_correction}, "posterior makes an update"),
        (
            {"composite": {"penalty": "l1", "strength": 0.1}},
            {"correction": own_correction},
            "composite has local steps",
        ),
        ({"server.weighting": "ida"}, {"aggregator": raysim.Coefficients(lambda inner, w: w)}, "'ida' weighs a mean"),
        ({"client.accumulate": 2}, {"objective": own_objective}, "accumulate divides a batch"),
    ],
    ids=["posterior", "composite", "ida", "accumulate"],
)
def test_the_rules_of_a_file_hold_for_what_a_script_passes(
    keys: dict[str, Any], parts: Parts, said: str, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """Such a run began, without the part, and nobody could read its folder."""
    exp = experiment().changed(keys)
    with pytest.raises(raysim.ExperimentError, match=re.escape(said)):
        raysim.run(exp, path=tmp_path / "run", dataset=dataset, progress=False, **parts)
    assert not (tmp_path / "run").exists()
