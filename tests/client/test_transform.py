"""Transforms of a script: what is sent, what clients keep for it, and the same bits everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker.lockstep_rule import lockstep_key
from raysim.run_folder import checkpoint
from raysim.server import manifest
from tests.support.chosen_updates import SIZES, UPDATES, Array, moved, run
from tests.support.executors import DiesOnce, bits
from tests.support.interrupted import Stops, same_records
from tests.support.states_of import states_of

COUNT = itertools.count(1.0)
"""What a function has kept that is not a function of its arguments."""

Make = Callable[..., raysim.Experiment]
Apply = Callable[[raysim.TransformAt], Any]

P = SIZES / SIZES.sum()
SCAFFOLD: dict[str, Any] = {"optimizer": {"lr": 0.3}, "batch_size": 4, "correction": {"name": "scaffold"}}


def stateless(apply: Apply) -> Callable[[Any], raysim.Transform]:
    return lambda section: raysim.Transform(apply)


doubled = stateless(lambda at: at.delta * 2)


def shortened(at: raysim.TransformAt) -> Tensor:
    """To a norm of at most 1."""
    return at.delta / at.delta.norm().clamp(min=1.0)


def noise(section: Any) -> raysim.Transform:
    def apply(at: raysim.TransformAt) -> Tensor:
        draw = lambda name, tensor: tensor + 0.01 * torch.randn(tensor.shape, generator=at.generator)  # noqa: E731
        return at.layout.map(draw, at.delta)

    return raysim.Transform(apply)


def largest(section: Any) -> raysim.Transform:
    """The largest numbers are sent; what is not sent is added to the next update."""

    def apply(at: raysim.TransformAt) -> raysim.Transformed:
        whole = at.delta + at.state
        sent = whole * (whole.abs() >= whole.abs().topk(section.constants.get("k", 10)).values[-1])
        return raysim.Transformed(sent, whole - sent)

    return raysim.Transform(apply, keeps_state=True)


def params_equal(left: Any, right: Any) -> bool:
    return all(torch.equal(value, right.params[name]) for name, value in left.params.items())


def short(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(1.0, np.linalg.norm(vectors, axis=1, keepdims=True)))


def stored(folder: Path, client: int, num: int) -> tuple[Tensor, ...]:
    """The vectors that a client of the run keeps, by the newest checkpoint."""
    state = checkpoint.read(max((folder / "checkpoints").iterdir()))
    place = manifest.places(state.clients, [client])[client]
    like = torch.zeros(num * len(state.weights.params), dtype=state.weights.params.dtype)
    return states_of(folder).read(client, place, like).view(num, -1).unbind()


# What is sent


def test_the_mean_is_of_what_transforms_return(experiment: Make) -> None:
    got = moved(experiment, parts={"transform": stateless(shortened)})
    np.testing.assert_allclose(got, P @ short(UPDATES), rtol=1e-12)


def test_several_are_applied_in_their_order(experiment: Make) -> None:
    first = moved(experiment, parts={"transform": [stateless(shortened), doubled]})
    np.testing.assert_allclose(first, P @ (2 * short(UPDATES)), rtol=1e-12)
    second = moved(experiment, parts={"transform": [doubled, stateless(shortened)]})
    np.testing.assert_allclose(second, P @ short(2 * UPDATES), rtol=1e-12)


def test_each_gets_its_own_section(experiment: Make) -> None:
    def scaled(section: Any) -> raysim.Transform:
        return raysim.Transform(lambda at: at.delta * section.constants["by"] + 0.0)

    client = {
        "optimizer": {"name": "sgd", "lr": 1.0},
        "batch_size": "full",
        "transform": [{"name": "own", "constants": {"by": 3}}, {"name": "own", "constants": {"by": 5}}],
    }
    got = moved(experiment, client=client, parts={"transform": [scaled, scaled]})
    np.testing.assert_allclose(got, P @ (15 * UPDATES), rtol=1e-12)


def test_an_adversary_replaces_what_the_transform_returned(experiment: Make) -> None:
    flip = {"name": "sign_flip", "clients": ["c1"]}
    expected = 2 * UPDATES
    expected[1] *= -1
    np.testing.assert_allclose(moved(experiment, adversary=flip, parts={"transform": doubled}), P @ expected)


def test_the_server_clips_and_measures_what_was_sent(experiment: Make) -> None:
    norms = np.linalg.norm(UPDATES, axis=1)
    level = float(np.sort(2 * norms)[5:7].mean())
    (done,) = run(experiment, server={"clip": {"fixed": level}}, parts={"transform": doubled})
    assert done.metrics["clipped_fraction"] == pytest.approx(3 / 9)
    assert done.metrics["mean_update_norm"] == pytest.approx(2 * norms.mean())


@pytest.mark.parametrize("rule", [{"name": "krum", "f": 1}, {"name": "median"}], ids=["krum", "median"])
def test_a_rule_that_needs_every_update_sees_what_was_sent(rule: dict[str, Any], experiment: Make) -> None:
    server = {"aggregator": rule}
    plain = moved(experiment, server=server)
    assert np.abs(plain).max() > 0
    np.testing.assert_allclose(moved(experiment, server=server, parts={"transform": doubled}), 2 * plain, rtol=1e-12)


def test_what_a_transform_is_told(experiment: Make) -> None:
    told = []

    def apply(at: raysim.TransformAt) -> Tensor:
        told.append((at.round, at.client, at.num_examples, at.steps, at.lr, at.state.abs().sum().item()))
        return at.delta

    run(experiment, rounds=2, parts={"transform": stateless(apply)})
    expected = [(t, f"c{i}", int(SIZES[i]), 1, 1.0, 0.0) for t in range(2) for i in range(9)]
    assert sorted(each for each in told if each[1] != "probe") == expected


@pytest.mark.parametrize("trainer", ["one_by_one", "fused", "stacked", "vmap", "compiled"])
def test_a_transform_that_changes_nothing_changes_no_bit(
    trainer: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(engine={"workers": 0, "trainer": trainer})
    plain = raysim.rounds(exp, dataset=dataset)
    same = raysim.rounds(exp, dataset=dataset, transform=stateless(lambda at: at.delta))
    assert all(params_equal(one, other) for one, other in zip(plain, same, strict=True))


def test_an_update_that_a_transform_makes_infinite_is_rejected(experiment: Make) -> None:
    def apply(at: raysim.TransformAt) -> Tensor:
        return at.delta * (float("inf") if at.client == "c2" else 1.0)

    (done,) = run(experiment, parts={"transform": stateless(apply)})
    assert done.rejected == ("c2",)
    others = np.arange(9) != 2
    np.testing.assert_allclose(done.params["weight"].numpy()[0], SIZES[others] @ UPDATES[others] / SIZES[others].sum())


# What clients keep


def test_what_was_sent_and_what_is_left_make_the_updates(experiment: Make, tmp_path: Path) -> None:
    """Of one client that computes the same v in each of five rounds: the sum of what was sent + the rest = 5 v."""
    v = UPDATES[0]
    data = raysim.FederatedDataset.from_clients(train={"c0": (np.tile(-v, (2, 1)), np.zeros(2))})
    one = {"name": "own", "constants": {"k": 1}}
    exp = experiment(
        rounds=5,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full", "transform": [one]},
        cohort={"size": 1},
        engine={"workers": 0, "dtype": "float64"},
    )
    start = {"weight": np.zeros((1, 3))}
    result = raysim.run(
        exp,
        dataset=data,
        model=lambda: torch.nn.Linear(3, 1, bias=False),
        loss=lambda outputs, targets: outputs[:, 0],
        params=start,
        transform=largest,
        path=tmp_path / "run",
    )
    (left,) = stored(tmp_path / "run", 0, 1)
    sent = result.params["weight"].numpy()[0]
    assert np.abs(left.numpy()[:3]).max() > 0
    np.testing.assert_allclose(sent + left.numpy()[:3], 5 * v, rtol=1e-12)
    assert not left[3:].any()


def test_a_correction_s_vector_and_two_transforms_lie_beside_each_other(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    def counting(section: Any) -> raysim.Transform:
        def apply(at: raysim.TransformAt) -> raysim.Transformed:
            one = at.layout.vector({}, default=1.0, like=at.delta)
            return raysim.Transformed(at.delta * 0, at.state + one)

        return raysim.Transform(apply, keeps_state=True)

    cohort = {"sampler": {"name": "replay", "cohorts": [["c1", "c2"], ["c1", "c3"]]}}
    exp = experiment(rounds=2, client=SCAFFOLD, cohort=cohort, engine={"workers": 0, "chunk_size": 1})
    raysim.run(exp, dataset=dataset, transform=[largest, doubled, counting], path=tmp_path / "both")
    control, rest, count = stored(tmp_path / "both", 1, 3)
    assert count.unique().tolist() == [0.0, 2.0]
    # Nothing was sent, so the model stayed: the control variate is that of a server that does not move.
    still = exp.changed(["server.optimizer.lr=0.0"])
    raysim.run(still, dataset=dataset, path=tmp_path / "alone")
    (alone,) = stored(tmp_path / "alone", 1, 1)
    assert torch.equal(control, alone)
    assert rest.any()


def test_what_is_not_finite_leaves_what_its_client_keeps(experiment: Make) -> None:
    kept: dict[int, float] = {}

    def apply(at: raysim.TransformAt) -> raysim.Transformed:
        if at.client == "c2":
            kept[at.round] = at.state.max().item()
        state = at.state + at.layout.vector({}, default=1.0, like=at.delta)
        return raysim.Transformed(at.delta * (float("nan") if (at.client, at.round) == ("c2", 1) else 1.0), state)

    part = lambda section: raysim.Transform(apply, keeps_state=True)  # noqa: E731
    assert [each.rejected for each in run(experiment, rounds=3, parts={"transform": part})] == [(), ("c2",), ()]
    assert kept == {0: 0.0, 1: 1.0, 2: 1.0}


def test_a_probe_reads_what_clients_keep_and_writes_nothing(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plain = list(raysim.rounds(experiment(), dataset=dataset, transform=largest))
    every_two = experiment(server={"diagnostics": {"probe": 2}})
    probed = list(raysim.rounds(every_two, dataset=dataset, transform=largest))
    assert all(params_equal(one, other) for one, other in zip(plain, probed, strict=True))
    assert probed[2].metrics["probe/clients"] == len(dataset.train)


def test_clients_that_keep_a_state_are_not_drawn_twice_a_round(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(cohort={"size": 7, "sampler": {"name": "md"}}, server={"weighting": "uniform"})
    with pytest.raises(raysim.ExperimentError, match=r"client.transform.name = 'own' changes a client's state once a"):
        raysim.rounds(exp, dataset=dataset, transform=largest)
    assert next(iter(raysim.rounds(exp, dataset=dataset, transform=doubled))).metrics["clients"] == 7


@pytest.mark.parametrize(("part", "may"), [(doubled, True), (largest, False)], ids=["stateless", "stateful"])
def test_runs_whose_clients_keep_a_state_are_trained_apart(
    part: Any, may: bool, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    plan = resolve(experiment(engine={"workers": 0, "trainer": "stacked"}), dataset=dataset, transform=part)
    assert (lockstep_key(plan) is not None) == may


def test_runs_in_lockstep_have_the_numbers_of_each_alone(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exps = [
        experiment(client={"optimizer": {"name": "sgd", "lr": lr}, "batch_size": 4}, engine={"workers": 0})
        for lr in (0.1, 0.3)
    ]
    alone = [
        raysim.run(exp, dataset=dataset, transform=noise, path=tmp_path / f"alone {i}") for i, exp in enumerate(exps)
    ]
    with raysim.Runs(exps[0], executor="local", dataset=dataset, transform=noise) as runs:
        numbers = runs.start([(exp, tmp_path / f"run {i}") for i, exp in enumerate(exps)])
        params = {report.run: report.params for report in runs.reports() if report.finished}
    for number, whole in zip(numbers, alone, strict=True):
        got = params[number]
        assert got is not None
        assert all(torch.equal(got[name], value) for name, value in whole.params.items())


# The same bits


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("ray_cluster")
def test_the_same_bits_on_workers_one_of_which_is_killed(
    workers: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    alone = {"workers": 0, "chunk_size": 2, "trainer": "one_by_one"}
    here = raysim.rounds(experiment(client=SCAFFOLD, engine=alone), dataset=dataset, transform=[largest, noise])
    there = raysim.rounds(
        experiment(client=SCAFFOLD, engine={**alone, "workers": workers, "cpus_per_worker": 0.5}),
        dataset=dataset,
        transform=[largest, noise],
        loss=DiesOnce(tmp_path / "note", size=3),
    )
    got = list(there)
    assert [bits(each) for each in got] == [bits(each) for each in here]
    # An evaluation that the lost worker had besides is run again too.
    assert sum(each.metrics["retries"] or 0 for each in got) >= 1


def test_noise_is_addressed(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    first, again = (list(raysim.rounds(experiment(), dataset=dataset, transform=noise)) for _ in range(2))
    assert all(params_equal(one, other) for one, other in zip(first, again, strict=True))
    drawn = []

    def apply(at: raysim.TransformAt) -> Tensor:
        drawn.append(torch.rand(1, generator=at.generator).item())
        return at.delta

    list(raysim.rounds(experiment(), dataset=dataset, transform=[stateless(apply), stateless(apply)]))
    # Four draws before the first round, from the same address; then one for each of 7 clients, 4 rounds, 2 transforms.
    assert len(set(drawn[4:])) == 7 * 4 * 2


@pytest.mark.parametrize("after", [40, 90])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    after: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = experiment(rounds=8, checkpoint={"every": 3}, client=SCAFFOLD, engine={"workers": 0, "trainer": "one_by_one"})
    parts: dict[str, Any] = {"dataset": dataset, "transform": [largest, noise]}
    # Files say whose they are: a run with a loss that was passed is another than one without.
    whole = raysim.run(exp, path=tmp_path / "whole", loss=Stops(10**9), **parts)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(exp, path=tmp_path / "cut", loss=Stops(after), **parts)
    same_records(raysim.resume(tmp_path / "cut", executor="local", **parts), whole)
    named = manifest.files(checkpoint.read(max((tmp_path / "whole" / "checkpoints").iterdir())).clients)
    for t, chunk in named:
        name = f"client_state/round-{t:06d}-chunk-{chunk:05d}.npy"
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_client_s_update_is_replayed_as_it_was_sent(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    sent: dict[tuple[int, str], Tensor] = {}

    def recorded(section: Any) -> raysim.Transform:
        def apply(at: raysim.TransformAt) -> Tensor:
            sent[at.round, at.client] = at.delta.clone()
            return at.delta

        return raysim.Transform(apply)

    parts: dict[str, Any] = {"dataset": dataset, "transform": [largest, noise, recorded]}
    exp = experiment(client=SCAFFOLD, checkpoint={"every": 1, "keep": 9})
    raysim.run(exp, path=tmp_path / "run", **parts)
    expected = dict(sent)
    client = next(client for t, client in expected if t == 3)
    again = raysim.replay(tmp_path / "run", 3, client=client, **parts)
    assert isinstance(again, raysim.ClientUpdate)
    assert again.update is not None
    flat = torch.cat([value.flatten() for value in again.update.values()])
    assert flat.any()
    assert torch.equal(flat[flat != 0], expected[3, client][expected[3, client] != 0])


# Bad input


def written_to(at: raysim.TransformAt) -> Tensor:
    return at.delta.mul_(2)


def raising(at: raysim.TransformAt) -> Tensor:
    raise KeyError("my own mistake")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda section: None, r"that returns a raysim.Transform, .*, but returned None"),
        (stateless(lambda at: at.delta[:-1]), r"transform=: a transform's delta must be torch.float32 of shape"),
        (stateless(lambda at: at.delta.double()), r"must be torch.float32 .* but is torch.float64"),
        (stateless(lambda at: at.delta.to_sparse()), r"delta must be a dense tensor, but is torch.sparse_coo"),
        (stateless(lambda at: 1.0), r"transform=: a transform's delta must be a tensor, but is 1.0"),
        (stateless(lambda at: at.delta + 1), r"transform=: apply must leave zeros between .* layout.map"),
        (stateless(lambda at: at.delta * next(COUNT)), r"transform=: apply returned something else .* again"),
        (stateless(written_to), r"transform=: apply must not write to its arguments, but wrote to delta"),
        (stateless(raising), r"transform=: apply raised KeyError \(test_transform\.py, line \d+\): 'my own mistake'"),
        (
            stateless(lambda at: raysim.Transformed(at.delta, at.state)),
            r"with keeps_state = False must return a tensor, but returned a Transformed\.$",
        ),
        (
            lambda section: raysim.Transform(lambda at: at.delta, keeps_state=True),
            r"with keeps_state = True must return a raysim.Transformed",
        ),
        (
            lambda section: raysim.Transform(lambda at: raysim.Transformed(at.delta, at.state[:3]), keeps_state=True),
            r"a transform's state must be",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_the_first_round(
    part: Any, message: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(experiment(), dataset=dataset, transform=part)


def test_as_many_are_passed_as_the_experiment_says(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(client={"transform": [{"name": "own"}, {"name": "own"}]})
    with pytest.raises(raysim.ExperimentError, match=r"client.transform has 2 of name = 'own'.*but 1 were passed"):
        raysim.rounds(exp, dataset=dataset, transform=doubled)


def test_what_fails_later_names_client_and_round(experiment: Make) -> None:
    def apply(at: raysim.TransformAt) -> Tensor:
        if (at.client, at.round) == ("c5", 1):
            raise KeyError("my own mistake")
        return at.delta

    with pytest.raises(raysim.ClientError, match=r"'c5' failed in round 1.*my own mistake"):
        run(experiment, rounds=2, parts={"transform": stateless(apply)})


def test_a_transform_that_draws_from_a_global_generator_is_refused(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def make(section: raysim.OwnPart) -> raysim.Transform:
        return raysim.Transform(lambda at: at.delta * torch.rand(()))

    with pytest.raises(raysim.ExperimentError, match=r"transform=.* drew from a global generator .* at.generator"):
        raysim.rounds(experiment(), dataset=dataset, transform=make)
