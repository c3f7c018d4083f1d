"""A server optimizer that a script passes is like any other: same numbers, records, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
import tuning
from raysim.report.groups import group_runs
from raysim.report.runs import read_all
from raysim.server import Descent, Own, ServerOptimizer, Stepped

Make = Callable[..., raysim.Experiment]


def momentum(section: Own) -> ServerOptimizer:
    """v <- b v + f g; x <- x - lr v: what server.optimizer.name = "momentum" does, with `b` as a constant."""
    b = section.constants.get("b", 0.9)
    assert isinstance(b, float)

    def init(params: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"v": torch.zeros_like(params)}

    def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
        v = descent.fed(state["v"], b, 1.0)
        return Stepped(torch.add(params, v, alpha=-descent.lr), {"v": v}, {"speed": float(v.norm())})

    return ServerOptimizer(init, step)


OWN = {"optimizer": {"name": "own", "label": "heavy ball", "lr": 0.5, "constants": {"b": 0.5}}}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ray)])
def test_it_has_the_numbers_of_the_same_equation_here(
    workers: int, request: pytest.FixtureRequest, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    engine = {"workers": workers, "cpus_per_worker": 0.5}
    if workers:
        request.getfixturevalue("ray_cluster")
    ours = {"optimizer": {"name": "momentum", "lr": 0.5, "beta1": 0.5}, "glad": {}}
    reference = list(raysim.rounds(experiment(server=ours), dataset=dataset))
    got = raysim.rounds(
        experiment(server={**OWN, "glad": {}}, engine=engine), dataset=dataset, server_optimizer=momentum
    )
    for expected, finished in zip(reference, got, strict=True):
        assert all(torch.equal(value, finished.params[name]) for name, value in expected.params.items())
        # What the step says of itself is on record.
        assert (finished.metrics["speed"] or 0.0) > 0


def test_a_run_goes_on_with_it_and_not_without(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    passed: dict[str, Any] = {"dataset": dataset, "server_optimizer": momentum}
    whole = raysim.run(experiment(server=OWN), path=tmp_path / "whole", **passed)
    raysim.run(experiment(server=OWN, rounds=2), path=tmp_path / "parts", **passed)
    with pytest.raises(raysim.ExperimentError, match="passes as server_optimizer=, but none was passed"):
        raysim.resume(tmp_path / "parts", dataset=dataset, rounds=4)
    parts = raysim.resume(tmp_path / "parts", rounds=4, **passed)
    assert all(torch.equal(value, parts.params[name]) for name, value in whole.params.items())
    again = raysim.replay(tmp_path / "parts", 3, **passed)
    assert isinstance(again, raysim.Round)
    assert all(torch.equal(value, again.params[name]) for name, value in whole.params.items())


def test_its_constants_can_be_swept_and_tell_its_runs_apart(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    values = {"server.optimizer.constants.b": [0.0, 0.5]}
    swept = raysim.run_sweep(
        experiment(server=OWN, trials=2), values, dataset=dataset, server_optimizer=momentum, path=tmp_path / "sweep"
    )
    still, moving = (point.rounds["loss"].to_pylist() for point in swept.points)
    assert still != moving
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "sgd")
    found, _ = read_all([tmp_path])
    groups, _ = group_runs(found)
    assert {group.label: len(group.runs) for group in groups} == {
        "server.optimizer = sgd": 1,
        "server.optimizer = heavy ball, server.optimizer.constants.b = 0": 2,
        "server.optimizer = heavy ball, server.optimizer.constants.b = 0.5": 2,
    }


def test_a_misspelled_constant_is_refused_where_it_would_vary_nothing(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    passed: Any = {"dataset": dataset, "server_optimizer": momentum}
    said = r"server.optimizer.constants has no 'bb' that could vary: it has b \(did you mean 'b'\?\)"
    with pytest.raises(raysim.ExperimentError, match=said):
        raysim.run_sweep(
            experiment(server=OWN), {"server.optimizer.constants.bb": [0, 1]}, path=tmp_path / "sweep", **passed
        )
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.tune(
            experiment(server=OWN),
            {"server.optimizer.constants.bb": {"grid": [0.5]}},
            path=tmp_path / "study",
            **passed,
        )


def test_a_study_finds_its_constants(dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path) -> None:
    study = tuning.tune(
        experiment(server=OWN),
        {"server.optimizer.lr": {"grid": [0.0, 1.0]}, "server.optimizer.constants.b": {"grid": [0.5]}},
        dataset=dataset,
        server_optimizer=momentum,
        path=tmp_path / "study",
    )
    assert study.best.values["server.optimizer.lr"] == 1.0


def test_section_and_argument_go_together(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"name must be 'own' or be left out, but got 'sgd'"):
        raysim.rounds(experiment(server={"optimizer": {"name": "sgd"}}), dataset=dataset, server_optimizer=momentum)
    with pytest.raises(raysim.ExperimentError, match=r"scaffold.* is defined with server.optimizer.name = 'sgd'"):
        experiment(server=OWN, client={"correction": {"name": "scaffold"}})


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            lambda params: Stepped(params.double(), {"v": params}),
            r"'params' came back as torch.float64 of shape",
        ),
        (lambda params: Stepped(params, {}), r"must return params, v, but left out \['v'\]"),
        (lambda params: Stepped(params, {"v": params[:2]}), r"'v' came back as torch.float32 of shape \(2,\)"),
        (lambda params: Stepped(params, {"v": params, "w": params}), r"'w' came back as .* and was nothing"),
        (
            lambda params: params,
            r"step must return a raysim.server.Stepped\(params, state\) .*, but returned torch.float32",
        ),
    ],
)
def test_a_step_that_returns_something_else_is_refused_before_the_first_round(
    returned: Callable[[torch.Tensor], Any], said: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def maker(section: Own) -> ServerOptimizer:
        return ServerOptimizer(lambda params: {"v": params}, lambda params, descent, state: returned(params))

    with pytest.raises(raysim.ExperimentError, match=said):
        raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=maker)


def test_a_state_that_is_no_mapping_is_refused_before_the_first_round(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def maker(section: Own) -> ServerOptimizer:
        init: Any = lambda params: None  # noqa: E731
        return ServerOptimizer(init, lambda params, descent, state: Stepped(params, state))

    with pytest.raises(raysim.ExperimentError, match=r"init must return the state as a mapping .* but returned None"):
        raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=maker)


def fails_from(round_index: int) -> Callable[[Own], ServerOptimizer]:
    def maker(section: Own) -> ServerOptimizer:
        def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
            if descent.k > round_index:
                raise LookupError("my own mistake")
            return Stepped(params - descent.lr * descent.fg, {})

        return ServerOptimizer(lambda params: {}, step)

    return maker


def test_a_step_that_fails_says_the_keyword_the_round_and_the_line(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    # A step counts its rounds from 1, and the trial before the first round has none.
    with pytest.raises(raysim.ExperimentError, match=r"server_optimizer=: step, tried before the first round, failed"):
        raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=fails_from(-1))
    finished = raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=fails_from(2))
    said = r"server_optimizer=: step, in round 2, failed: LookupError\('my own mistake'\)\nTraceback"
    with pytest.raises(raysim.ExperimentError, match=said + r"(.|\n)*raise LookupError"):
        list(finished)

    def no_state(section: Own) -> ServerOptimizer:
        def init(params: torch.Tensor) -> dict[str, torch.Tensor]:
            raise LookupError("my own mistake")

        return fails_from(9)(section)._replace(init=init)

    with pytest.raises(raysim.ExperimentError, match=r"server_optimizer=: init failed: LookupError"):
        raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=no_state)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (lambda params, v: Stepped(params[:-1], {"v": v}), "'params' came back as torch.float32 of shape"),
        (lambda params, v: Stepped(params.double(), {"v": v}), "'params' came back as torch.float64 of shape"),
        (lambda params, v: Stepped(params, {"v": v.sum()}), r"'v' came back as torch.float32 of shape \(\)"),
        (lambda params, v: Stepped(params, {"w": v}), "left out ['v']"),
        (lambda params, v: (params, {"v": v}), "must return a raysim.server.Stepped"),
    ],
)
def test_a_step_that_returns_another_form_in_a_later_round_is_refused(
    late: Callable[..., Any], said: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def maker(section: Own) -> ServerOptimizer:
        def step(params: torch.Tensor, descent: Descent, state: Any) -> Any:
            new = params - descent.lr * descent.fg
            return late(new, state["v"]) if descent.k > 1 else Stepped(new, state)

        return ServerOptimizer(lambda params: {"v": torch.zeros_like(params)}, step)

    rounds = raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=maker)
    next(rounds)
    with pytest.raises(raysim.ExperimentError, match=said.replace("[", r"\[")):
        next(rounds)


def _in_place(written: str) -> Callable[[Own], ServerOptimizer]:
    def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
        {"params": params, "descent.g": descent.g, "v": state["v"]}[written].add_(0.0)
        return Stepped(params - descent.lr * descent.fg, {"v": state["v"] + 1})

    return lambda section: ServerOptimizer(lambda params: {"v": torch.zeros_like(params)}, step)


@pytest.mark.parametrize("written", ["params", "descent.g", "v"])
def test_a_step_that_writes_to_its_arguments_is_refused(
    written: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=rf"new tensors, but wrote in place to {written}: torch.add"):
        list(raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=_in_place(written)))


def test_a_step_that_keeps_something_outside_of_its_state_is_refused(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """A resume would begin it anew."""

    def forgetful(section: Own) -> ServerOptimizer:
        held: list[torch.Tensor] = []

        def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
            held[:] = [0.5 * held[0] + descent.fg if held else descent.fg]
            return Stepped(params - descent.lr * held[0], state)

        return ServerOptimizer(lambda params: {}, step)

    with pytest.raises(raysim.ExperimentError, match="step returned something else when it was called again"):
        next(raysim.rounds(experiment(server=OWN), dataset=dataset, server_optimizer=forgetful))
