"""The learning rate of a round: scaling, warm-up, decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import raysim
from raysim.server.lr_scaling import LrScaling, lr_after
from raysim.server.lr_schedule import Cosine, ExponentialDecay, Step, factor

Make = Callable[..., raysim.Experiment]


@pytest.mark.parametrize(("rule", "lr"), [("sqrt", 2.0), ("linear", 4.0)])
def test_the_target_grows_with_the_cohort(rule: str, lr: float) -> None:
    assert lr_after(LrScaling.model_validate({"rule": rule, "reference": 50}), 1.0, 200, 0) == lr


def test_without_a_rule_the_cohort_does_not_matter() -> None:
    assert lr_after(LrScaling(), 0.3, 800, 5) == 0.3


def test_warm_up_from_zero_and_from_base() -> None:
    section: dict[str, Any] = {"rule": "linear", "reference": 50, "warmup": 4}
    zero, base = (LrScaling.model_validate({**section, "from": start}) for start in ("zero", "base"))
    assert [lr_after(zero, 1.0, 250, t) for t in range(6)] == pytest.approx([1.25, 2.5, 3.75, 5, 5, 5])
    assert [lr_after(base, 1.0, 250, t) for t in range(6)] == pytest.approx([2, 3, 4, 5, 5, 5])


def test_schedules_in_the_head() -> None:
    assert [factor(ExponentialDecay(decay=0.5), t) for t in range(3)] == [1, 0.5, 0.25]
    assert [factor(Step(factor=0.1, every=2), t) for t in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert [factor(Cosine(length=2), t) for t in range(4)] == pytest.approx([1, 0.5, 0, 0])
    assert factor(Cosine(length=2, final=0.2), 9) == pytest.approx(0.2)


def test_scaling_growth_and_decay_compose_and_are_reported(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(
        rounds=5,
        cohort={"size": 4, "growth": {"every": 2, "max": 10}},
        server={
            "optimizer": {"name": "sgd", "lr": 1.0},
            "lr_scaling": {"rule": "linear", "reference": 4},
            "lr_schedule": {"name": "exponential", "decay": 0.5},
        },
    )
    done = list(raysim.rounds(exp, dataset=dataset))
    assert [len(r.cohort) for r in done] == [4, 4, 8, 8, 10]
    assert [r.metrics["server_lr"] for r in done] == [1, 0.5, 2 * 0.25, 2 * 0.125, 2.5 * 0.0625]


def test_the_file_says_from_and_so_does_the_record(experiment: Make) -> None:
    import json

    exp = experiment(server={"lr_scaling": {"warmup": 3, "from": "base"}})
    assert json.loads(exp.to_json())["server"]["lr_scaling"]["from"] == "base"
    assert raysim.Experiment.model_validate(json.loads(exp.to_json())) == exp


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"lr_scaling": {"rule": "sqrt"}}, "reference, .* must be given with rule 'sqrt' or 'linear' and only there"),
        ({"lr_scaling": {"reference": 50}}, "only there, but got rule = 'none' and reference = 50"),
        ({"lr_scaling": {"form": "zero"}}, r"takes rule, reference, warmup, from \(did you mean 'from'\?\)"),
        ({"lr_scaling": {"from": "one"}}, "server.lr_scaling.from must be 'zero' or 'base', but got 'one'"),
        ({"lr_schedule": {"name": "exponential"}}, "server.lr_schedule.decay must be given"),
        (
            {"lr_schedule": {"name": "step", "factor": 2, "every": 1}},
            "server.lr_schedule.factor must be less than or equal",
        ),
    ],
)
def test_what_is_wrong_is_named(server: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(server=server)
