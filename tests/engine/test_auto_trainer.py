"""The trainer on a card: measured once, kept for runs of the same model, and recorded by a run for when it goes on."""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import raysim
from raysim import card
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import auto_trainer
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.engine.rounds.calibrate import Timing
from raysim.errors import RunFolderError
from raysim.run_folder import experiment_record

Make = Callable[..., raysim.Experiment]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Timing]:
    """A card, and what is measured there: change it, and the next measurement says so."""
    timings = [Timing("stacked", "auto", (2.0,)), Timing("fused", 4, (1.0,))]
    monkeypatch.setattr(card, "is_there", lambda: True)
    monkeypatch.setattr(card, "name", lambda: "NVIDIA H200")
    monkeypatch.setattr(auto_trainer, "calibrate", lambda plan, workers, repeats, budget_s, sizes: list(timings))
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    return timings


@pytest.fixture
def plan(experiment: Make, dataset: raysim.FederatedDataset, measured: list[Timing]) -> Plan:
    return resolve(experiment(), dataset=dataset)


def trained_by(plan: Plan) -> tuple[str, Any]:
    record = plan.choice.record
    return str(record["trainer"]), record["chunk_size"]


def test_the_fastest_is_measured_once_and_kept(plan: Plan, measured: list[Timing]) -> None:
    assert trained_by(plan) == ("stacked", "auto")
    assert trained_by(with_kept_trainer(plan)) == ("fused", 4)
    measured[1] = Timing("one_by_one", 4, (0.5,))
    assert trained_by(with_kept_trainer(plan)) == ("fused", 4)


def test_another_model_step_card_or_version_is_measured_for_itself(
    plan: Plan,
    measured: list[Timing],
    experiment: Make,
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_kept_trainer(plan)
    measured[1] = Timing("one_by_one", 4, (0.5,))
    others = (
        {"model": {"name": "mlp", "hidden": [9]}},
        {"client": {"batch_size": 5}},
        {"client": {"batch_size": 4, "max_grad_norm": 1.0}},
    )
    for changed in others:
        assert trained_by(with_kept_trainer(resolve(experiment(**changed), dataset=dataset))) == ("one_by_one", 4)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(card, "name", lambda: "NVIDIA A100")
        assert trained_by(with_kept_trainer(plan)) == ("one_by_one", 4)
    with monkeypatch.context() as later:
        later.setattr(experiment_record, "version", lambda: "99")
        assert trained_by(with_kept_trainer(plan)) == ("one_by_one", 4)
    assert trained_by(with_kept_trainer(plan)) == ("fused", 4)


def test_the_number_of_workers_changes_nothing(
    measured: list[Timing], experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def noted(plan: Plan, workers: int, **_: Any) -> list[Timing]:
        given.append(workers)
        return measured

    monkeypatch.setattr(auto_trainer, "calibrate", noted)
    plans = [with_kept_trainer(resolve(experiment(engine={"workers": n}), dataset=dataset)) for n in (0, 1, 8)]
    assert given == [1]
    assert len({plan.fingerprint for plan in plans}) == 1


@pytest.mark.parametrize("engine", [{"trainer": "stacked"}, {"cuda_graphs": True}, {"gpus_per_worker": 0}], ids=str)
def test_nothing_is_measured_where_the_trainer_is_given_or_no_card_is_used(
    measured: list[Timing], experiment: Make, dataset: raysim.FederatedDataset, engine: dict[str, Any]
) -> None:
    plan = resolve(experiment(engine={"workers": 0, **engine}), dataset=dataset)
    assert with_kept_trainer(plan) is plan


def test_a_given_chunk_size_stays(measured: list[Timing], experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(engine={"workers": 0, "chunk_size": 3}), dataset=dataset)
    assert trained_by(with_kept_trainer(plan)) == ("fused", 3)


def test_the_first_file_that_is_written_counts(plan: Plan, measured: list[Timing], tmp_path: Path) -> None:
    with_kept_trainer(plan)
    (file,) = (tmp_path / "cache" / "trainers").iterdir()
    auto_trainer.keep({"trainer": "vmap", "chunk_size": 2}, file)
    assert json.loads(file.read_text())["trainer"] == "fused"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"trainer": "fastest", "chunk_size": 4}', '{"trainer": "fused", "chunk_size": true}']
)
def test_a_damaged_file_is_measured_again(
    plan: Plan, measured: list[Timing], content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    with_kept_trainer(plan)
    (file,) = (tmp_path / "cache" / "trainers").iterdir()
    file.write_text(content)
    measured[1] = Timing("one_by_one", 4, (0.5,))
    assert trained_by(with_kept_trainer(plan)) == ("one_by_one", 4)
    assert "measured again" in caplog.text


class ByValues(nn.Module):
    """Its course depends on values, so no step of it is recorded."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x.flatten(1))
        return outputs * 2 if float(outputs.detach().sum()) > 0 else outputs


def test_what_was_measured_for_another_module_of_the_same_layers_leaves_it_to_the_table(
    measured: list[Timing],
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inputs, outputs = math.prod(dataset.x.shape), dataset.num_classes or 0
    plan = resolve(experiment(model=None), dataset=dataset, model=lambda: ByValues(inputs, outputs))
    with_kept_trainer(plan)
    (file,) = (tmp_path / "cache" / "trainers").iterdir()
    file.write_text('{"trainer": "recorded", "chunk_size": 4}')
    assert with_kept_trainer(plan) is plan
    assert "the table decides" in caplog.text


def test_without_a_cache_to_write_to_the_table_decides(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "file"))
    assert with_kept_trainer(plan) is plan
    assert "RAYSIM_CACHE" in caplog.text


def test_a_run_that_goes_on_takes_the_trainer_of_its_folder(plan: Plan, measured: list[Timing], tmp_path: Path) -> None:
    folder, begun = tmp_path / "run", with_kept_trainer(plan)
    folder.mkdir()
    experiment_record.write_experiment(
        folder, plan.experiment, begun.fingerprint, experiment_record.PlannedFacts(trained_by=begun.choice.record)
    )
    # As on another machine, with an empty cache and another clock.
    for file in (tmp_path / "cache" / "trainers").iterdir():
        file.unlink()
    measured[1] = Timing("one_by_one", 4, (0.5,))
    again = with_kept_trainer(plan, folder)
    assert again.choice == begun.choice
    assert again.fingerprint == begun.fingerprint
    assert trained_by(with_kept_trainer(plan)) == ("one_by_one", 4)


def test_a_folder_with_a_strange_trainer_is_refused(plan: Plan, tmp_path: Path) -> None:
    experiment_record.write_experiment(
        tmp_path, plan.experiment, "", experiment_record.PlannedFacts(trained_by={"trainer": "fastest"})
    )
    with pytest.raises(RunFolderError, match="the trainer of a run"):
        with_kept_trainer(plan, tmp_path)


def test_a_measurement_on_this_machine_ends(
    experiment: Make,
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The real measurement, on the CPU: the card is only said to be there after the plan was made."""
    plan = resolve(experiment(cohort={"size": 4}), dataset=dataset)
    monkeypatch.setattr(card, "name", lambda: "a card")
    monkeypatch.setattr(auto_trainer, "BUDGET_S", 0.001)
    # The others take seconds to import.
    monkeypatch.setattr("raysim.engine.rounds.calibrate.TRAINERS", ("fused", "stacked"))
    caplog.set_level(logging.INFO, "raysim")
    found = auto_trainer._measured(plan)
    assert auto_trainer.checked(found)["trainer"] in {key.split()[0] for key in found["seconds"]}
    assert "measuring which trainer is fastest on a card" in caplog.text


def test_a_run_records_its_trainer_and_a_resumed_one_keeps_it(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    made = experiment(rounds=1)
    raysim.run(made, dataset=dataset, path=tmp_path / "run", progress=False)
    recorded = experiment_record.stored_trained_by(tmp_path / "run")
    assert recorded == resolve(made, dataset=dataset).choice.record


def test_every_way_to_go_on_looks_into_the_folder(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path | None] = []

    def noted(plan: Plan, folder: Path | None = None) -> Plan:
        asked.append(folder)
        return plan

    for module in ("raysim.api.run", "raysim.api.many"):
        importlib.import_module(module)
        monkeypatch.setattr(sys.modules[module], "with_kept_trainer", noted)
    made, path = experiment(rounds=1), tmp_path / "run"
    raysim.run(made, dataset=dataset, path=path, progress=False)
    raysim.run(made, dataset=dataset, path=path, progress=False, resume=True)
    raysim.resume(path, dataset=dataset, progress=False)
    raysim.replay(path, 0, dataset=dataset)
    list(raysim.rounds(made, dataset=dataset))
    with raysim.Runs(made, dataset=dataset) as runs:
        runs.start([(made, tmp_path / "other")])
        runs.start([(made, path)], resume=True)
    assert asked == [None, path, path, path, None, None, path]
