"""Runs with compression: what enters the mean, what clients keep, what is billed, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.run_folder import checkpoint
from raysim.server import manifest
from tests.support.chosen_updates import SIZES, UPDATES, Array, moved, run
from tests.support.executors import DiesOnce, bits
from tests.support.interrupted import Stops, same_records
from tests.support.states_of import states_of

Make = Callable[..., raysim.Experiment]

P = SIZES / SIZES.sum()
SIGN: dict[str, Any] = {"name": "sign"}


def sending(**compression: Any) -> dict[str, Any]:
    return {"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full", "compression": compression}


def signs(vectors: Array) -> Array:
    return np.asarray(np.abs(vectors).mean(-1, keepdims=True) * np.where(vectors < 0, -1, 1))


def short(vectors: Array, level: float) -> Array:
    return np.asarray(vectors * np.minimum(1, level / np.linalg.norm(vectors, axis=1, keepdims=True)))


# What is sent


def test_attacked_and_clipped_updates_are_compressed(experiment: Make) -> None:
    flip = {"name": "sign_flip", "clients": ["c1"]}
    updates = UPDATES.copy()
    updates[1] *= -1
    server = {"clip": {"fixed": 2.0}}
    got = moved(experiment, client=sending(**SIGN), server=server, adversary=flip)
    np.testing.assert_allclose(got, P @ signs(short(updates, 2.0)), rtol=1e-12)


def test_fednova_s_division_comes_before_compression(experiment: Make) -> None:
    # A client's second epoch doubles its update and its a_i.
    client = {**sending(**SIGN, error_feedback=True), "epochs": 2}
    first, second = run(experiment, rounds=2, client=client, server={"aggregator": {"name": "fednova"}})
    rest = UPDATES - signs(UPDATES)
    np.testing.assert_allclose(first.params["weight"].numpy()[0], 2 * P @ signs(UPDATES), rtol=1e-12)
    step = second.params["weight"].numpy()[0] - first.params["weight"].numpy()[0]
    np.testing.assert_allclose(step, 2 * P @ signs(UPDATES + rest), rtol=1e-12)


def test_a_rule_that_needs_every_update_sees_what_was_sent(experiment: Make) -> None:
    got = moved(experiment, client=sending(**SIGN), server={"aggregator": {"name": "median"}})
    np.testing.assert_allclose(got, np.median(signs(UPDATES), axis=0), rtol=1e-12)


def test_the_figures_are_those_of_what_was_sent(experiment: Make) -> None:
    first, second = run(experiment, rounds=2, client=sending(**SIGN, error_feedback=True))
    rest = UPDATES - signs(UPDATES)
    for done, whole in ((first, UPDATES), (second, UPDATES + rest)):
        lost = whole - signs(whole)
        assert done.metrics["compression_error"] == pytest.approx((lost**2).sum() / (whole**2).sum(), rel=1e-12)
        assert done.metrics["residual_norm"] == pytest.approx(np.linalg.norm(lost, axis=1).mean(), rel=1e-12)
        # What clients computed, and the agreement of what they sent.
        assert done.metrics["mean_update_norm"] == pytest.approx(np.linalg.norm(UPDATES, axis=1).mean())
        sent = signs(whole)
        mean = P @ sent
        assert done.metrics["gsi"] == pytest.approx((P @ (sent**2).sum(1) / (mean @ mean)) ** 0.5)


def test_without_a_rest_there_is_no_figure_of_it(experiment: Make) -> None:
    (done,) = run(experiment, client=sending(**SIGN))
    assert "residual_norm" not in done.metrics


COMPRESSORS = [
    {"name": "quantise", "levels": 1},
    {"name": "quantise", "levels": 2, "norm": "max", "rotate": True},
    {"name": "sign"},
    {"name": "top_k", "fraction": 0.3},
    {"name": "random_k", "fraction": 0.3},
    {"name": "eden", "bits": 1},
]


@pytest.mark.parametrize("compression", COMPRESSORS, ids=lambda each: each["name"])
def test_what_was_sent_and_what_is_left_make_the_updates(
    compression: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    """Of one client that computes the same v in each of five rounds: the sum of what was sent + the rest = 5 v."""
    v = UPDATES[0]
    data = raysim.FederatedDataset.from_clients(train={"c0": (np.tile(-v, (2, 1)), np.zeros(2))})
    exp = experiment(
        rounds=5,
        model=None,
        client=sending(**compression, error_feedback=True),
        cohort={"size": 1},
        engine={"workers": 0, "dtype": "float64"},
    )
    result = raysim.run(
        exp,
        dataset=data,
        model=lambda: torch.nn.Linear(3, 1, bias=False),
        loss=lambda outputs, targets: outputs[:, 0],
        params={"weight": np.zeros((1, 3))},
        path=tmp_path / "run",
    )
    state = checkpoint.read(max((tmp_path / "run" / "checkpoints").iterdir()))
    rest = states_of(tmp_path / "run").read(0, manifest.places(state.clients, [0])[0], state.weights.params).numpy()
    assert np.abs(rest[:3]).max() > 0
    np.testing.assert_allclose(result.params["weight"].numpy()[0] + rest[:3], 5 * v, rtol=1e-12)
    assert not rest[3:].any()
    assert result.rounds["residual_norm"][-1].as_py() == pytest.approx(np.linalg.norm(rest))


# The way down


def mean_loss(done: Any) -> float:
    return float(done.metrics["loss"])


@pytest.mark.parametrize("of", ["model", "change"])
def test_clients_start_at_the_compressed_model_and_the_server_steps_from_its_own(of: str, experiment: Make) -> None:
    # The loss of client i at w is -v_i . w, and each update is v_i wherever it starts.
    server = {"compression": {**SIGN, "of": of}}
    done = run(experiment, rounds=3, server=server)
    mean = P @ UPDATES
    x = xhat = np.zeros(3)
    for each in done:
        if of == "model":
            xhat = signs(x) if x.any() else x
        assert mean_loss(each) == pytest.approx(-mean @ xhat, rel=1e-9, abs=1e-12)
        x = x + mean
        np.testing.assert_allclose(each.params["weight"].numpy()[0], x, rtol=1e-12)
        if of == "change":
            xhat = xhat + signs(x - xhat)


def test_losses_before_training_are_of_the_compressed_model(experiment: Make) -> None:
    server = {"compression": SIGN, "fairness": {"name": "tilt", "t": 0.0}}
    _, second = run(experiment, rounds=2, server=server)
    assert second.metrics["start_loss"] == pytest.approx(mean_loss(second))


# What is billed


def test_bits_are_billed_and_take_their_time(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    """5-8-3: 75 numbers. SCAFFOLD's change is sent whole."""
    devices = {"time": {"name": "round_time", "seconds_per_example": 0.0, "overhead_s": 0.0}}
    client = {"optimizer": {"lr": 0.3}, "correction": {"name": "scaffold"}, "compression": SIGN}
    server = {"compression": {"name": "top_k", "fraction": 0.2}}
    (done, *_) = raysim.rounds(experiment(client=client, server=server, systems=devices), dataset=dataset)
    up, down = -(-(32 + 75) // 8) + 300, -(-15 * (32 + 7) // 8) + 300
    assert (done.metrics["bytes_up"], done.metrics["bytes_down"]) == (7 * up, 7 * down)
    assert done.metrics["simulated_time_s"] == pytest.approx(up / 0.25e6 + down / 0.75e6)


def test_a_transform_of_a_script_bills_its_bits(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    def half(section: Any) -> raysim.Transform:
        return raysim.Transform(lambda at: at.delta, bits=lambda layout: 16 * layout.num_values + 1)

    plain = lambda section: raysim.Transform(lambda at: at.delta)  # noqa: E731
    for parts, per_client in (([plain, half], 151), ([half, plain], 300)):
        (done, *_) = raysim.rounds(experiment(), dataset=dataset, transform=parts)
        assert done.metrics["bytes_up"] == 7 * per_client
    # A compressor comes after it.
    (done, *_) = raysim.rounds(experiment(client={"compression": SIGN}), dataset=dataset, transform=half)
    assert done.metrics["bytes_up"] == 7 * -(-(32 + 75) // 8)


# The same bits

KEEPING: dict[str, Any] = {
    "optimizer": {"lr": 0.3},
    "batch_size": 4,
    "correction": {"name": "scaffold"},
    "compression": {"name": "quantise", "levels": 3, "error_feedback": True},
}
CHANGE: dict[str, Any] = {"compression": {"name": "eden", "bits": 2, "of": "change"}}


def test_clients_and_rounds_have_draws_of_their_own(experiment: Make) -> None:
    # Each of nine equal clients sends one of its three numbers.
    client = sending(name="random_k", fraction=0.3)
    first, second = run(experiment, vectors=np.ones((9, 3)), rounds=2, client=client)
    sent = [np.asarray(done.params["weight"].numpy()[0]) for done in (first, second)]
    assert np.count_nonzero(sent[0]) > 1
    assert not np.allclose(sent[0], sent[1] - sent[0])


@pytest.mark.parametrize("trainer", ["one_by_one", "stacked", "compiled"])
def test_the_draws_do_not_depend_on_who_trains_together(
    trainer: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    client = {"optimizer": {"lr": 0.3}, "compression": {"name": "random_k", "fraction": 0.3}}
    alone = experiment(
        client=client, engine={"workers": 0, "trainer": "one_by_one", "chunk_size": 1, "dtype": "float64"}
    )
    together = alone.changed([f"engine.trainer={trainer}", "engine.chunk_size=4"])
    for one, other in zip(raysim.rounds(alone, dataset=dataset), raysim.rounds(together, dataset=dataset), strict=True):
        for name, value in one.params.items():
            np.testing.assert_allclose(value.numpy(), other.params[name].numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("ray_cluster")
def test_the_same_bits_on_workers_one_of_which_is_killed(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    alone = {"workers": 0, "chunk_size": 2, "trainer": "one_by_one"}
    here = raysim.rounds(experiment(client=KEEPING, server=CHANGE, engine=alone), dataset=dataset)
    there = raysim.rounds(
        experiment(client=KEEPING, server=CHANGE, engine={**alone, "workers": 2, "cpus_per_worker": 0.5}),
        dataset=dataset,
        loss=DiesOnce(tmp_path / "note", size=3),
    )
    assert [bits(each) for each in there] == [bits(each) for each in here]


def test_an_interrupted_run_goes_on_to_the_same_bits(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = experiment(
        rounds=8,
        checkpoint={"every": 3},
        client=KEEPING,
        server=CHANGE,
        engine={"workers": 0, "trainer": "one_by_one"},
    )
    whole = raysim.run(exp, path=tmp_path / "whole", dataset=dataset)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(exp, path=tmp_path / "cut", loss=Stops(60), dataset=dataset)
    same_records(raysim.resume(tmp_path / "cut", executor="local", dataset=dataset), whole)


# Bad input


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"server": {"weighting": "ida"}}, r"server.weighting = 'ida'"),
        ({"server": {"aggregator": {"name": "local_adaptivity"}}}, r"'local_adaptivity'"),
        ({"client": {"personalisation": {"name": "clusters", "count": 2}}}, r"'clusters' .* defined for one model"),
        ({"server": {"secure_sum": {}}}, r"server.secure_sum adds"),
    ],
    ids=["ida", "local_adaptivity", "clusters", "secure_sum"],
)
def test_what_does_not_go_with_compression(
    side: str, sections: dict[str, dict[str, Any]], message: str, experiment: Make
) -> None:
    tables: dict[str, dict[str, Any]] = {"client": {"optimizer": {"lr": 0.3}}, "server": {}}
    for name, table in sections.items():
        tables[name].update(table)
    experiment(**tables)
    tables[side]["compression"] = SIGN
    with pytest.raises(raysim.ExperimentError, match=message) as refused:
        experiment(**tables)
    assert f"{side}.compression" in str(refused.value)


def test_losses_of_a_model_that_nobody_received_are_refused(experiment: Make) -> None:
    server: dict[str, Any] = {"fairness": {"name": "tilt", "t": 1.0}}
    tables = {"composite": {"penalty": "l1", "strength": 0.1}, "server": server}
    experiment(**tables)
    server["compression"] = SIGN
    with pytest.raises(raysim.ExperimentError, match=r"server.compression and composite: clients make their model"):
        experiment(**tables)


def test_a_client_that_keeps_a_rest_is_not_drawn_twice_a_round(experiment: Make) -> None:
    sections = {"cohort": {"size": 7, "sampler": {"name": "md"}}, "server": {"weighting": "uniform"}}
    experiment(client=sending(**SIGN), **sections)
    with pytest.raises(raysim.ExperimentError, match=r"client.compression.error_feedback = true .* 'md'"):
        experiment(client=sending(**SIGN, error_feedback=True), **sections)


@pytest.mark.parametrize(("side", "key"), [("client", "of"), ("server", "error_feedback")])
def test_each_side_has_its_own_keys(side: str, key: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=rf"{side}.compression.{key}"):
        experiment(**{side: {"compression": {**SIGN, key: "model" if key == "of" else True}}})
