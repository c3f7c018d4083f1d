"""Parts of a script, one for each way of passing one: each keeps the contract, and uses what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import raysim
from raysim.config.part import Kind


def own(kind: Kind, make: Callable[[Any], Any]) -> raysim.Part:
    """The part as check_part takes a script's own."""
    return raysim.Part(kind, "own", raysim.OwnPart, make)


def as_it_is(kind: Kind, function: Any) -> raysim.Part:
    """The same of what is passed as it is."""
    return own(kind, lambda section: function)


def near(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    noisy = x + 0.1 * torch.randn(x.shape, generator=at.generator).to(x.dtype)
    apart = sum(((value - at.broadcast[name]) ** 2).sum() for name, value in module.named_parameters())
    losses = nn.functional.cross_entropy(module(noisy), y, reduction="none")
    return losses + float(at.constants["mu"]) * (at.local_step + 1) * apart


def sparse(section: raysim.OwnPart) -> raysim.Transform:
    share = float(section.constants["share"])

    def apply(at: raysim.TransformAt) -> raysim.Transformed:
        total = at.delta + at.state
        sent = torch.where(total.abs() >= share * total.abs().max(), total, torch.zeros_like(total))
        return raysim.Transformed(sent, total - sent)

    return raysim.Transform(apply, keeps_state=True)


def noisy(section: raysim.OwnPart) -> raysim.Transform:
    def apply(at: raysim.TransformAt) -> Tensor:
        def noised(name: str, tensor: Tensor) -> Tensor:
            return tensor + 0.01 * torch.randn(tensor.shape, generator=at.generator).to(tensor.dtype)

        return at.layout.map(noised, at.delta)

    return raysim.Transform(apply)


def larger(at: raysim.CohortAt) -> Any:
    weights = at.examples ** float(at.constants["power"])
    return at.rng.choice(at.population, at.size, replace=False, p=weights / weights.sum())


def by_loss(section: raysim.OwnPart) -> raysim.Sampler:
    def init(at: raysim.CohortAt) -> dict[str, Tensor]:
        return {"loss": torch.full((at.population,), torch.inf, dtype=torch.float64)}

    def sample(state: Mapping[str, Tensor], at: raysim.CohortAt) -> Any:
        return np.argsort(-state["loss"].numpy(), kind="stable")[: at.size]

    def learn(state: Mapping[str, Tensor], participants: Sequence[raysim.Participant]) -> Mapping[str, Tensor]:
        for each in participants:
            state["loss"][each.position] = each.loss + each.distance
        return state

    return raysim.Sampler(init, sample, learn, needs_distances=True)


def softened(updates: Tensor, weights: Tensor) -> Tensor:
    return weights @ torch.tanh(updates) / weights.sum()


def alike(section: raysim.OwnPart) -> raysim.Coefficients:
    def fn(gram: Tensor, weights: Tensor) -> Tensor:
        return weights * (gram @ weights).clamp(min=float(section.constants["least"]))

    return raysim.Coefficients(fn)


def fair(facts: raysim.ClientFacts) -> float:
    return facts.examples * facts.loss ** float(facts.constants["q"]) / (1 + facts.norm)


def misses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) != targets).double()


RECALL = raysim.Metric(
    lambda outputs, targets: torch.stack([((targets == 0) & (outputs.argmax(1) == 0)).sum(), (targets == 0).sum()]),
    lambda sums: float(sums[0] / sums[1]),
)

PARTS: dict[str, tuple[raysim.Part, dict[str, float]]] = {
    "objective": (as_it_is("objective", near), {"mu": 0.1}),
    "stateful transform": (own("transform", sparse), {"share": 0.3}),
    "transform": (own("transform", noisy), {}),
    "sampler": (own("sampler", larger), {"power": 1.5}),
    "sampler that learns": (own("sampler", by_loss), {}),
    "aggregator of coordinates": (as_it_is("aggregator", raysim.Coordinatewise(softened)), {}),
    "aggregator of products": (own("aggregator", alike), {"least": 1e-3}),
    "weighting": (as_it_is("weighting", fair), {"q": 0.5}),
    "metric": (as_it_is("metric", misses), {}),
    "metric of sums": (as_it_is("metric", RECALL), {}),
}
"""By what they are: the part and its constants."""
