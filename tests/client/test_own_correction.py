"""Corrections of a script: the built-in ones' bits, layers apart, and what is refused before the first round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import raysim
from tests.support.executors import bits

COUNT = itertools.count(1.0)
"""What a function has kept that is not a function of its arguments."""

Make = Callable[..., raysim.Experiment]

CLIENT = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4, "local_steps": 3}
TRAINERS = ("one_by_one", "fused", "stacked", "vmap", "compiled")


def prox(section: Any) -> raysim.Correction:
    return raysim.Correction(raysim.ClientHalf(pull=section.constants["mu"]))


def scaffold(section: Any) -> raysim.Correction:
    def after(ended: raysim.ClientEnd) -> Tensor:
        if ended.gradient is not None:
            return ended.gradient
        return torch.sub(ended.state - ended.received["c"], ended.delta, alpha=1 / (ended.tau * ended.lr))

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        c = torch.add(stepped.state["c"], stepped.changes, alpha=1 / stepped.population)
        return raysim.ServerResult(stepped.params, {"c": c})

    return raysim.Correction(
        raysim.ClientHalf(
            offset=lambda begins: begins.received["c"] - begins.state,
            after=after,
            sums_gradients=True,
            inverts_sgd=True,
        ),
        raysim.ServerHalf(lambda params: {"c": torch.zeros_like(params)}, settle),
        raysim.Exchange(lambda state, gradient: {"c": state["c"]}, sums_changes=True),
        raysim.Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean", "fednova")),
    )


def feddyn(section: Any) -> raysim.Correction:
    mu = section.constants["mu"]

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        h = torch.add(stepped.state["h"], stepped.g, alpha=stepped.clients / stepped.population)
        return raysim.ServerResult(stepped.params - h, {"h": h, "mean": stepped.params})

    return raysim.Correction(
        raysim.ClientHalf(
            pull=mu,
            offset=lambda begins: -begins.state,
            after=lambda ended: torch.sub(ended.state, ended.delta, alpha=mu),
        ),
        raysim.ServerHalf(lambda params: {"h": torch.zeros_like(params), "mean": params}, settle, average="mean"),
        requires=raysim.Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean",)),
    )


def adabest(section: Any) -> raysim.Correction:
    mu, beta = section.constants["mu"], section.constants["beta"]

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        h = (stepped.state["mean"] - stepped.params) * beta
        return raysim.ServerResult(stepped.params - h, {"h": h, "mean": stepped.params})

    return raysim.Correction(
        raysim.ClientHalf(
            offset=lambda begins: -begins.state,
            after=lambda ended: torch.sub(ended.state / ended.gap, ended.delta, alpha=mu),
        ),
        raysim.ServerHalf(lambda params: {"h": torch.zeros_like(params), "mean": params}, settle, average="mean"),
        requires=raysim.Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean",)),
    )


def mime(section: Any) -> raysim.Correction:
    """Over adam: y <- y - lr (b1 m + (1 - b1) g) / (sqrt(v) + eps), g = grad(y; B) - grad(x; B) + c."""
    b1, b2, eps = 0.9, 0.99, 1e-3

    def step(params: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: Any) -> None:
        direction = torch.add(gradient * (1 - b1), state["m"], alpha=b1)
        params.add_(direction / (state["v"].sqrt() + eps), alpha=-lr)

    def down(state: Mapping[str, Tensor], gradient: Tensor | None) -> dict[str, Tensor]:
        assert gradient is not None
        return {**state, "c": gradient}

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        c, m, v = stepped.gradient, stepped.state["m"], stepped.state["v"]
        assert c is not None
        m, v = torch.add(m * b1, c, alpha=1 - b1), torch.addcmul(v * b2, c, c, value=1 - b2)
        return raysim.ServerResult(stepped.params, {"m": m, "v": v})

    return raysim.Correction(
        raysim.ClientHalf(
            offset=lambda begins: begins.received["c"],
            anchored=True,
            optimizer=raysim.ClientOptimizer(lambda params: {}, step),
            start=lambda received: {"m": received["m"], "v": received["v"]},
        ),
        raysim.ServerHalf(lambda params: {"m": torch.zeros_like(params), "v": torch.zeros_like(params)}, settle),
        raysim.Exchange(down, full_gradients=True),
        raysim.Requires(server_sgd=True, weightings=("uniform", "examples"), aggregators=("mean",)),
    )


REWRITTEN: dict[str, tuple[dict[str, Any], Callable[[Any], raysim.Correction]]] = {
    "prox": ({"name": "prox", "mu": 0.3}, prox),
    "scaffold": ({"name": "scaffold"}, scaffold),
    "feddyn": ({"name": "feddyn", "mu": 0.1}, feddyn),
    "adabest": ({"name": "adabest", "mu": 0.05, "beta": 0.9}, adabest),
    "mime": ({"name": "mime", "base": "adam"}, mime),
}


@pytest.mark.parametrize("trainer", ["auto", "one_by_one", "stacked"])
@pytest.mark.parametrize("name", REWRITTEN)
def test_a_correction_through_the_public_door_has_the_built_in_ones_bits(
    name: str, trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    built_in, make = REWRITTEN[name]
    engine = {"workers": 0, "trainer": trainer}
    expected = raysim.rounds(experiment(client={**CLIENT, "correction": built_in}, engine=engine), dataset=dataset)
    constants = {key: value for key, value in built_in.items() if key in ("mu", "beta")}
    own = {**CLIENT, "correction": {"name": "own", "constants": constants}}
    got = raysim.rounds(experiment(client=own, engine=engine), dataset=dataset, correction=make)
    for one, other in zip(expected, got, strict=True):
        assert bits(one) == bits(other)


def test_scaffold_through_the_public_door_sums_gradients_under_momentum(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    client = {**CLIENT, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}
    expected = raysim.rounds(experiment(client={**client, "correction": {"name": "scaffold"}}), dataset=dataset)
    got = raysim.rounds(experiment(client=client), dataset=dataset, correction=scaffold)
    assert [bits(each) for each in got] == [bits(each) for each in expected]


# Layers apart


def prox_by_layer(section: Any) -> raysim.Correction:
    """FedProx with a strength by layer."""

    def bend(at: raysim.LocalGradient) -> Tensor:
        mu = at.layout.vector({"fc2.weight": section.constants["top"]}, default=0.3, like=at.params)
        return at.gradient + mu * (at.params - at.start)

    return raysim.Correction(raysim.ClientHalf(bend=bend))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_strength_by_layer_is_fedprox_where_all_are_the_same(
    trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    engine = {"workers": 0, "trainer": trainer, "dtype": "float64"}
    whole = experiment(client={**CLIENT, "correction": {"name": "prox", "mu": 0.3}}, engine=engine)
    bent = experiment(client={**CLIENT, "correction": {"name": "own", "constants": {"top": 0.3}}}, engine=engine)
    got = raysim.rounds(bent, dataset=dataset, correction=prox_by_layer)
    for one, other in zip(raysim.rounds(whole, dataset=dataset), got, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(other.params[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_strength_holds_back_its_own_layer(trainer: str, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """With lr mu = 1 the layer takes the step y <- x - lr grad at every local step: it goes the way of one."""
    engine = {"workers": 0, "trainer": trainer, "dtype": "float64"}

    def after_one_round(top: float, **client: Any) -> dict[str, Tensor]:
        own = {"name": "own", "constants": {"top": top}}
        exp = experiment(client={**CLIENT, "correction": own, **client}, engine=engine)
        return next(iter(raysim.rounds(exp, dataset=dataset, correction=prox_by_layer))).params

    start = after_one_round(0.3, optimizer={"lr": 0.0})
    free, held = after_one_round(0.3), after_one_round(10.0)
    way = {
        name: [float((params[name] - start[name]).norm()) for params in (free, held)]
        for name in ("fc1.weight", "fc2.weight")
    }
    assert way["fc2.weight"][1] < 0.6 * way["fc2.weight"][0]
    assert way["fc1.weight"][1] == pytest.approx(way["fc1.weight"][0], rel=0.2)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_bend_sees_what_was_sent_and_comes_after_offset_and_before_clipping(
    trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """With a bend that puts what was sent in the gradient's place, clipped to 1: lr tau of it is the update."""

    def make(section: Any) -> raysim.Correction:
        def down(state: Any, gradient: Any) -> dict[str, Tensor]:
            return {"way": state["way"]}

        def init(params: Tensor) -> dict[str, Tensor]:
            return {"way": params * 7}

        return raysim.Correction(
            raysim.ClientHalf(
                offset=lambda begins: begins.received["way"] * 1e6,
                bend=lambda at: (at.received["way"] + 0 * at.params) * (at.gradient.abs().amax(-1, keepdim=True) > 1e3),
            ),
            raysim.ServerHalf(init, lambda stepped: raysim.ServerResult(stepped.params, stepped.state)),
            raysim.Exchange(down),
        )

    engine = {"workers": 0, "trainer": trainer, "dtype": "float64"}
    client = {**CLIENT, "max_grad_norm": 1.0}
    start = next(
        iter(raysim.rounds(experiment(client={**client, "optimizer": {"lr": 0.0}}, engine=engine), dataset=dataset))
    ).params
    done = next(iter(raysim.rounds(experiment(client=client, engine=engine), dataset=dataset, correction=make))).params
    norm = torch.cat([value.flatten() for value in start.values()]).norm()
    for name, value in start.items():
        torch.testing.assert_close(done[name], value - 0.3 * value / norm)


def test_halves_are_told_the_layout(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """Only the last layer is corrected: what is kept of the others stays zero, on both sides."""
    told = []

    def make(section: Any) -> raysim.Correction:
        def last(layout: Any, vector: Tensor) -> Tensor:
            told.append(layout.names)
            return vector * layout.vector({"fc2.bias": 1.0}, like=vector)

        return raysim.Correction(
            raysim.ClientHalf(
                offset=lambda begins: last(begins.layout, begins.state),
                after=lambda ended: last(ended.layout, ended.delta),
            ),
            raysim.ServerHalf(
                lambda params: {"h": torch.zeros_like(params)},
                lambda s: raysim.ServerResult(s.params + last(s.layout, s.g), {"h": last(s.layout, s.g)}),
            ),
        )

    (done, *_) = raysim.rounds(experiment(client=CLIENT), dataset=dataset, correction=make)
    plain = next(iter(raysim.rounds(experiment(client=CLIENT), dataset=dataset)))
    assert set(told) == {tuple(done.params)}
    assert {name for name, value in done.params.items() if not torch.equal(value, plain.params[name])} == {"fc2.bias"}


def test_what_is_not_defined_for_bent_gradients_is_refused(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def inverting(section: Any) -> raysim.Correction:
        half = raysim.ClientHalf(bend=lambda at: at.gradient * 2, after=lambda ended: ended.delta, inverts_sgd=True)
        return raysim.Correction(half)

    bent = experiment(client={**CLIENT, "correction": {"name": "own", "constants": {"top": 0.1}}})
    nova = bent.changed(["server.aggregator.name=fednova"])
    with pytest.raises(raysim.ExperimentError, match=r"'fednova' has no a_i for local gradients that are bent"):
        raysim.rounds(nova, dataset=dataset, correction=prox_by_layer)
    with pytest.raises(raysim.ExperimentError, match=r"mean gradient from its update, which does not hold where"):
        raysim.rounds(experiment(client=CLIENT), dataset=dataset, correction=inverting)


# Bad input


def half(**fields: Any) -> Callable[[Any], raysim.Correction]:
    return lambda section: raysim.Correction(raysim.ClientHalf(**fields))


def server(settle: Any, init: Any = lambda params: {"h": torch.zeros_like(params)}) -> Any:
    return lambda section: raysim.Correction(server=raysim.ServerHalf(init, settle))


def down(function: Any) -> Callable[[Any], raysim.Correction]:
    return lambda section: raysim.Correction(exchange=raysim.Exchange(function))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda section: 0.3, r"correction= must be .* that returns a raysim.Correction, .*, but returned 0.3"),
        (half(offset=lambda begins: begins.state), r"correction=: ClientHalf.offset must return a vector as .*\(0,\)"),
        (
            half(offset=lambda begins: begins.received["c"]),
            r"ClientHalf.offset raised KeyError \(.*\): 'c'",
        ),
        (half(offset=lambda begins: 0.0), r"ClientHalf.offset must return a vector as .* but returned 0.0"),
        (half(after=lambda ended: ended.delta.double()), r"ClientHalf.after .* but returned torch.float64"),
        (half(after=lambda ended: ended.delta.to_sparse()), r"ClientHalf.after .* but returned .* \(sparse_coo\)"),
        (half(after=lambda ended: ended.delta.mul_(2)), r"ClientHalf.after must not write .* but wrote to delta"),
        (half(after=lambda ended: ended.delta + 1), r"ClientHalf.after must leave zeros between the parameters"),
        (half(bend=lambda at: at.gradient.add_(at.params)), r"ClientHalf.bend must not write .* wrote to gradient"),
        (half(bend=lambda at: at.gradient * next(COUNT)), r"ClientHalf.bend returned something else when .* again"),
        (half(upload=lambda ended: ended.delta * next(COUNT)), r"ClientHalf.upload returned something else"),
        (half(pull="1"), r"ClientHalf.pull must be a finite number, but is '1'"),
        (half(pull=math.nan), r"ClientHalf.pull must be a finite number, but is nan"),
        (half(bend=lambda at: at.gradient[..., :3]), r"ClientHalf.bend must return a gradient as"),
        (half(bend=lambda at: at.gradient + 1), r"ClientHalf.bend must leave zeros between the parameters"),
        (half(start=lambda received: {"m": torch.zeros(3)}), r"ClientHalf.start must return state\['m'\] as"),
        (down(lambda state, gradient: {"c": torch.zeros(3)}), r"Exchange.down must return vectors\['c'\] as"),
        (down(lambda state, gradient: None), r"Exchange.down must return a mapping .* but returned None"),
        (server(lambda s: s.params), r"ServerHalf.settle must return a raysim.ServerResult"),
        (server(lambda s: raysim.ServerResult(s.params, {})), r"state with the names \['h'\], but returned \[\]"),
        (
            server(lambda s: raysim.ServerResult(s.params, {"h": s.state["h"].add_(s.g)})),
            r"ServerHalf.settle must not write to its arguments, but wrote to state\['h'\]",
        ),
        (server(lambda s: raysim.ServerResult(s.params[1:], s.state)), r"ServerHalf.settle must return params as"),
        (
            lambda section: raysim.Correction(server=raysim.ServerHalf(average="mean")),
            r"ServerHalf.average must name a vector of the server's state, \[\], but is 'mean'",
        ),
        (
            lambda section: raysim.Correction(exchange=raysim.Exchange(sums_changes=True)),
            r"Exchange.sums_changes sums what `after` changes, but ClientHalf.after is None",
        ),
    ],
)
def test_a_record_that_does_not_hold_is_refused_before_the_first_round(
    make: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(experiment(client=CLIENT), dataset=dataset, correction=make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (half(bend=lambda at: at.gradient / at.gradient.norm(dim=-1).max().clamp(min=1)), r"bend each row of a stack"),
        (half(bend=lambda at: at.gradient * (1 + at.gradient.mean())), r"bend each row of a stack"),
        (half(point=lambda at: at.iterate / at.iterate.norm().clamp(min=1)), r"map each row of a stack"),
    ],
)
def test_rows_are_asked_for_where_clients_are_trained_together(
    make: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    for trainer in ("stacked", "vmap"):
        engine = {"workers": 0, "trainer": trainer}
        with pytest.raises(raysim.ExperimentError, match=message):
            raysim.rounds(experiment(client=CLIENT, engine=engine), dataset=dataset, correction=make)


def test_what_fails_later_names_client_and_round(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def after(ended: raysim.ClientEnd) -> Tensor:
        if ended.gap > 1:
            raise KeyError("my own mistake")
        return ended.delta

    cohorts = {"sampler": {"name": "replay", "cohorts": [["c1", "c2"], ["c3"], ["c2"], ["c4"]]}}
    with pytest.raises(raysim.ClientError, match=r"client 'c2' failed in round 2(.|\n)*my own mistake"):
        list(raysim.rounds(experiment(client=CLIENT, cohort=cohorts), dataset=dataset, correction=half(after=after)))


@pytest.mark.parametrize("place", ["ServerHalf.settle", "Exchange.down"])
def test_what_fails_later_on_the_server_names_the_keyword_and_the_round(
    place: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        if place == "ServerHalf.settle" and float(stepped.state["t"].max()) == 2:
            raise KeyError("my own mistake")
        return raysim.ServerResult(stepped.params, {"t": stepped.state["t"] + (stepped.params != 0)})

    def down(state: Mapping[str, Tensor], gradient: Any) -> dict[str, Tensor]:
        if place == "Exchange.down" and float(state["t"].max()) == 2:
            raise KeyError("my own mistake")
        return {}

    def make(section: Any) -> raysim.Correction:
        half = raysim.ServerHalf(lambda params: {"t": torch.zeros_like(params)}, settle)
        return raysim.Correction(server=half, exchange=raysim.Exchange(down))

    finished = raysim.rounds(experiment(client=CLIENT), dataset=dataset, correction=make)
    said = rf"^correction=: {place}, in round 2, failed: KeyError\('my own mistake'\)\nTraceback(.|\n)*raise KeyError"
    with pytest.raises(raysim.ExperimentError, match=said):
        list(finished)


def test_a_script_s_correction_weighs_as_it_is_defined_and_is_recorded_as_own(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"name = 'own' is defined with server.weighting = 'uniform'"):
        raysim.rounds(experiment(server={"weighting": "examples"}), dataset=dataset, correction=scaffold)
    raysim.run(experiment(), dataset=dataset, correction=scaffold, path=tmp_path / "run")
    with pytest.raises(raysim.ExperimentError, match=r"passes as correction=, but none was passed"):
        raysim.resume(tmp_path / "run", dataset=dataset)


def _add_nothing(vector: Tensor) -> Tensor:
    """Write to the vector, once a client or the server has kept something."""
    if vector.any():
        vector.add_(0)
    return torch.zeros_like(vector)


WRITES_LATER: dict[str, tuple[raysim.ClientHalf, str]] = {
    "offset received": (raysim.ClientHalf(offset=lambda start: _add_nothing(start.received["c"])), r"received\['c'\]"),
    "offset state": (
        raysim.ClientHalf(
            offset=lambda start: _add_nothing(start.state) if start.received["c"].any() else 0 * start.state,
            after=lambda end: end.delta * 1,
        ),
        "state",
    ),
    "begin received": (
        raysim.ClientHalf(begin=lambda start: start.params + _add_nothing(start.received["c"])),
        r"received\['c'\]",
    ),
    "upload received": (
        raysim.ClientHalf(upload=lambda end: end.delta + _add_nothing(end.received["c"])),
        r"received\['c'\]",
    ),
    "after received": (
        raysim.ClientHalf(after=lambda end: end.delta + _add_nothing(end.received["c"])),
        r"received\['c'\]",
    ),
    "bend received": (
        raysim.ClientHalf(bend=lambda local: local.gradient + _add_nothing(local.received["c"])),
        r"received\['c'\]",
    ),
}


@pytest.mark.parametrize("trainer", ["one_by_one", "fused"])
@pytest.mark.parametrize("name", WRITES_LATER)
def test_a_client_half_that_writes_in_later_rounds_is_refused_there(
    name: str, trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """Other clients receive the same vectors, in the order in which workers train them."""
    half, written = WRITES_LATER[name]

    def correction(section: raysim.OwnPart) -> raysim.Correction:
        def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
            return raysim.ServerResult(stepped.params, {"c": stepped.g})

        server = raysim.ServerHalf(lambda params: {"c": torch.zeros_like(params)}, settle)
        return raysim.Correction(half, server, raysim.Exchange(lambda state, gradient: dict(state)))

    exp = experiment(engine={"workers": 0, "trainer": trainer}, client={"optimizer": {"lr": 0.1}, "batch_size": 4})
    steps = raysim.rounds(exp, dataset=dataset, correction=correction)
    next(steps)
    half_name = name.split()[0]
    with pytest.raises(raysim.ClientError, match=rf"ClientHalf\.{half_name} must not write to {written}"):
        list(steps)


def test_an_exchange_that_writes_in_later_rounds_is_refused_there(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """The state may not be in a checkpoint yet."""

    def down(state: Any, gradient: Any) -> dict[str, Tensor]:
        return {"c": state["c"] + _add_nothing(state["c"])}

    def correction(section: raysim.OwnPart) -> raysim.Correction:
        server = raysim.ServerHalf(
            lambda params: {"c": torch.zeros_like(params)},
            lambda stepped: raysim.ServerResult(stepped.params, {"c": stepped.g}),
        )
        return raysim.Correction(raysim.ClientHalf(pull=0.1), server, raysim.Exchange(down))

    steps = raysim.rounds(experiment(engine={"workers": 0}), dataset=dataset, correction=correction)
    next(steps)
    with pytest.raises(raysim.ExperimentError, match=r"Exchange\.down, in round 1, must not write to state\['c'\]"):
        list(steps)
