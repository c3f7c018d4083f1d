"""Code and values that a script gives a part between two rounds are warned of, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

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
