"""Defines parts as a script passes them, and the cases that use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import raysim
from raysim.server import Descent, Own, ServerOptimizer, Stepped

if TYPE_CHECKING:
    from raysim.client.optimizers.optimizer import Rate, State

from .case import Case
from .settings import WIDE


class Gated(nn.Module):
    """A module that is no sequence of standard layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate, self.outer = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 4)."""
        out: Tensor = self.outer(torch.tanh(self.inner(x)) * torch.sigmoid(self.gate(x)))
        return out


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with smoothed labels, of each example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def heavy_ball(section: Own) -> ServerOptimizer:
    """Heavy-ball momentum as a script writes it."""
    rho = float(section.constants["rho"])

    def init(params: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(params)}

    def step(params: Tensor, descent: Descent, state: Any) -> Stepped:
        moved = descent.fed(state["m"], rho, 1.0)
        return Stepped(params - descent.lr * moved, {"m": moved})

    return ServerOptimizer(init, step)


def near(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    """Losses of noisy inputs, and a pull towards the broadcast."""
    noise = torch.randn(x.shape, generator=at.generator, dtype=x.dtype)
    apart = sum(((value - at.broadcast[name]) ** 2).sum() for name, value in module.named_parameters())
    losses = nn.functional.cross_entropy(module(x + 0.1 * noise), y, reduction="none")
    return losses + float(at.constants["mu"]) * apart


EXCHANGE: Any = getattr(raysim, "Exchange" if hasattr(raysim, "Exchange") else "Sent")
"""Revisions have called it otherwise, and what a client has received."""


def _received(started: Any) -> Any:
    return started.received if hasattr(started, "received") else started.sent


def remembering(section: raysim.OwnPart) -> raysim.Correction:
    """Adds a share of the client's last update to its gradients, and of the server's last step to the model."""
    share = float(section.constants["share"])

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        return raysim.ServerResult(stepped.params + share * stepped.state["g"], {"g": stepped.g})

    half = raysim.ClientHalf(
        pull=share,
        offset=lambda started: share * (started.state + _received(started)["g"]),
        after=lambda ended: ended.delta / ended.tau,
        bend=lambda local: local.gradient * 0.9,
    )
    server = raysim.ServerHalf(lambda params: {"g": torch.zeros_like(params)}, settle)
    return raysim.Correction(half, server, EXCHANGE(lambda state, gradient: dict(state)))


def signed(section: raysim.OwnPart) -> raysim.ClientOptimizer:
    """Steps along the sign of a mean of gradients."""

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        state["m"].mul_(float(section.constants["beta"])).add_(gradient)
        params.sub_(lr * state["m"].sign())

    return raysim.ClientOptimizer(lambda params: {"m": torch.zeros_like(params)}, step)


def sparse(section: raysim.OwnPart) -> raysim.Transform:
    """Sends the larger half of the numbers, and the rest next time."""

    def apply(at: raysim.TransformAt) -> raysim.Transformed:
        total = at.delta + at.state
        sent = torch.where(total.abs() >= total.abs().mean(), total, torch.zeros_like(total))
        return raysim.Transformed(sent, total - sent)

    return raysim.Transform(apply, keeps_state=True)


def noisy(section: raysim.OwnPart) -> raysim.Transform:
    """Adds noise of the client's own."""
    std = float(section.constants["std"])

    def apply(at: raysim.TransformAt) -> Tensor:
        def noised(name: str, tensor: Tensor) -> Tensor:
            return tensor + std * torch.randn(tensor.shape, generator=at.generator, dtype=tensor.dtype)

        return at.layout.map(noised, at.delta)

    return raysim.Transform(apply)


def larger(at: raysim.CohortAt) -> Any:
    """Positions drawn by examples."""
    weights = at.examples ** float(at.constants["power"])
    return at.rng.choice(at.population, at.size, replace=False, p=weights / weights.sum())


def by_loss(section: raysim.OwnPart) -> raysim.Sampler:
    """The clients whose last loss was largest, those of none first."""

    def init(at: raysim.CohortAt) -> dict[str, Tensor]:
        return {"loss": torch.full((at.population,), torch.inf, dtype=torch.float64)}

    def sample(state: Mapping[str, Tensor], at: raysim.CohortAt) -> Any:
        return np.argsort(-state["loss"].numpy(), kind="stable")[: at.size]

    def learn(state: Mapping[str, Tensor], participants: Any) -> Mapping[str, Tensor]:
        for each in participants:
            state["loss"][each.position] = each.loss * min(1.0, each.norm + each.distance)
        return state

    return raysim.Sampler(init, sample, learn, needs_distances=True)


def softened(section: raysim.OwnPart) -> raysim.Coordinatewise:
    """The mean of updates whose coordinates are softened."""

    def fn(updates: Tensor, weights: Tensor) -> Tensor:
        return weights @ torch.tanh(updates * 3) / (3 * weights.sum())

    return raysim.Coordinatewise(fn)


def alike(section: raysim.OwnPart) -> raysim.Coefficients:
    """Updates count as they resemble the sum of all."""

    def fn(gram: Tensor, weights: Tensor) -> Tensor:
        return weights * (gram @ weights).clamp(min=float(section.constants["least"]))

    return raysim.Coefficients(fn)


def fair(facts: raysim.ClientFacts) -> float:
    """Examples times a power of the loss."""
    power: float = facts.loss ** float(facts.constants["q"])
    return facts.examples * power / (1 + facts.norm) / facts.steps


def misses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the target is not the first choice."""
    return (outputs.argmax(1) != targets).double()


def _recall() -> Any:
    def sums(outputs: Tensor, targets: Tensor) -> Tensor:
        of_first = targets == 0
        return torch.stack([(of_first & (outputs.argmax(1) == 0)).sum(), of_first.sum()])

    return raysim.Metric(sums, lambda total: float(total[0] / total[1]))


OWN: dict[str, Mapping[str, Any]] = {
    "module": {"model": Gated},
    "loss": {"loss": smoothed},
    "module and loss": {"model": Gated, "loss": smoothed},
    "params": {
        "params": {"fc.weight": np.linspace(-1, 1, 24).reshape(4, 6), "fc.bias": np.zeros(4)},
        "model": lambda: named(),
    },
    "optimizer": {"server_optimizer": heavy_ball},
    "wrong loss": {"loss": lambda outputs, targets: smoothed(outputs, targets).mean()},
}


def named() -> nn.Module:
    """A module whose parameters have names of its own."""
    module = nn.Sequential()
    module.add_module("fc", nn.Linear(6, 4))
    return module


def of_own_parts() -> dict[str, Case]:
    """A case for each kind of part that a script passes, but the server optimizer, which is older than the others."""

    def own(**constants: float) -> dict[str, Any]:
        return {"name": "own", "constants": constants}

    parts: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "objective": ({"client.objective": own(mu=0.1), "rounds": 4}, {"objective": near}),
        "correction": ({"client.correction": own(share=0.1), "rounds": 4}, {"correction": remembering}),
        "client optimizer": (
            {"client.optimizer": {**own(beta=0.8), "lr": 0.01, "weight_decay": 0.1}},
            {"client_optimizer": signed},
        ),
        "transforms": (
            {"client.transform": [own(), own(std=0.01)], "cohort.size": 9},
            {"transform": [sparse, noisy]},
        ),
        "sampler": ({"cohort.sampler": own(power=1.5)}, {"sampler": larger}),
        "sampler that learns": ({"cohort.sampler": own(), "rounds": 5}, {"sampler": by_loss}),
        "aggregator of coordinates": ({"server.aggregator": own()}, {"aggregator": softened}),
        "aggregator of products": ({"server.aggregator": own(least=1e-3)}, {"aggregator": alike}),
        "weighting": ({"server.weighting": own(q=0.5)}, {"weighting": fair}),
        "metrics": (
            {"evaluation.metrics": [{"name": "own", "label": "misses"}]},
            {"metrics": {"misses": misses, **({"recall": _recall()} if hasattr(raysim, "Metric") else {})}},
        ),
    }
    return {f"own {name}": Case({"model": WIDE, **settings}, own=own) for name, (settings, own) in parts.items()}
