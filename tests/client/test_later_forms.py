"""What a correction of a script returns in a later round has the form that its trial before the first round had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import raysim

Make = Callable[..., raysim.Experiment]

LATER: dict[str, Callable[[Tensor], Any]] = {
    "of another dtype and as many bytes": lambda vector: (vector * 0).long(),
    "wider": lambda vector: vector.to(torch.complex128),
    "a number": lambda vector: vector.sum(),
    "a column": lambda vector: vector[:, None],
    "shorter": lambda vector: vector[:-64],
    "nothing": lambda vector: None,
    "of NumPy": lambda vector: vector.numpy(),
}
CLIENTS = ("offset", "begin", "upload", "after", "bend")


def made(place: str, otherwise: Callable[[Tensor], Any]) -> Callable[[Any], raysim.Correction]:
    """A correction whose function of this name returns something else once a round is done."""

    def maybe(name: str, done: Tensor, vector: Tensor) -> Any:
        return otherwise(vector) if name == place and done.any() else vector

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        done = stepped.state["done"]
        kept = {"done": maybe("state", done, done + (stepped.g != 0))}
        return raysim.ServerResult(maybe("params", done, stepped.params), kept)

    def down(state: Mapping[str, Tensor], gradient: Any) -> dict[str, Tensor]:
        return {"done": state["done"], "more": maybe("down", state["done"], state["done"])}

    half = raysim.ClientHalf(
        offset=lambda begins: maybe("offset", begins.received["done"], begins.state * 0.1),
        begin=lambda begins: maybe("begin", begins.received["done"], begins.params * 1),
        upload=lambda ended: maybe("upload", ended.received["done"], ended.delta * 1),
        after=lambda ended: maybe("after", ended.received["done"], ended.delta * 1),
        bend=lambda local: maybe("bend", local.received["done"], local.gradient * 1),
    )
    server = raysim.ServerHalf(lambda params: {"done": torch.zeros_like(params)}, settle)
    return lambda section: raysim.Correction(half, server, raysim.Exchange(down))


@pytest.mark.parametrize("form", LATER)
@pytest.mark.parametrize("place", [*CLIENTS, "params", "state", "down"])
def test_another_form_is_refused_in_the_round_that_has_it(
    place: str, form: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(
        rounds=3,
        client={"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4},
        engine={"workers": 0, "dtype": "float64"},
    )
    said = f"ClientHalf.{place} must return" if place in CLIENTS else f"in round 1, must return {place}"
    if place == "down":
        said = "Exchange.down, in round 1, must return vectors"
    rounds = raysim.rounds(exp, dataset=dataset, correction=made(place, LATER[form]))
    next(rounds)
    with pytest.raises(raysim.ClientError if place in CLIENTS else raysim.ExperimentError, match=said):
        list(rounds)
