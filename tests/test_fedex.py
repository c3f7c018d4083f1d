"""FedEx: equal to a plain float64 loop over the specification, FedAvg where its configurations are equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Fake
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import raysim
from raysim.algorithm.fedex import add_config_errors
from raysim.client.section import ClientSection
from raysim.data import DatasetWriter, Field
from raysim.engine.plan.resolve import resolve
from raysim.errors import DataError, RaysimError
from raysim.experiment.fedex import MAY_DIFFER
from raysim.models.model import Weights
from raysim.run_folder import round_table
from raysim.server import fedex
from raysim.server.accumulator import Accumulator, Sizes
from tests.support.executors import EXECUTORS, bits
from tests.support.interrupted import Stops, same_records
from tests.support.small_data import make_clients
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, Params, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]
LR, DECAY, ETA = 0.05, 0.9, 0.7
CONFIGS: list[dict[str, Any]] = [
    {},
    {"optimizer.lr": 0.2, "epochs": 1},
    {"batch_size": 2, "correction": {"name": "prox", "mu": 0.5}, "lr_decay": 1.0},
    {"max_grad_norm": 0.3},
    {"optimizer.momentum": 0.6},
]
K = len(CONFIGS)
SEED = 4
"""Of draws in which every configuration occurs."""


class Training(NamedTuple):
    """What the configurations say, in their order."""

    lr: float = LR
    decay: float = DECAY
    epochs: int = 2
    batch: int = 3
    mu: float = 0.0
    clip: float = math.inf
    momentum: float = 0.0


OF_CONFIGS = [
    Training(),
    Training(lr=0.2, epochs=1),
    Training(batch=2, mu=0.5, decay=1.0),
    Training(clip=0.3),
    Training(momentum=0.6),
]
OWN = {name: (x[:2] + 0.1, y[:2]) for name, (x, y) in clients().items()} | {
    "2": (np.zeros((0, 3)), np.zeros(0)),
    "4": (clients()["4"][0][1:7], clients()["4"][1][2:8]),
}
"""Examples in the validation split: none of client 2, six of client 4."""


def federation() -> raysim.FederatedDataset:
    return raysim.FederatedDataset.from_clients(train=clients(), validation=OWN)


def made(experiment: Make, configs: list[dict[str, Any]] | None = CONFIGS, **sections: Any) -> raysim.Experiment:
    client = {"optimizer": {"name": "sgd", "lr": LR}, "lr_decay": DECAY, "batch_size": 3, "epochs": 2}
    return experiment(
        **{
            "rounds": ROUNDS,
            "model": None,
            "client": {**client, "shuffle": False},
            "cohort": {"sampler": {"name": "replay", "cohorts": COHORTS}},
            "server": {"optimizer": {"name": "sgd", "lr": ETA}},
            "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2, "trainer": "one_by_one"},
            **({} if configs is None else {"fedex": {"configs": configs}}),
            **sections,
        }
    )


def steps(exp: raysim.Experiment) -> list[Any]:
    return list(raysim.rounds(exp, dataset=federation(), model=network, params=start()))


def loss(p: Params, x: Array, y: Array) -> float:
    hidden = np.tanh(x @ p["0.weight"].T + p["0.bias"])
    return float(np.mean((hidden @ p["2.weight"][0] + p["2.bias"][0] - y) ** 2))


def trained(p: Params, x: Array, y: Array, t: int, how: Training) -> Params:
    local, moved = {name: value.copy() for name, value in p.items()}, {name: 0 * value for name, value in p.items()}
    for _ in range(how.epochs):
        for first in range(0, len(y), how.batch):
            step = gradient(local, x[first : first + how.batch], y[first : first + how.batch])
            step = {name: value + how.mu * (local[name] - p[name]) for name, value in step.items()}
            shrink = min(1.0, how.clip / math.sqrt(sum(float((value**2).sum()) for value in step.values())))
            moved = {name: how.momentum * value + shrink * step[name] for name, value in moved.items()}
            local = {name: value - how.lr * how.decay**t * moved[name] for name, value in local.items()}
    return local


def test_a_run_is_the_plain_loop(experiment: Make) -> None:
    data, x, k = clients(), start(), K
    theta, b, drawn = np.full(k, 1 / k), 0.0, set()
    for t, one in enumerate(steps(made(experiment, seed=SEED))):
        state = {"log_theta": torch.from_numpy(np.log(theta))}
        names = COHORTS[t]
        j = dict(zip(names, fedex.draw_configs(state, SEED, t, [int(name) for name in names]).tolist(), strict=True))
        drawn |= set(j.values())
        y = {name: trained(x, *data[name], t, OF_CONFIGS[j[name]]) for name in names}
        n = sum(len(data[name][1]) for name in names)
        x = {
            part: x[part] + ETA * sum(len(data[name][1]) / n * (y[name][part] - x[part]) for name in names)
            for part in x
        }
        e = {name: loss(y[name], *OWN[name]) for name in names if name != "2"}
        examples = sum(len(OWN[name][1]) for name in e)
        w = {name: len(OWN[name][1]) / examples for name in e}
        g, weights, errors = np.zeros(k), np.zeros(k), np.zeros(k)
        for name in e:
            g[j[name]] += w[name] * (e[name] - b) / theta[j[name]]
            weights[j[name]] += w[name]
            errors[j[name]] += w[name] * e[name]
        for name, wanted in (("theta", theta), ("weight", weights), ("error", errors)):
            np.testing.assert_allclose([one.metrics[f"fedex/{name}/{i}"] for i in range(k)], wanted, 1e-9, 1e-14)
        for part in x:
            np.testing.assert_allclose(one.params[part], x[part], 1e-9, 1e-12)
        theta = theta * np.exp(-math.sqrt(2 * math.log(k) / (t + 1)) * g)
        theta /= theta.sum()
        b = sum(w[name] * e[name] for name in e)
    assert drawn == set(range(k))


def test_with_equal_configurations_it_is_fedavg_bit_for_bit(experiment: Make) -> None:
    engine = {"workers": 0, "chunk_size": 1, "trainer": "one_by_one"}
    got, wanted = (steps(made(experiment, configs, engine=engine)) for configs in ([{}, {"epochs": 2}], None))
    for one, other in zip(got, wanted, strict=True):
        assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)


def test_the_error_is_that_of_an_evaluation(experiment: Make) -> None:
    """With one client and server rate 1 the next model is the client's."""
    data = make_clients([30])
    dataset = raysim.FederatedDataset.from_clients(train=data, validation=make_clients([17], seed=5))
    exp = experiment(
        rounds=4,
        fedex={"configs": [{"optimizer.lr": 0.001}, {"optimizer.lr": 1.0, "batch_size": 4}]},
        cohort={"size": 1},
        evaluation={"every": 1, "split": "validation"},
    )
    for one in raysim.rounds(exp, dataset=dataset):
        said: Any = one.metrics
        errors, weights = ([said[f"fedex/{of}/{j}"] for j in (0, 1)] for of in ("error", "weight"))
        assert sum(errors) == pytest.approx(1 - said["eval/validation/accuracy"], abs=1e-12)
        assert sorted(weights) == [0, 1]


def of_trainer(experiment: Make, dataset: raysim.FederatedDataset, name: str) -> list[Any]:
    configs = [*CONFIGS, {"optimizer": {"name": "adam", "lr": 0.01}}]
    exp = made(
        experiment,
        rounds=2,
        model={"name": "mlp", "hidden": [4]},
        cohort={"size": 8},
        engine={"workers": 0, "dtype": "float64", "chunk_size": 8, "trainer": name},
        fedex={"configs": configs, "split": "train"},
    )
    return list(raysim.rounds(exp, dataset=dataset))


@pytest.mark.parametrize("trainer", ["recorded", "fused", "stacked", "vmap", "compiled"])
def test_every_trainer_trains_a_client_by_its_own_configuration(
    trainer: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    each = (of_trainer(experiment, dataset, name) for name in (trainer, "one_by_one"))
    for one, other in zip(*each, strict=True):
        got, wanted = ({k: v for k, v in done.metrics.items() if "fedex" in k} for done in (one, other))
        assert got == pytest.approx(wanted)
        torch.testing.assert_close(one.weights.params, other.weights.params)


def test_configurations_are_drawn_by_theta_and_address() -> None:
    theta = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
    state = {"log_theta": theta.log()}
    everyone = np.arange(20_000)
    drawn = fedex.draw_configs(state, 1, 2, everyone)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(everyone), theta.numpy(), atol=0.02)
    assert (fedex.draw_configs(state, 1, 2, everyone[::-3]) == drawn[::-3]).all()
    others = fedex.draw_configs(state, 1, 3, everyone), fedex.draw_configs(state, 2, 2, everyone)
    assert all((drawn != other).mean() > 0.5 for other in others)


def test_theta_stays_positive_shares_far_from_one() -> None:
    """In log space no share is lost that a later round may need."""
    state = {"log_theta": torch.tensor([-2000.0, 0.0], dtype=torch.float64), "baseline": torch.tensor(0.5)}
    after, metrics = fedex.step(state, 0, torch.tensor([[0.0, 0.0], [4.0, 3.0]], dtype=torch.float64))
    assert [metrics[f"fedex/theta/{j}"] for j in (0, 1)] == [0.0, 1.0]
    np.testing.assert_allclose(after["log_theta"], [-2000 + math.sqrt(2 * math.log(2)) * 0.25, 0], rtol=1e-12)


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    sums = Accumulator(Sizes(1, groups=1, configs=2), torch.device("cpu"))
    sums.score(1, 4, 0.25, count=2)
    sums.score(1, 2, 1.0, count=1)
    assert sums.total().scored.tolist() == [[0.0, 0.0], [10.0, 4.0]]


def test_the_error_of_a_client_that_is_drawn_twice_is_added_twice() -> None:
    one, sums = torch.zeros(1), Accumulator(Sizes(1, groups=1, configs=2), torch.device("cpu"))
    sent = Fake(measures=False, repeats={7: 3}, weights=Weights(one, one, one))
    updates = Fake(delta=one[None], buffers=one[None], counters=one[None])
    trained = Fake(clients=Fake(positions=np.array([7])), updates=updates, finite=np.array([True]))
    states = Fake(context=Fake(own_error=lambda weights, position, is_finite: (4, 0.25)))
    outgoing: Any = Fake(sent=trained, trained=trained, broadcast=sent, states=states, training=Fake(number=1))
    add_config_errors(sums, outgoing)
    assert sums.total().scored.tolist() == [[0.0, 0.0], [12.0, 3.0]]


def test_a_round_with_nobody_leaves_theta(experiment: Make) -> None:
    nobody: dict[str, Any] = {"cohort": {"sampler": {"name": "bernoulli", "probability": 1e-9}}, "rounds": 2}
    for one in steps(made(experiment, **nobody)):
        assert one.metrics["clients"] == 0
        assert [one.metrics[f"fedex/theta/{j}"] for j in range(K)] == pytest.approx([1 / K] * K, rel=1e-12)
        assert [one.metrics[f"fedex/{of}/{j}"] for of in ("weight", "error") for j in range(K)] == [None] * 2 * K


def test_a_round_without_errors_leaves_theta_and_the_baseline(experiment: Make) -> None:
    cohorts = [*COHORTS[:2], ["2"], *COHORTS[2:4]]
    sampler: dict[str, Any] = {"cohort": {"sampler": {"name": "replay", "cohorts": cohorts}}, "rounds": 5}
    done = [one.metrics for one in steps(made(experiment, **sampler))]
    k = range(K)
    assert [done[2][f"fedex/{of}/{j}"] for of in ("weight", "error") for j in k] == [None] * 2 * K
    theta, weights, errors = (
        np.array([[m[f"fedex/{of}/{j}"] for j in k] for m in done], dtype=float) for of in ("theta", "weight", "error")
    )
    assert (theta[2] == theta[3]).all()
    g = (errors[3] - errors[1].sum() * weights[3]) / theta[3]
    wanted = theta[3] * np.exp(-math.sqrt(2 * math.log(K) / 4) * g)
    np.testing.assert_allclose(theta[4], wanted / wanted.sum(), rtol=1e-9)


def test_a_client_whose_own_labels_do_not_count_has_no_part_in_theta(experiment: Make, tmp_path: Path) -> None:
    """Its accuracy is not defined: one such client made theta, and so all that followed, no number."""
    rng, places = np.random.default_rng(0), 6
    x, y = Field((places,), "int64"), Field((places,), "int64", padding=0)
    with DatasetWriter(tmp_path / "texts", x=x, y=y, num_classes=6) as writer:
        for client in "abcd":
            for split, examples in (("train", 5), ("validation", 4)):
                tokens, labels = rng.integers(1, 6, size=(2, examples, places))
                is_left_out = client == "b" and split == "validation"
                writer.write(split, client, tokens, 0 * labels if is_left_out else labels)
    data = raysim.FederatedDataset.open(tmp_path / "texts")
    exp = experiment(
        rounds=3,
        cohort={"size": 4},
        client={"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 2},
        fedex={"configs": [{"batch_size": 1}, {"batch_size": 5}], "split": "validation"},
        model=None,
        data=None,
    )
    for finished in raysim.rounds(exp, dataset=data, model=lambda: torch.nn.Embedding(6, 6), executor="local"):
        figures = [finished.metrics[f"fedex/{of}/{j}"] for of in ("theta", "weight", "error") for j in (0, 1)]
        assert all(each is not None and math.isfinite(each) for each in figures)
        assert sum(figures[:2]) == pytest.approx(1)  # type: ignore[arg-type]
        assert sum(figures[2:4]) == pytest.approx(1)  # type: ignore[arg-type]


def test_a_configuration_that_diverges_in_regression_is_drawn_no_more(experiment: Make) -> None:
    configs = [{}, {"optimizer.lr": 1e6, "epochs": 50}]
    done = steps(made(experiment, configs, engine={"workers": 0}))
    first = next(round_index for round_index, one in enumerate(done) if set(one.rejected) - {"2"})
    assert first < len(done) - 1
    assert done[first].metrics["fedex/error/1"] is None
    assert done[first].metrics["fedex/weight/1"] > 0
    for one in done[first + 1 :]:
        assert not one.rejected
        assert (one.metrics["fedex/theta/0"], one.metrics["fedex/theta/1"]) == (1.0, 0.0)


def test_where_every_theta_would_be_0_it_stays() -> None:
    state = fedex.init(2)
    after, metrics = fedex.step(state, 0, torch.tensor([[3.0, math.inf], [1.0, math.inf]], dtype=torch.float64))
    assert after == state
    assert (metrics["fedex/weight/0"], metrics["fedex/error/0"]) == (0.75, None)


def test_a_configuration_that_diverges_in_classification_has_the_error_1(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    configs = [{"optimizer.lr": 0.1}, {"optimizer.lr": 1e6, "epochs": 80, "correction": {"name": "prox", "mu": 1.0}}]
    exp = experiment(rounds=6, fedex={"configs": configs, "split": "train"}, engine={"workers": 0}, evaluation={})
    done = list(raysim.rounds(exp, dataset=dataset))
    assert any(one.rejected for one in done)
    for one in done:
        assert one.metrics["fedex/error/1"] == pytest.approx(one.metrics["fedex/weight/1"])
    assert (done[-1].metrics["fedex/theta/1"] or 0) < 0.5


class Overflowing(torch.nn.Linear):
    """A local step makes its buffer infinite, and leaves its parameters finite."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.get_buffer("largest").fill_(torch.inf)
        return super().forward(x.flatten(1)[:, :3])


def test_a_model_with_a_buffer_that_became_infinite_has_the_error_1(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    configs: list[dict[str, Any]] = [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}]
    exp = experiment(rounds=1, model=None, fedex={"configs": configs, "split": "train"}, evaluation={})
    (done,) = raysim.rounds(exp, dataset=dataset, model=Overflowing)
    assert done.metrics["rejected"] == 7
    for config in range(2):
        assert done.metrics[f"fedex/error/{config}"] == pytest.approx(done.metrics[f"fedex/weight/{config}"])


def test_costs_are_those_of_each_clients_own_work(experiment: Make) -> None:
    plan = resolve(made(experiment), dataset=federation(), model=network, params=start())
    everyone, sizes = np.arange(5), np.array([3, 8, 5, 2, 11])
    state = {"log_theta": torch.tensor([0.1, 0.5, 0.4, 0.0, 0.0], dtype=torch.float64).log()}
    drawn = fedex.draw_configs(state, 0, 1, everyone)
    assert len(set(drawn.tolist())) > 1
    epochs, batch = np.array([2, 1, 2])[drawn], np.array([3, 3, 2])[drawn]
    work = plan.work(everyone, 1, state)
    assert work.steps.tolist() == (epochs * -(-sizes // batch)).tolist()
    assert work.examples.tolist() == (epochs * sizes).tolist()


def test_theta_goes_through_a_checkpoint(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    exp = experiment(
        rounds=4,
        fedex={"configs": [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.5}], "split": "train"},
        checkpoint={"every": 1},
        engine={"workers": 0, "trainer": "one_by_one"},
    )
    whole = raysim.run(exp, path=tmp_path / "whole", dataset=dataset)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(exp, path=tmp_path / "broken", dataset=dataset, loss=Stops(150))
    assert 1 < round_table.read_rounds(tmp_path / "broken").num_rows < 4
    resumed = raysim.run(exp, path=tmp_path / "broken", dataset=dataset, resume=True)
    same_records(resumed, whole)


def test_workers_do_not_change_bits(experiment: Make, dataset: raysim.FederatedDataset, ray_cluster: Any) -> None:
    def run(engine: dict[str, Any]) -> list[Any]:
        configs = [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.5, "epochs": 2}]
        exp = experiment(rounds=3, fedex={"configs": configs, "split": "train"}, engine={**engine, "chunk_size": 2})
        return [bits(one) for one in raysim.rounds(exp, dataset=dataset)]

    assert run(EXECUTORS["in-process"]) == run(EXECUTORS["2 workers"])


def test_a_scripts_own_optimizer_has_other_constants(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    def make(section: Any) -> raysim.ClientOptimizer:
        factor = section.constants["factor"]

        def step(params: Any, gradient: Any, state: Any, lr: Any) -> None:
            params.sub_(factor * lr * gradient)

        return raysim.ClientOptimizer(init=lambda params: {}, step=step)

    def run(configs: list[dict[str, Any]], **parts: Any) -> list[Any]:
        client = {"optimizer": {"name": "own", "lr": 0.1, "constants": {"factor": 1.0}}} if parts else {}
        exp = experiment(rounds=2, client=client, fedex={"configs": configs, "split": "train"})
        return [one.metrics["loss"] for one in raysim.rounds(exp, dataset=dataset, **parts)]

    key = "optimizer.constants.factor"
    own = run([{key: 1.0}, {key: 3.0}], client_optimizer=make)
    assert own == pytest.approx(run([{"optimizer.lr": 0.1}, {"optimizer.lr": 0.1 * 3}]), rel=1e-5)
    # A configuration that changes another key has the script's part, too.
    assert run([{}, {"epochs": 2}], client_optimizer=make) == pytest.approx(run([{}, {"epochs": 2}]), rel=1e-5)


TWO = {"configs": [{}, {"optimizer.lr": 0.3}]}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"fedex": {"configs": []}}, "fedex.configs"),
        ({"fedex": {"configs": [{}, {"": 1}]}}, "must be a text of at least 1 character"),
        ({"fedex": {"configs": [{}, {"optimizer.name": "own"}]}}, r"client\.optimizer\.name must be 'own', too"),
        ({"fedex": {"configs": [{}, {"correction.name": "own"}]}}, r"client\.correction\.name must be 'own', too"),
        ({"fedex": {"configs": [{"epochs": 2}]}}, "fedex.configs"),
        ({"fedex": {}}, "fedex.configs must be given"),
        ({"fedex": {"configs": [{}, {"optimizer.rate": 1.0}]}}, r"fedex.configs\[1\].*client.optimizer.rate"),
        ({"fedex": {"configs": [{"optimizer.lr": -1.0}, {}]}}, r"fedex.configs\[0\]: client.optimizer.lr"),
        ({"fedex": {"configs": [{}, {"epochs": 2, "local_steps": 3}]}}, r"fedex.configs\[1\].*epochs or local_steps"),
        ({"fedex": {"configs": [{}, {"optimizer.lr.x": 3}]}}, r"fedex.configs\[1\].*goes through"),
        ({"fedex": {"configs": [{}, {"client.epochs": 3}]}}, r"fedex.configs\[1\].*client.client"),
        ({"fedex": {**TWO, "steps": 3}}, "fedex.steps"),
        ({"fedex": {"configs": [{}, {"mid_round_dropout": 0.1}]}}, "changes client.mid_round_dropout, which all"),
        ({"fedex": {"configs": [{}, {"compression": {"name": "sign"}}]}}, "changes client.compression, which all"),
        ({"fedex": {"configs": [{}, {"correction": {"name": "scaffold"}}]}}, r"configs\[1\].*'prox'.*'scaffold'"),
        (
            {"fedex": TWO, "client": {"correction": {"name": "mime", "base": "momentum"}}},
            r"(?s)^(?!.*s\[1\]).*'prox'.*'mime'",
        ),
        ({"fedex": TWO, "client": {"posterior": {}}}, "without client.posterior"),
        ({"fedex": TWO, "composite": {"penalty": "l1", "strength": 0.1}}, "without composite"),
        ({"fedex": TWO, "client": {"personalisation": {"name": "ditto", "lam": 1.0}}}, "client.personalisation"),
        (
            {"fedex": TWO, "server": {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "clip": {"fixed": 1}}},
            "fedex is defined without server.privacy",
        ),
        ({"fedex": TWO, "server": {"fairness": {"name": "qffl", "q": 1.0}}}, "without server.fairness.name = 'qffl'"),
        (
            {"fedex": {"configs": [{}, {"optimizer.name": "adam"}]}, "server": {"aggregator": {"name": "fednova"}}},
            r"fedex.configs\[1\]: server.aggregator.name = 'fednova'.*'adam'",
        ),
        (
            {
                "fedex": {"configs": [{}, {"optimizer.name": "adagrad"}]},
                "server": {"aggregator": {"name": "local_adaptivity"}},
            },
            "same client.optimizer.name, but got 'adagrad' and 'sgd'",
        ),
    ],
)
def test_what_is_not_defined_is_refused(sections: dict[str, Any], why: str, experiment: Make) -> None:
    with pytest.raises(RaysimError, match=why):
        experiment(**sections)


def test_every_other_key_is_shared(experiment: Make) -> None:
    """A new key of [client] is shared, unless somebody has decided that configurations may differ in it."""
    shared = set(ClientSection.model_fields) - set(MAY_DIFFER)
    assert shared >= {"personalisation", "transform", "compression", "objective", "augment", "hold_frozen_norms"}
    with pytest.raises(RaysimError, match=r"changes client.augment, which all configurations share"):
        experiment(fedex={"configs": [{}, {"augment": {"name": "flip_crop", "padding": 1}}]})


def test_a_split_must_have_examples_of_training_clients(experiment: Make) -> None:
    others = raysim.FederatedDataset.from_clients(train=make_clients([9] * 4), test=make_clients([5], prefix="t"))
    with pytest.raises(DataError, match="validation"):
        raysim.run(experiment(fedex=TWO, cohort={"size": 2}), dataset=others)
    with pytest.raises(RaysimError, match=r"fedex scores clients.*'test'.*no training client has any"):
        raysim.run(experiment(fedex={**TWO, "split": "test"}, cohort={"size": 2}), dataset=others)
