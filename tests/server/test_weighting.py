"""A weighting of a script: its mean in NumPy, what it is told, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.config import part
from tests.support.chosen_updates import SIZES, UPDATES, Make
from tests.support.executors import bits

COUNT = itertools.count(1.0)
"""What a function has kept that is not a function of its arguments."""

LOSSES = np.array([1.0, 4.0, 0.25, 9.0, 16.0, 2.0, 1.0, 3.0, 0.5])


def network() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The gradient is x, and where the weights are 0 the loss is the target."""
    return outputs[:, 0] + targets


def run(make: Make, weighting: Any, **sections: Any) -> list[Any]:
    """Client i has SIZES[i] examples, loss LOSSES[i] and the update UPDATES[i]."""
    clients = {
        f"c{i}": (np.tile(-v, (n, 1)), np.full(n, LOSSES[i]))
        for i, (v, n) in enumerate(zip(UPDATES, SIZES, strict=True))
    }
    base: dict[str, Any] = {
        "rounds": 1,
        "model": None,
        "client": {"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
        "cohort": {"size": 9},
        "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2},
    }
    data = raysim.FederatedDataset.from_clients(train=clients)
    start = {"weight": np.zeros((1, 3))}
    exp = make(**{**base, **sections})
    return list(raysim.rounds(exp, dataset=data, model=network, loss=losses, params=start, weighting=weighting))


def weights(finished: list[Any]) -> Any:
    return finished[-1].params["weight"].numpy()[0]


def q_fair(facts: raysim.ClientFacts) -> float:
    return facts.loss ** float(facts.constants.get("q", 2.0))


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("said", [{}, {"constants": {}}], ids=["unsaid", "said"])
def test_q_fair_weights_are_the_losses_to_the_power_of_q(q: float, said: dict[str, Any], experiment: Make) -> None:
    p = LOSSES**q / (LOSSES**q).sum()
    if said:
        said = {"server": {"weighting": {"name": "own", "constants": {"q": q}}}}
        got = run(experiment, q_fair, **said)
    else:
        got = run(experiment, lambda facts: facts.loss**q)
    np.testing.assert_allclose(weights(got), p @ UPDATES, rtol=1e-12)


def test_it_is_told_what_is_known_of_each_client(experiment: Make) -> None:
    told: dict[str, raysim.ClientFacts] = {}

    def weigh(facts: raysim.ClientFacts) -> float:
        told[facts.client] = facts
        return facts.examples

    client = {"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full", "local_steps": 1}
    clip = {"clip": {"fixed": 0.5}}
    own, built_in = (run(experiment, each, client=client, server=clip) for each in (weigh, None))
    assert torch.equal(own[0].params["weight"], built_in[0].params["weight"])
    for i, (n, loss, update) in enumerate(zip(SIZES, LOSSES, UPDATES, strict=True)):
        facts = told[f"c{i}"]
        assert (facts.client, facts.examples, facts.steps) == (f"c{i}", n, 1)
        assert facts.norm == pytest.approx(np.linalg.norm(update))
        assert facts.loss == pytest.approx(loss)


def test_rules_that_weigh_take_its_weights(experiment: Make) -> None:
    rule = {"aggregator": {"name": "geometric_median", "iterations": 0}}
    got = run(experiment, lambda facts: facts.loss, server=rule)
    np.testing.assert_allclose(weights(got), LOSSES @ UPDATES / LOSSES.sum(), rtol=1e-9)


@pytest.mark.parametrize("server", [{}, {"aggregator": {"name": "geometric_median"}}], ids=["mean", "rule"])
@pytest.mark.parametrize(
    ("each", "do"), [(5e-324, "larger"), (1e-300, "larger"), (1e300, "smaller"), (1e308, "smaller")]
)
def test_weights_of_which_no_mean_can_be_computed_are_named(
    each: float, do: str, server: dict[str, Any], experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=rf"sum of the clients' weights is .*Only .* return {do} numbers"):
        run(experiment, lambda facts: each, server=server)


def test_a_weight_that_is_next_to_nothing_counts_as_nothing(experiment: Make) -> None:
    first = [
        run(experiment, lambda facts, least=least: 1.0 if facts.client == "c0" else least) for least in (0, 1e-300)
    ]
    np.testing.assert_array_equal(weights(first[0]), weights(first[1]))
    np.testing.assert_allclose(weights(first[0]), UPDATES[0], rtol=1e-15)


@pytest.mark.parametrize("server", [{}, {"aggregator": {"name": "geometric_median"}}], ids=["mean", "rule"])
def test_a_round_in_which_all_weigh_nothing_leaves_the_model(
    server: dict[str, Any], experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (done,) = run(experiment, lambda facts: 0, server=server)
    assert done.params["weight"].tolist() == [[0, 0, 0]]
    assert done.metrics["clients"] == 0
    assert "round 0: every client weighs 0, so the model is left as it is" in caplog.text


def test_its_constants_are_swept(dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path) -> None:
    exp = experiment(server={"weighting": {"name": "own", "label": "q-fair", "constants": {"q": 0.0}}})
    swept = raysim.run_sweep(
        exp, {"server.weighting.constants.q": [0.0, 3.0]}, dataset=dataset, weighting=q_fair, path=tmp_path / "sweep"
    )
    uniform = raysim.run(experiment(server={"weighting": "uniform"}), dataset=dataset, path=tmp_path / "uniform")
    alike, fair = (point.rounds["loss"].to_pylist() for point in swept.points)
    assert alike == uniform.rounds["loss"].to_pylist()
    assert fair != alike


def test_a_run_goes_on_with_it_and_not_without(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"dataset": dataset, "weighting": q_fair}
    whole = raysim.run(experiment(server={"weighting": "own"}), path=tmp_path / "whole", **parts)
    raysim.run(experiment(server={"weighting": "own"}, rounds=2), path=tmp_path / "part", **parts)
    with pytest.raises(raysim.ExperimentError, match="passes as weighting=, but none was passed"):
        raysim.resume(tmp_path / "part", dataset=dataset, rounds=4)
    part = raysim.resume(tmp_path / "part", rounds=4, **parts)
    assert all(torch.equal(value, part.params[name]) for name, value in whole.params.items())


class ByPower(raysim.Section):
    """A weighting of a package."""

    name: Literal["by_power"] = "by_power"
    q: float = 2.0


def test_a_package_s_weighting_is_a_choice_like_others(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = raysim.Part("weighting", "by_power", ByPower, lambda section: lambda facts: facts.loss**section.q)
    monkeypatch.setattr(part, "load_installed", lambda: ((part.Installed(made, "theirs"),), ()))
    for weighting, q in (("by_power", 2), ({"name": "by_power", "q": 0.5}, 0.5)):
        got = run(experiment, None, server={"weighting": weighting})
        np.testing.assert_allclose(weights(got), LOSSES**q @ UPDATES / (LOSSES**q).sum(), rtol=1e-12)


def only_at(client: str, given: Any) -> Any:
    """Wrong for one client; what is tried before the first round is the first client."""
    return lambda facts: given(facts) if facts.client == client else 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda facts: -1.0, r"must return a finite number >= 0, but returned -1.0"),
        (lambda facts: math.nan, r"but returned nan"),
        (lambda facts: math.inf, r"but returned inf"),
        (lambda facts: "1", r"but returned '1'"),
        (lambda facts: {}[facts.client], r"KeyError\('c5'\)\nTraceback"),
    ],
)
def test_a_wrong_weight_names_client_and_round(given: Any, message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ClientError, match=rf"client 'c5' failed in round 0, chunk \d, on(.|\n)*{message}"):
        run(experiment, only_at("c5", given))


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        (
            lambda: 1.0,
            r"^weighting= is called with one argument, a client's facts, which does not fit: .*takes 0 ",
        ),
        (lambda facts: len(facts.loss), r"failed: TypeError.*\nTraceback"),
        (lambda facts: None, r"must return a finite number >= 0, but returned None"),
        (lambda facts: facts.losses, r"AttributeError.*'losses'"),
        (lambda facts: next(COUNT), r"weighting= returned something else when it was called again"),
        (3.0, r"weighting= must be a function of a client's facts, but got 3.0"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_round(weighting: Any, message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        run(experiment, weighting)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"server": {"aggregator": {"name": "median"}}}, "median ignores weights, but got server.weighting = 'own'"),
        (
            {"cohort": {"size": 3, "sampler": {"name": "md"}}},
            "md sampler is defined with uniform weights, but got server.weighting = 'own'",
        ),
        (
            {"client": {"correction": {"name": "feddyn", "mu": 0.1}}},
            "'feddyn' is defined with server.weighting = 'uniform', but got 'own'",
        ),
        (
            {"client": {"correction": {"name": "mime"}}, "server": {"weighting": "uniform"}},
            "must be 'own' or be left out, but got 'uniform'",
        ),
        (
            {"cohort": {"size": 3, "sampler": {"name": "md"}}, "server": {"weighting": "own"}},
            "md sampler is defined with uniform weights, but got server.weighting = 'own'",
        ),
        (
            {"client": {"correction": {"name": "mime"}}, "server": {"weighting": "own"}},
            "'mime' is defined with server.weighting 'uniform' or 'examples', but got 'own'",
        ),
        ({"server": {"weighting": "ida"}}, "must be 'own' or be left out, but got 'ida'"),
    ],
)
def test_what_is_not_defined_together_is_refused(
    sections: dict[str, Any], message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(experiment(**sections), dataset=dataset, weighting=q_fair)


def test_weights_by_definition_are_a_default_that_is_not_said(experiment: Make) -> None:
    md = experiment(cohort={"size": 3, "sampler": {"name": "md"}})
    assert (md.server.weighting, "weighting" in md.said().get("server", {})) == ("uniform", False)
    assert json.loads(md.to_json())["server"]["weighting"] == "uniform"
    assert md.changed({"cohort.sampler.name": "uniform"}).server.weighting == "examples"
    said = experiment(cohort={"size": 3, "sampler": {"name": "md"}}, server={"weighting": "uniform"})
    assert said == md
    assert said.changed({"cohort.sampler.name": "uniform"}).server.weighting == "uniform"


def test_a_correction_that_allows_any_weights_takes_a_script_s(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(client={"correction": {"name": "prox", "mu": 0.1}})
    plain, own = (list(raysim.rounds(exp, dataset=dataset, weighting=each)) for each in (None, q_fair))
    assert bits(plain[-1]) != bits(own[-1])


def test_a_pass_over_gradients_has_no_loss_to_weigh_by(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def two_passes(section: Any) -> raysim.Correction:
        return raysim.Correction(exchange=raysim.Exchange(full_gradients=True))

    with pytest.raises(raysim.ExperimentError, match="the pass over full gradients comes before that"):
        raysim.rounds(experiment(), dataset=dataset, correction=two_passes, weighting=q_fair)


def test_corrections_that_allow_any_weights_take_it(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    exp = experiment(client={"correction": {"name": "prox", "mu": 0.1}})
    assert list(raysim.rounds(exp, dataset=dataset, weighting=q_fair))
