"""Code and values that a script gives a part between two rounds are warned of, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional

import raysim

Make = Callable[..., raysim.Experiment]
Weigh = Callable[[raysim.ClientFacts], float]


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs


def doubled(self: Body, x: Tensor) -> Tensor:
    outputs: Tensor = 2 * self.layer(x)
    return outputs


calls = list[int]()


def counted() -> nn.Module:
    calls.append(len(calls))
    return Body()


class Loss:
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")


def halved(self: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * functional.cross_entropy(outputs, targets, reduction="none")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "between two rounds" in record.getMessage()]


def test_other_code_of_a_layer_and_of_a_loss_is_told_once(
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = raysim.rounds(
        experiment(rounds=4, engine={"workers": 0}), model=lambda: nn.Sequential(Body()), loss=Loss(), dataset=dataset
    )
    with caplog.at_level(logging.WARNING, "raysim"):
        next(rounds)
        next(rounds)
        assert not warnings(caplog)
        monkeypatch.setattr(Body, "forward", doubled)
        monkeypatch.setattr(Loss, "__call__", halved)
        assert len(list(rounds)) == 2
    (said,) = warnings(caplog)
    assert said.startswith("the code of model= and loss= was changed between two rounds. A run takes code as it is")


def test_a_run_is_left_alone_otherwise(
    dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "raysim"):
        list(raysim.rounds(experiment(engine={"workers": 0}), model=Body, loss=Loss(), dataset=dataset))
    assert not warnings(caplog)


factor, tables, seen = 1.0, {"factor": 1.0}, list[int]()


logger = logging.getLogger("weighting")


def by_number(facts: raysim.ClientFacts) -> float:
    logger.debug("weighs")
    return facts.examples * factor


def by_table(facts: raysim.ClientFacts) -> float:
    seen.append(facts.examples)
    return facts.examples * tables["factor"]


class Weighting:
    def __init__(self) -> None:
        self.factor, self.calls = 1.0, 0

    def __call__(self, facts: raysim.ClientFacts) -> float:
        self.calls += 1
        return facts.examples * self.factor


def of_object(by: Weighting) -> Weigh:
    return lambda facts: facts.examples * by.factor


def changed(monkeypatch: pytest.MonkeyPatch, what: str) -> tuple[Weigh, Callable[[], None]]:
    """A weighting that reads a value, and a function that changes it."""
    by = Weighting()
    if what == "a number":
        return by_number, lambda: monkeypatch.setattr(f"{__name__}.factor", 2.0)
    if what == "a table":
        return by_table, lambda: monkeypatch.setitem(tables, "factor", 2.0)
    return (by if what == "an attribute" else of_object(by)), lambda: setattr(by, "factor", 2.0)


@pytest.mark.parametrize("what", ["a number", "a table", "an attribute", "an attribute of what it reads"])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("by", ["rounds", "logger"])
def test_a_value_that_the_script_changes_between_two_rounds_is_told_once(
    what: str,
    changes: bool,
    by: str,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What a part itself changes is not."""
    weighting, change = changed(monkeypatch, what)
    exp = experiment(rounds=4, engine={"workers": 0}).changed({"server.weighting": {"name": "own"}})
    with caplog.at_level(logging.WARNING, "raysim"):
        if by == "rounds":
            for finished in raysim.rounds(exp, weighting=weighting, dataset=dataset):
                logger.info("a round")
                if changes and finished.index in (1, 2):
                    change()
        else:
            log = [lambda row: change() if changes else None]
            raysim.run(exp, weighting=weighting, dataset=dataset, loggers=log, path=tmp_path / "run")
    assert len(warnings(caplog)) == changes
    assert not changes or "which weighting= reads, was changed between two rounds" in warnings(caplog)[0]


def several(by: str, exp: raysim.Experiment, path: Path, change: Callable[[], None], **parts: Any) -> None:
    """Carry out two runs; `change` is the script's code after the first one has begun, also twice."""
    log = [lambda row: change()]
    if by == "reports":
        with raysim.Runs(exp, **parts) as runs:
            runs.start([(exp, path / "a"), (exp.changed(["seed=7"]), path / "b")])
            for _ in runs.reports():
                change()
    elif by in ("two starts", "a branch"):
        with raysim.Runs(exp, **parts) as runs:
            for name in ("a", "b"):
                if by == "a branch" and name == "b":
                    runs.check(exp)
                    runs.branch(exp.changed(["rounds=6"]), path / name, path / "a")
                runs.start([(exp.changed(["rounds=6"]) if name == "b" else exp, path / name)], resume=True)
                assert list(runs.reports())
                change()
    elif by == "trials":
        raysim.run_trials(exp.changed(["trials=2"]), path=path / "trials", loggers=log, **parts)
    elif by == "sweep":
        raysim.run_sweep(exp, {"seed": [7, 8]}, path=path / "sweep", loggers=log, **parts)
    elif by == "started":
        raysim.run_sweep(exp, {"seed": [7, 8]}, path=path / "sweep", started=lambda member: change(), **parts)
    else:
        # Runs with other workers go one after the other.
        values = {"engine.cpus_per_worker": [1, 2]}
        raysim.run_sweep(exp, values, path=path / "sweep", started=lambda member: change(), **parts)


SEVERAL = ["reports", "two starts", "a branch", "trials", "sweep", "started", "started in turn"]


@pytest.mark.parametrize("by", SEVERAL)
@pytest.mark.parametrize("changes", ["the value", "the code", "nothing", "the part itself"])
def test_what_a_script_changes_while_several_runs_go_on_is_told(
    by: str,
    changes: str,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A part may change its own values, also where a method of `Runs` calls it."""
    calls.clear()
    monkeypatch.setattr(f"{__name__}.factor", 1.0)
    exp = experiment(rounds=3, engine={"workers": 0}).changed({"server.weighting": {"name": "own"}})
    parts: dict[str, Any] = {"dataset": dataset, "weighting": by_number, "loss": Loss()}

    def change() -> None:
        if changes == "the value":
            monkeypatch.setattr(f"{__name__}.factor", factor + 1)
        elif changes == "the code":
            monkeypatch.setattr(Loss, "__call__", halved)

    if changes == "the part itself":
        parts["model"] = counted
    with caplog.at_level(logging.WARNING, "raysim"):
        several(by, exp, tmp_path, change, **parts)
    said = [record.getMessage() for record in caplog.records if " was changed " in record.getMessage()]
    expected = {"the value": "factor, which weighting= reads, was changed", "the code": "the code of loss= was changed"}
    assert len(said) == (changes in expected)
    assert all(each.startswith(expected[changes]) for each in said)


def test_a_value_that_is_set_before_the_first_run_is_not_changed(
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    exp = experiment(rounds=3, engine={"workers": 0}).changed({"server.weighting": {"name": "own"}})
    with caplog.at_level(logging.WARNING, "raysim"), raysim.Runs(exp, dataset=dataset, weighting=by_number) as runs:
        runs.check(exp)
        monkeypatch.setattr(f"{__name__}.factor", 3.0)
        runs.start([(exp, tmp_path / "run")])
        assert list(runs.reports())
    assert " was changed " not in caplog.text
