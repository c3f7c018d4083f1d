"""Rows have every figure of a training round, None where it is not defined; a model that diverges ends the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.report import closing
from raysim.run_folder import experiment_record, kept_checkpoints, round_table
from raysim.run_folder.rows import table
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped

Make = Callable[..., raysim.Experiment]

SERVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all figures": {
        "optimizer": {"name": "lamb", "lr": 0.1},
        "clip": {"initial": 1.0},
        "glad": {},
        "diagnostics": {"cosine": True, "labels": True},
    },
}
CLIENTS: dict[str, dict[str, Any]] = {"plain": {}, "corrected": {"correction": {"name": "scaffold"}}}


def nothing_counts(facts: Any) -> float:
    return 0.0


@pytest.mark.parametrize(("server", "client"), [("plain", "plain"), ("all figures", "plain"), ("plain", "corrected")])
def test_a_round_without_an_update_has_every_figure(
    server: str, client: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """Every client weighs nothing in one run, and is rejected in the other: the names are those of a usual run."""
    exp = experiment(engine={"workers": 0}, server=SERVERS[server], client=CLIENTS[client], rounds=1)
    spoiled = {
        str(p): (np.full_like(x, np.nan), y) for p in range(len(dataset.train)) for x, y in [dataset.train.client(p)]
    }
    usual, *_ = raysim.rounds(exp, dataset=dataset, model=lambda: nn.Linear(5, 3))
    rejected, *_ = raysim.rounds(
        exp, dataset=raysim.FederatedDataset.from_clients(spoiled), model=lambda: nn.Linear(5, 3)
    )
    assert rejected.metrics["clients"] == 0
    names = {name for name in usual.metrics if not name.startswith("eval")}
    assert names - set(rejected.metrics) == set()
    assert {"loss", "accuracy", "gsi", "catastrophic_failure"} <= names
    assert rejected.metrics["loss"] is None
    if client == "plain" and server == "plain":
        weightless, *_ = raysim.rounds(exp, dataset=dataset, model=lambda: nn.Linear(5, 3), weighting=nothing_counts)
        assert names - set(weightless.metrics) == set()
        assert weightless.metrics["loss"] == usual.metrics["loss"]
        assert weightless.metrics["gsi"] is None


def test_a_round_in_which_an_objective_leaves_the_model_out_has_every_figure(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def without_the_model(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        if at.round != 1:
            return nn.functional.cross_entropy(module(x), y, reduction="none")
        squares = torch.stack([p.square().sum() for p in module.parameters()]).sum()
        return squares.expand(len(x))

    exp = experiment(engine={"workers": 0}, rounds=3)
    rounds = [*raysim.rounds(exp, dataset=dataset, model=lambda: nn.Linear(5, 3), objective=without_the_model)]
    assert [one.metrics["accuracy"] is None for one in rounds] == [False, True, False]
    assert rounds[1].metrics["catastrophic_failure"] is None
    assert set(rounds[0].metrics) == set(rounds[1].metrics)


def test_where_nothing_is_counted_no_figure_of_that_is_there(experiment: Make) -> None:
    x = np.full((4, 5), np.nan, np.float32)
    data = raysim.FederatedDataset.from_clients({str(k): (x, np.zeros(4, np.float32)) for k in range(7)})
    exp = experiment(engine={"workers": 0}, rounds=1, evaluation={"every": 1})
    (only,) = raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(5, 1))
    assert only.metrics["loss"] is None
    assert "accuracy" not in only.metrics


def test_a_run_of_such_rounds_has_the_columns(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(engine={"workers": 0})
    result = raysim.run(
        exp,
        dataset=dataset,
        model=lambda: nn.Linear(5, 3),
        path=tmp_path / "run",
        loss=lambda outputs, y: outputs.sum(1) * math.nan,
    )
    assert result.rounds["loss"].to_pylist() == [None] * exp.rounds
    assert str(result.rounds.schema.field("loss").type) == "double"


def failing_in(index: int, number: float) -> Callable[[Any], ServerOptimizer]:
    """A server optimizer that steps to such a number in round `index`."""

    def maker(section: Any) -> ServerOptimizer:
        def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
            made = params - descent.lr * descent.fg
            # Before the first round it is tried with k = 1 on vectors of its own.
            if descent.k == index + 1 and not state["tried"]:
                made[0] = number
            return Stepped(made, {"tried": state["tried"] * 0})

        return ServerOptimizer(lambda params: {"tried": torch.ones(())}, step)

    return maker


@pytest.mark.parametrize(("index", "number"), [(1, math.nan), (3, math.inf), (2, -math.inf)])
def test_a_step_to_no_number_is_an_error_in_that_round(
    index: int, number: float, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(engine={"workers": 0}, checkpoint={"every": 100})
    with pytest.raises(raysim.DivergedError) as caught:
        raysim.run(exp, dataset=dataset, path=tmp_path / "run", server_optimizer=failing_in(index, number))
    said = str(caught.value)
    assert f"diverged in round {index}: 1 of the numbers of 'fc1.weight' are not finite" in said
    assert "after the step of server_optimizer= with the learning rate 1." in said
    assert f"The last good state is that of {index} rounds in {tmp_path / 'run' / 'checkpoints'}." in said
    state = kept_checkpoints.newest_state(tmp_path / "run", experiment_record.stored_owner(tmp_path / "run"))
    assert state is not None
    assert state.round == index
    assert torch.isfinite(state.weights.params).all()
    assert len(round_table.read_rounds(tmp_path / "run")) == index


def test_a_built_in_step_to_no_number_in_the_first_round(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    # Updates of 1e36, which float32 holds, times 1e4, which it does not.
    clients = {dataset.train.id_of(p): dataset.train.client(p) for p in range(len(dataset.train))}
    large = raysim.FederatedDataset.from_clients({name: (x * np.float32(1e30), y) for name, (x, y) in clients.items()})
    zeros = {name: np.zeros(shape) for name, shape in (("weight", (3, 5)), ("bias", (3,)))}
    once = {"optimizer": {"lr": 1e6}, "local_steps": 1, "batch_size": "full"}
    exp = experiment(server={"optimizer": {"name": "sgd", "lr": 1e4}}, client=once)
    with pytest.raises(raysim.DivergedError, match=r"in round 0: .* step of .*'sgd' .* No round before it was good"):
        next(raysim.rounds(exp, dataset=large, model=lambda: nn.Linear(5, 3), params=zeros))


def test_a_client_that_spoils_an_evaluation_is_named(
    dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    train = {str(p): dataset.train.client(p) for p in range(len(dataset.train))}
    x, y = train["0"]
    spoiled = np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x)
    data = raysim.FederatedDataset.from_clients(train, test={"fine": (x, y), "spoiled": (spoiled, y)})
    exp = experiment(engine={"workers": 0}, rounds=1)
    with caplog.at_level(logging.WARNING, "raysim"):
        (only,) = raysim.rounds(exp, dataset=data)
    assert math.isnan(only.metrics["eval/test/loss"] or 0.0)
    assert "eval/test/loss is not finite, because that of 1 of its 2 clients is not: 'spoiled'" in caplog.text


def test_a_split_without_examples_is_said(
    dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Once, before the first round: by the script's process, whatever the log of workers is."""
    train = {str(p): dataset.train.client(p) for p in range(len(dataset.train))}
    x, y = train["0"]
    data = raysim.FederatedDataset.from_clients(train, test={"empty": (x[:0], y[:0])})
    with caplog.at_level(logging.WARNING, "raysim"):
        list(raysim.rounds(experiment(engine={"workers": 0}, rounds=1), dataset=data))
        assert caplog.text.count("the split 'test' has no examples") == 1
        caplog.clear()
        trials = experiment(engine={"workers": 0}, rounds=1, trials=3)
        raysim.run_trials(trials, dataset=data, path=tmp_path)
        assert caplog.text.count("the split 'test' has no examples") == 1
        caplog.clear()
        found = raysim.evaluate(tmp_path / "trial-0", split=("test", "train"), dataset=data)
        assert caplog.text.count("the split 'test' has no examples") == 1
        assert "eval/train/loss" in found.metrics


def test_a_table_has_the_columns_of_evaluations_from_its_first_row(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(
        engine={"workers": 0}, rounds=2, evaluation={"every": 2, "fine_tuning": {"split": "train", "steps": 1}}
    )
    first, last = raysim.rounds(exp, dataset=dataset, model=lambda: nn.Linear(5, 3))
    assert set(first.metrics) == set(last.metrics)
    assert first.metrics["eval_tuned/train/before/accuracy"] is None
    assert last.metrics["eval_tuned/train/before/accuracy"] is not None


def test_a_run_that_ends_diverged_says_since_when() -> None:
    exp = raysim.Experiment.model_validate({"rounds": 4, "cohort": {"size": 2}})
    rows = [{"round": i, "clients": 2 * (i < 2), "rejected": 2 * (i >= 2), "workers": 1} for i in range(4)]
    said = dict(closing.lines(exp, table(rows), Path("runs/x")))
    assert said["diverged"].startswith("since round 3 no update was finite")
    assert "diverged" not in dict(closing.lines(exp, table([*rows, {**rows[0], "round": 4}]), Path("runs/x")))


def test_a_loss_that_rose_in_finite_numbers_and_a_run_without_clients_are_named() -> None:
    exp = raysim.Experiment.model_validate({"rounds": 2, "cohort": {"size": 2}})

    def said(losses: list[float | None], clients: int) -> dict[str, str]:
        rows = [
            {"round": i, "clients": clients, "rejected": 0, "workers": 1, "loss": loss} for i, loss in enumerate(losses)
        ]
        return dict(closing.lines(exp, table(rows), Path("runs/x")))

    assert said([2.0, 439800.0], 2)["loss rose"].startswith("from 2 to 4.4e+05 in training")
    assert not {"loss rose", "no update"} & said([2.0, 19.0], 2).keys()
    assert said([None, None], 0)["no update"] == "no client trained in any round, and the model is as it began"


def test_a_server_step_that_fills_the_gaps_is_refused_whenever_it_does(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def late(after: int) -> Any:
        def step(params: Any, descent: Any, state: Any) -> Stepped:
            return Stepped(params - descent.lr * descent.fg + (state["n"] >= after), {"n": state["n"] + 1})

        return lambda section: ServerOptimizer(lambda params: {"n": torch.zeros(())}, step)

    for after in (0, 1):
        with pytest.raises(raysim.ExperimentError, match="must leave zeros between the parameters"):
            list(
                raysim.rounds(
                    experiment(engine={"workers": 0}, rounds=3),
                    dataset=dataset,
                    model=lambda: nn.Linear(5, 3),
                    server_optimizer=late(after),
                )
            )
