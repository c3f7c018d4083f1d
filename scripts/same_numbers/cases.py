"""The experiments of scripts/same-numbers: settings, data and what a script passes, as small as they can be.

A setting is a dotted key of the experiment. `engine.trainer` stands for the key that says how local training is
computed, whatever its name at a revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import raysim
from raysim.server import Descent, Own, ServerOptimizer, Stepped

if TYPE_CHECKING:
    from raysim.client.optimizers.optimizer import Rate, State

TRAINER = ("trainer", "form")
"""What the key of `engine` is called that says how local training is computed; the first that is there counts."""

UNUSED = {
    "ag_news.AgNews.train = noisyag": "needs the published files",
    "ag_news.AgNews.noisyag_root": "a path",
    "bilstm.Bilstm.vectors": "a path",
    "cifar.Cifar10.train_files": "a path",
    "cifar.Cifar10.test_files": "a path",
    "distilbert.Distilbert.name = distilbert": "needs pretrained weights",
    "distilbert.Distilbert.path": "a path",
    "emnist.Emnist.form = leaf": "needs the published files",
    "emnist_idx.EmnistIdx.split = balanced": "needs the published files",
    "emnist_idx.EmnistIdx.split = byclass": "needs the published files",
    "emnist_idx.EmnistIdx.split = bymerge": "needs the published files",
    "emnist_idx.EmnistIdx.split = digits": "needs the published files",
    "emnist_idx.EmnistIdx.split = mnist": "needs the published files",
    "experiment.EngineSection.cpus_per_worker": "placement",
    "experiment.EngineSection.cuda_graphs = True": "needs a card",
    "experiment.EngineSection.gpus_per_worker": "placement",
    "experiment.EngineSection.precision = tf32": "needs a card",
    "experiment.Experiment.tuning": "the cases of studies pass it by keyword",
    "gld.Gld.set = gld160k": "needs the published files",
    "pretrained.Pretrained.length": "needs a pretrained tokeniser",
    "pretrained.Pretrained.name = pretrained": "needs a pretrained tokeniser",
    "pretrained.Pretrained.path": "a path",
    "shakespeare.Shakespeare.form = leaf": "needs the published files",
    "shakespeare.Shakespeare.form = tiny": "needs the published files",
}
"""Choices of the schema that no case uses, and why; every other one is used."""

Kind = Literal["rounds", "run", "resume", "left", "trials", "sweep", "runs", "tune", "centralized"]


class Case(NamedTuple):
    """An experiment, and how it is carried out.

    settings: by dotted key, over `BASE`; None removes a key. data: a name of `datasets`; None: the settings say it.
    kind: what of the API carries it out. more: the sweep's values, the study's settings, or the runs' differences.
    own: what a script passes besides; where a revision takes no such keyword, the case is not run on it. on_ray: with
    two workers.
    """

    settings: Mapping[str, Any]
    data: str | None = "vectors"
    kind: Kind = "rounds"
    more: Any = None
    own: Mapping[str, Any] = {}
    on_ray: bool = False


BASE: dict[str, Any] = {
    "name": "case",
    "seed": 3,
    "rounds": 3,
    "model.name": "linear",
    "client.optimizer.lr": 0.2,
    "client.batch_size": 4,
    "cohort.size": 5,
    "evaluation.every": 2,
}
SGD = {"name": "sgd", "lr": 1.0}
WIDE = {"name": "mlp", "hidden": [7, 5]}
MOMENTUM = {"name": "momentum", "lr": 0.7, "beta1": 0.8}


def datasets(name: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Splits of clients by name, drawn with a fixed seed; clients 0 to 3 have test examples too."""
    draw = np.random.default_rng(11)
    sizes = [3 + 2 * (7 * k % 12) for k in range(12)]

    def clients(count: int, prefix: str, size: int | None = None) -> dict[str, tuple[Any, Any]]:
        return {f"{prefix}{k}": _examples(name, draw, size or sizes[k]) for k in range(count)}

    return {"train": clients(12, "c"), "test": clients(4, "c", 6), "validation": clients(3, "v", 5)}


def _examples(name: str, draw: np.random.Generator, size: int) -> tuple[Any, Any]:
    if name in ("pixels", "colours", "large"):
        shape = {"pixels": (1, 12, 12), "colours": (3, 8, 8), "large": (3, 26, 26)}[name]
        return draw.random((size, *shape), dtype=np.float32), draw.integers(0, 4, size)
    if name == "texts":
        text = draw.integers(0, 9, (size, 7))
        return text[:, :-1], text[:, 1:]
    if name == "labelled texts":
        return draw.integers(0, 9, (size, 6)), draw.integers(0, 3, size)
    x = draw.standard_normal((size, 6), dtype=np.float32)
    if name == "regression":
        return x, x[:, :2].sum(1, keepdims=True) + draw.standard_normal((size, 1), dtype=np.float32)
    return x, draw.integers(0, 4, size)


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


# A revision may lack the records of parts: only the functions below, once called, ask raysim for them.


def near(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    """Losses of noisy inputs, and a pull towards the broadcast."""
    noise = torch.randn(x.shape, generator=at.generator, dtype=x.dtype)
    apart = sum(((value - at.broadcast[name]) ** 2).sum() for name, value in module.named_parameters())
    losses = nn.functional.cross_entropy(module(x + 0.1 * noise), y, reduction="none")
    return losses + float(at.constants["mu"]) * apart


def remembering(section: raysim.OwnPart) -> raysim.Correction:
    """Adds a share of the client's last update to its gradients, and of the server's last step to the model."""
    share = float(section.constants["share"])

    def settle(stepped: raysim.ServerStepped) -> raysim.ServerResult:
        return raysim.ServerResult(stepped.params + share * stepped.state["g"], {"g": stepped.g})

    half = raysim.ClientHalf(
        pull=share,
        offset=lambda started: share * (started.state + started.sent["g"]),
        after=lambda ended: ended.delta / ended.tau,
        bend=lambda local: local.gradient * 0.9,
    )
    server = raysim.ServerHalf(lambda params: {"g": torch.zeros_like(params)}, settle)
    return raysim.Correction(half, server, raysim.Sent(lambda state, gradient: dict(state)))


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
        "model": lambda: _named(),
    },
    "optimizer": {"server_optimizer": heavy_ball},
    "wrong loss": {"loss": lambda outputs, targets: smoothed(outputs, targets).mean()},
}


def _named() -> nn.Module:
    module = nn.Sequential()
    module.add_module("fc", nn.Linear(6, 4))
    return module


def _client(**optimizer: Any) -> dict[str, Any]:
    return {"client.optimizer": optimizer}


def _server() -> dict[str, Case]:
    optimizers: dict[str, dict[str, Any]] = {
        "sgd": {"lr": 0.8},
        "momentum": {"lr": 0.5, "beta1": 0.8},
        "momentum dampened": {"name": "momentum", "lr": 0.5, "dampened": True},
        "adagrad": {"lr": 0.1, "beta1": 0.5, "eps": 1e-2, "v0": 0.1},
        "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "v0": 0.01},
        "adam epsilon_hat": {"name": "adam", "lr": 0.05, "bias_correction": "epsilon_hat"},
        "adam kingma": {"name": "adam", "lr": 0.05, "bias_correction": "kingma"},
        "yogi": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "v0": 0.01},
        "yogi epsilon_hat": {"name": "yogi", "lr": 0.05, "bias_correction": "epsilon_hat"},
        "yogi kingma": {"name": "yogi", "lr": 0.05, "bias_correction": "kingma"},
        "lars": {"lr": 0.05, "beta1": 0.8, "eps": 1e-2, "weight_decay": 0.01},
        "lamb": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "weight_decay": 0.01},
        "normalized": {"lr": 0.3},
    }
    made = {}
    for name, keys in optimizers.items():
        optimizer = {"name": name, **keys}
        settings = {"server.optimizer": optimizer, "model": WIDE}
        made[f"server {name}"] = Case(settings)
        if name == optimizer["name"]:
            made[f"server {name} with glad"] = Case({**settings, "server.glad": {}})
    aggregators: dict[str, dict[str, Any]] = {
        "fednova sum_p_a": {"name": "fednova"},
        "fednova sum_p_tau": {"name": "fednova", "tau_eff": "sum_p_tau"},
        "median": {"name": "median"},
        "trimmed_mean": {"name": "trimmed_mean", "k": 1},
        "krum": {"name": "krum", "f": 1},
        "multi_krum": {"name": "multi_krum", "f": 1, "m": 2},
        "geometric_median": {"name": "geometric_median", "iterations": 3, "nu": 1e-5},
    }
    for name, keys in aggregators.items():
        made[f"aggregator {name}"] = Case({"server.aggregator": keys, "server.optimizer": MOMENTUM})
    made["aggregator fednova momentum"] = Case(
        {"server.aggregator.name": "fednova", **_client(lr=0.1, momentum=0.5), "client.epochs": 2}
    )
    made["aggregator local_adaptivity sgd"] = Case({"server.aggregator.name": "local_adaptivity", "client.epochs": 2})
    for name in ("joint", "local"):
        adaptive = {"server.aggregator": {"name": "local_adaptivity", "correction": name}}
        made[f"aggregator local_adaptivity {name}"] = Case(
            {**adaptive, "client.optimizer": {"name": "adagrad", "lr": 0.05, "eps": 1e-3}, "client.epochs": 2}
        )
    made["aggregator fednova prox"] = Case(
        {"server.aggregator.name": "fednova", "client.correction": {"name": "prox", "mu": 0.1}}
    )
    made["aggregator median clip glad"] = Case(
        {"server.aggregator.name": "median", "server.clip.fixed": 0.3, "server.glad": {}, "model": WIDE}
    )
    parts: dict[str, dict[str, Any]] = {
        "aggregator mean": {"server.aggregator.name": "mean"},
        "weighting uniform": {"server.weighting": "uniform"},
        "weighting ida": {"server.weighting": "ida"},
        "weighting ida clip": {"server.weighting": "ida", "server.clip.initial": 0.3, "rounds": 4},
        "clip adaptive": {"server.clip": {"initial": 0.5, "quantile": 0.5, "lr": 0.3}, "rounds": 5},
        "clip fixed": {"server.clip.fixed": 0.2},
        "zeroing": {"server.zeroing": {"initial": 0.4, "quantile": 0.6, "lr": 0.5}, "rounds": 5},
        "zeroing and clip": {"server.zeroing.initial": 0.5, "server.clip.initial": 0.1},
        "glad group": {"server.glad": {"beta": 0.8, "gamma": 0.1, "scope": "group"}, "model": WIDE, "rounds": 5},
        "glad layer": {"server.glad": {"gamma": "inf", "scope": "layer"}, "model": WIDE, "rounds": 5},
        "glad universal": {"server.glad.scope": "universal", "model": WIDE, "rounds": 5},
        "lr_scaling sqrt": {"server.lr_scaling": {"rule": "sqrt", "reference": 3, "warmup": 2, "from": "zero"}},
        "lr_scaling linear": {"server.lr_scaling": {"rule": "linear", "reference": 3, "warmup": 2, "from": "base"}},
        "lr_scaling none": {"server.lr_scaling": {"rule": "none", "warmup": 2}, "rounds": 4},
        "lr_schedule exponential": {"server.lr_schedule": {"name": "exponential", "decay": 0.9}},
        "lr_schedule step": {"server.lr_schedule": {"name": "step", "factor": 0.5, "every": 2}},
        "lr_schedule cosine": {"server.lr_schedule": {"name": "cosine", "length": 4, "final": 0.1}},
        "diagnostics labels": {"server.diagnostics.labels": True},
        "diagnostics no cosine": {"server.diagnostics.cosine": False},
        "diagnostics cosine": {"server.diagnostics.cosine": True},
        "diagnostics probe": {"server.diagnostics.probe": 2, "model": WIDE},
        "pooled": {"pooled": True, "cohort.size": 1},
        "one round": {"rounds": 1},
        "many small chunks": {"engine.chunk_size": 1, "cohort.size": 11},
        "chunks of three": {"engine.chunk_size": 3, "cohort.size": 11, "model": WIDE},
    }
    return made | {name: Case(settings) for name, settings in parts.items()}


def _clients() -> dict[str, Case]:
    corrections: dict[str, dict[str, Any]] = {
        "prox": {"mu": 0.3},
        "scaffold": {},
        "scaffold_m": {"exact": False},
        "scaffold_m exact": {"name": "scaffold_m", "exact": True},
        "feddyn": {"mu": 0.1},
        "adabest": {"mu": 0.05, "beta": 0.8},
        "mime sgd": {"name": "mime", "base": "sgd"},
        "mime momentum": {"name": "mime", "base": "momentum", "beta1": 0.8},
        "mime adam": {"name": "mime", "base": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-2},
        "mimelite sgd": {"name": "mimelite", "base": "sgd"},
        "mimelite momentum": {"name": "mimelite", "base": "momentum", "beta1": 0.8},
        "mimelite adam": {"name": "mimelite", "base": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-2},
        "feddane": {"mu": 0.1},
    }
    made = {}
    for name, keys in corrections.items():
        # scaffold_m wants as many local steps of every client.
        settings = {"client.correction": {"name": name, **keys}, "rounds": 4, "model": WIDE, "client.local_steps": 3}
        made[f"correction {name}"] = Case(settings)
        made[f"correction {name} by autograd"] = Case({**settings, "engine.trainer": "one_by_one"})
    made["correction mime examples"] = Case(
        {"client.correction": {"name": "mime", "base": "momentum"}, "server.weighting": "examples"}
    )
    made["correction fedpd"] = Case({"client.correction": {"name": "fedpd", "mu": 0.1}, "cohort.size": 12})
    for trainer in ("one_by_one", "auto"):
        made[f"posterior {trainer}"] = Case(
            {"client.posterior": {"rho": 0.5}, "client.epochs": 4, "model": WIDE, "engine.trainer": trainer}
        )
    for keys in (
        {"penalty": "l1", "strength": 0.05, "groups": ["*"]},
        {"penalty": "l2_ball", "radius": 0.5, "groups": ["*.weight"]},
    ):
        made[f"composite {keys['penalty']}"] = Case({"composite": keys, "client.epochs": 2, "model": WIDE})
    made["posterior steps"] = Case(
        {"client.posterior": {"burn_in": 0, "sample": 2, "from_round": 1}, "client.local_steps": 7}
    )
    made["correction scaffold momentum"] = Case(
        {"client.correction.name": "scaffold", **_client(lr=0.1, momentum=0.5), "client.max_grad_norm": 1.0}
    )
    made["correction scaffold glad clip"] = Case(
        {"client.correction.name": "scaffold", "server.glad": {}, "server.clip.fixed": 0.5, "model": WIDE}
    )
    optimizers: dict[str, dict[str, Any]] = {
        "sgd": {"lr": 0.1},
        "sgd momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        "adam": {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.01},
        "adamw": {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1},
        "adagrad": {"lr": 0.05, "eps": 1e-8, "v0": 0.1, "weight_decay": 0.01},
    }
    for name, keys in optimizers.items():
        optimizer = {"name": name.split()[0], **keys}
        made[f"client {name}"] = Case({"client.optimizer": optimizer, "client.epochs": 2, "model": WIDE})
        made[f"client {name} prox"] = Case(
            {"client.optimizer": optimizer, "client.correction": {"name": "prox", "mu": 0.2}}
        )
    parts: dict[str, dict[str, Any]] = {
        "work epochs": {"client.epochs": 3, "client.max_local_steps": 5},
        "work steps": {"client.local_steps": 7},
        "work drawn each round": {"client.epochs": {"low": 1, "high": 3, "per": "round"}},
        "work drawn each run": {"client.local_steps": {"low": 2, "high": 9, "per": "run"}},
        "work schedule": {"client.schedule": [{"round": 1, "epochs": 2}, {"round": 2, "local_steps": 1}]},
        "work batch schedule": {
            "client.schedule": [{"round": 1, "batch_size": 7}, {"round": 2, "batch_size": "full", "epochs": 2}],
            "rounds": 4,
        },
        "work full batch": {"client.batch_size": "full", "client.epochs": 2, "model": WIDE},
        "work lr_decay": {"client.lr_decay": 0.5},
        "work not shuffled": {"client.shuffle": False, "client.epochs": 2},
        "work filled": {"client.fill_last_batch": True, "client.epochs": 2},
        "work short left out": {"client.drop_last": True, "client.epochs": 2},
        "work clipped": {"client.max_grad_norm": 0.5, "model": WIDE},
        "work departures": {"client.mid_round_dropout": 0.4, "rounds": 5},
        "work departures scaffold": {
            "client.mid_round_dropout": 0.4,
            "client.correction.name": "scaffold",
            "rounds": 5,
        },
        "evaluation splits": {"evaluation.split": ["train", "test", "validation"], "evaluation.every": 1},
        "evaluation sampled": {
            "evaluation.split": "train",
            "evaluation.clients": 4,
            "evaluation.percentiles": [10, 50],
        },
        "evaluation examples": {"evaluation.split": "train", "evaluation.clients": "all", "evaluation.examples": 7},
        "evaluation all": {"evaluation.split": "train", "evaluation.clients": "all"},
        "fine_tuning": {"evaluation.fine_tuning": {"steps": 3, "lr": 0.05}, "model": WIDE},
        "fine_tuning on test": {"evaluation.fine_tuning": {"steps": 2, "split": "test"}, "evaluation.every": 1},
    }
    return made | {name: Case(settings) for name, settings in parts.items()}


def _cohorts() -> dict[str, Case]:
    rejected = {"name": "scale", "clients": ["c1", "c5"], "factor": 1e38}
    lists = [["c1", "c2"], ["c3"], ["c4", "c5", "c6"]]
    lognormal = {"name": "lognormal", "median": 2e5, "sigma": 0.5, "per": "run"}
    uniform = {"name": "uniform", "low": 1.0, "high": 9.0, "per": "round"}
    exponential = {"name": "exponential", "mean": 20.0, "per": "round"}
    round_time = {"name": "round_time", "seconds_per_example": 0.01}
    parts: dict[str, dict[str, Any]] = {
        "sampler uniform": {"cohort.sampler.name": "uniform", "cohort.seed": 8},
        "sampler md": {"cohort.sampler.name": "md"},
        "sampler adafl": {"cohort.sampler": {"name": "adafl", "alpha": 0.5}, "rounds": 5},
        "sampler adafl kept total": {"cohort.sampler": {"name": "adafl", "keep_total": True}, "rounds": 5},
        "sampler bernoulli": {"cohort.sampler": {"name": "bernoulli", "probability": 0.4}, "cohort.size": None},
        "sampler availability": {
            "cohort.sampler": {"name": "availability", "day": 6.0, "open": 0.8, "spread": 0.5},
            "cohort.size": 2,
        },
        "sampler power_of_choice": {"cohort.sampler": {"name": "power_of_choice", "candidates": 8}},
        "fairness qffl": {"server.fairness": {"name": "qffl", "q": 1.5}},
        "fairness afl": {"server.fairness": {"name": "afl", "lr": 0.05}, "cohort.size": 12},
        "fairness tilt": {"server.fairness": {"name": "tilt", "t": 2.0}},
        "fairness superquantile": {"server.fairness": {"name": "superquantile", "tail": 0.4}},
        "sampler replay": {"cohort.sampler": {"name": "replay", "cohorts": lists}, "cohort.size": None},
        "sampler replay over": {"cohort.sampler": {"name": "replay", "rounds": {"1": lists[0]}, "over.name": "adafl"}},
        "growth": {"cohort.growth": {"every": 1, "factor": 1.5, "max": 8}, "cohort.size": 3, "rounds": 5},
        "growth scaled": {
            "cohort.growth.every": 2,
            "cohort.size": 3,
            "server.lr_scaling": {"rule": "sqrt", "reference": 3},
            "rounds": 5,
        },
        "adversary scale": {"adversary": {"name": "scale", "clients": 0.3, "factor": -4.0}},
        "adversary rejected": {"adversary": rejected, "client.optimizer.lr": 1e3, "rounds": 4},
        "adversary sign_flip": {"adversary": {"name": "sign_flip", "clients": ["c1", "c2", "c3"]}},
        "adversary noise": {"adversary": {"name": "noise", "clients": 0.5, "std": 0.1}},
        "adversary label_flip": {"adversary": {"name": "label_flip", "clients": 0.5}},
        "adversary label_flip krum": {
            "adversary": {"name": "label_flip", "clients": ["c1", "c4"]},
            "server.aggregator": {"name": "krum", "f": 1},
        },
        "systems straggler": {"systems.time": {"name": "straggler", "alpha": 0.1, "lambda": 0.2}},
        "systems over-selection": {
            "systems": {"time": {"name": "straggler", "alpha": 0.1, "lambda": 1.0}, "over_selection": 1.6}
        },
        "systems deadline": {
            "systems": {"time": {**round_time, "overhead_s": exponential}, "deadline_s": 15.0, "min_reports": 2},
            "rounds": 5,
        },
        "systems round_time": {
            "systems.time": {
                **round_time,
                "download_bytes_per_s": lognormal,
                "upload_bytes_per_s": {**lognormal, "per": "round"},
                "slowdown": uniform,
                "overhead_s": {**exponential, "per": "run"},
                "server_s": 1.5,
            }
        },
        "systems session": {
            "systems": {"time": round_time, "session_s": {"name": "uniform", "low": 9.0, "high": 12.0, "per": "run"}},
            "rounds": 4,
        },
    }
    return {name: Case(settings) for name, settings in parts.items()}


def _personal() -> dict[str, Case]:
    """Models of the clients' own; groups of WIDE that stay at the client."""
    kinds: dict[str, dict[str, Any]] = {
        "ditto": {"name": "ditto", "lam": 0.5},
        "ditto epochs": {"name": "ditto", "lam": 2.0, "lr": 0.05, "epochs": 2},
        "ditto steps": {"name": "ditto", "lam": 0.0, "local_steps": 3},
        "apfl": {"name": "apfl", "alpha": 0.3},
        "split": {"name": "split", "local": ["fc3.*"]},
        "split rounds": {"name": "split", "local": ["fc3.*"], "local_epochs": 2, "lr": 0.1, "keep": False},
        "maml": {"name": "maml", "alpha": 0.1},
        "maml difference": {"name": "maml", "alpha": 0.1, "hessian": "difference", "delta": 0.01},
        "maml none": {"name": "maml", "alpha": 0.1, "hessian": "none"},
        "clusters": {"name": "clusters", "count": 2},
    }
    return {
        f"personal {name}": Case({"client.personalisation": {**kind, "split": "train"}, "model": WIDE})
        for name, kind in kinds.items()
    }


def _ends() -> dict[str, Case]:
    """Runs that know when to stop, and what their best model is."""
    accuracy, loss = "eval/test/accuracy", "eval/test/loss"
    stops: dict[str, dict[str, Any]] = {
        "target": {"target": {"metric": accuracy, "value": 0.4, "last": 2, "maximise": True}},
        "patience": {"patience": {"metric": loss, "evaluations": 2, "min_change": 0.01, "maximise": False}},
        "budget": {"budget": {"rounds": 6, "client_updates": 17, "bytes": 10_000_000, "wall_s": 600.0}},
        "simulated": {"budget": {"simulated_s": 60.0}},
        "divergence": {"divergence": {"metric": "loss", "above": 50.0}},
    }
    made = {f"stop {name}": Case({"stop": keys, "rounds": 12}) for name, keys in stops.items()}
    time = {"name": "round_time", "seconds_per_example": 0.5}
    made["stop simulated"] = Case({"stop": stops["simulated"], "rounds": 12, "systems.time": time})
    made["best"] = Case({"checkpoint.best": {"metric": accuracy}, "rounds": 5}, kind="run")
    return made


def _trainers() -> dict[str, Case]:
    made = {}
    for trainer in ("one_by_one", "recorded", "fused", "stacked", "vmap", "compiled"):
        for dtype, precision in (("float32", "float32"), ("float64", "float32"), ("float32", "bf16")):
            if trainer == "compiled" and precision == "bf16":
                continue
            engine = {"engine.trainer": trainer, "engine.dtype": dtype, "engine.precision": precision}
            word = precision if precision == "bf16" else dtype
            made[f"trainer {trainer} {word}"] = Case({**engine, "model": WIDE, "client.epochs": 2})
    made["trainer auto float64"] = Case({"engine.trainer": "auto", "engine.dtype": "float64", "model": WIDE})
    for trainer in ("one_by_one", "recorded", "fused", "stacked", "vmap"):
        cnn: dict[str, Any] = {"engine.trainer": trainer, "rounds": 2}
        made[f"trainer {trainer} cnn"] = Case({**cnn, "model.name": "cnn_mcmahan", "cohort.size": 3}, "pixels")
        made[f"trainer {trainer} adam prox"] = Case(
            {
                **cnn,
                "client.optimizer": {"name": "adam", "lr": 0.01},
                "client.correction": {"name": "prox", "mu": 0.1},
            }
        )
    made["trainer vmap own module"] = Case({"engine.trainer": "vmap", "model": None}, own=OWN["module"])
    made["engine threads"] = Case({"engine.threads": 2, "model": WIDE})
    made["engine examples host"] = Case({"engine.examples": "host"})
    made["engine examples device"] = Case({"engine.examples": "device"})
    made["trainer one_by_one regression"] = Case({"engine.trainer": "one_by_one"}, "regression")
    made["trainer stacked regression"] = Case({"engine.trainer": "stacked", "client.optimizer.lr": 0.02}, "regression")
    return made


def _models() -> dict[str, Case]:
    few = {"rounds": 2, "cohort.size": 3, "client.max_local_steps": 2}
    once = {"rounds": 1, "cohort.size": 2, "client.max_local_steps": 1}
    lstm = {"embedding": 4, "hidden": 6}
    transformer = {"name": "transformer_word", "embedding": 4, "width": 8, "heads": 2, "hidden": 10, "layers": 2}
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "linear": ("vectors", {"model": {"name": "linear", "seed": 5}}),
        "mlp tanh": ("vectors", {"model": {"name": "mlp", "hidden": [6], "activation": "tanh"}}),
        "cnn": ("pixels", {"model.name": "cnn", **few}),
        "cnn_mcmahan": ("pixels", {"model.name": "cnn_mcmahan", **few}),
        "cnn_tutorial": ("large", {"model.name": "cnn_tutorial", "client.augment.name": "crop_flip_contrast", **few}),
        "resnet18_gn": ("colours", {"model": {"name": "resnet18_gn", "groups": 4}, **once}),
        "resnet56 batch": ("colours", {"model": {"name": "resnet56", "norm": "batch"}, **few}),
        "resnet56 group": ("colours", {"model": {"name": "resnet56", "norm": "group", "groups": 4}, **once}),
        "mobilenet_v2_gn": ("colours", {"model": {"name": "mobilenet_v2_gn", "groups": 4, "dropout": 0.1}, **once}),
        "lstm_char": ("texts", {"model": {"name": "lstm_char", "layers": 2, **lstm}}),
        "lstm_char keras": ("texts", {"model": {"name": "lstm_char", "initial": "keras", **lstm}}),
        "lstm_word": ("texts", {"model": {"name": "lstm_word", "layers": 1, "projection": True, **lstm}}),
        "lstm_word plain": ("texts", {"model": {"name": "lstm_word", "layers": 2, "projection": False, **lstm}}),
        "bilstm": ("labelled texts", {"model": {"name": "bilstm", "vocabulary": 9, **lstm}}),
        "bilstm last": (
            "labelled texts",
            {"model": {"name": "bilstm", "vocabulary": 9, "pooling": "last", "dropout": 0.2, **lstm}},
        ),
        "transformer_word": ("texts", {"model": {**transformer, "dropout": 0.2}}),
    }
    made = {f"model {name}": Case(settings, data) for name, (data, settings) in models.items()}
    made["augment flip_crop"] = Case(
        {"client.augment": {"name": "flip_crop", "probability": 0.7, "padding": 2}, "model.name": "cnn_mcmahan", **few},
        "pixels",
    )
    window = {"name": "crop_flip_contrast", "side": 6, "brightness": 0.1, "contrast_low": 0.5, "contrast_high": 1.5}
    made["augment crop_flip_contrast"] = Case({"client.augment": window, "client.epochs": 2}, "colours")
    made["own module"] = Case({"model": None}, own=OWN["module"])
    made["own loss"] = Case({"model": WIDE}, own=OWN["loss"])
    made["own module and loss"] = Case(
        {"model": None, "client.correction.name": "scaffold"}, own=OWN["module and loss"]
    )
    made["own params"] = Case({"model": None}, own=OWN["params"])
    own = {"name": "own", "label": "heavy ball", "lr": 0.5, "constants": {"rho": 0.8}}
    made["own server optimizer"] = Case(
        {"server.optimizer": own, "server.glad": {}, "model": WIDE}, own=OWN["optimizer"]
    )
    return made


def _own_parts() -> dict[str, Case]:
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


def _sources() -> dict[str, Case]:
    """Sources read the small files that the tests make of each; digits come with scikit-learn."""
    partitions: dict[str, dict[str, Any]] = {
        "iid": {"name": "iid"},
        "shards": {"name": "shards", "shards": 24},
        "dirichlet": {"name": "dirichlet", "alpha": 0.3},
        "dirichlet empirical": {"name": "dirichlet", "alpha": 0.3, "prior": "empirical"},
        "dirichlet_reassign": {"name": "dirichlet_reassign", "alpha": 0.3},
        "dirichlet_reassign uniform": {"name": "dirichlet_reassign", "alpha": 0.3, "prior": "uniform"},
        "dirichlet_reassign remaining": {"name": "dirichlet_reassign", "alpha": 0.01, "fill": "remaining"},
        "quantity": {"name": "quantity", "sigma": 0.7},
        "shuffled": {"name": "shuffled", "sizes_of": {"name": "dirichlet", "alpha": 0.3}},
    }
    few = {"rounds": 2, "client.max_local_steps": 2}
    made = {
        f"partition {name}": Case({"data": {"name": "digits", "clients": 12, "partition": partition}, **few}, None)
        for name, partition in partitions.items()
    }
    cut = {"clients": 4, "test_clients": "pooled"}
    char = {"model": {"name": "lstm_char", "embedding": 4, "hidden": 6, "layers": 1}}
    word = {"model": {"name": "lstm_word", "embedding": 4, "hidden": 6}}
    text = {"model": {"name": "bilstm", "embedding": 4, "hidden": 6}}
    words = {"name": "words", "vocabulary": 30, "length": 6}
    table = {"name": "arrow", "root": ".", "train": "train.parquet", "test": "test.parquet"}
    named = {
        "validation": "validation.parquet",
        "client": "who",
        "x": ["a", "b"],
        "y": "label",
        "classes": 5,
        "scale": 0.5,
    }
    sources: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "quadratic": (
            {
                "name": "quadratic",
                "clients": 8,
                "dimension": 3,
                "smoothness": 2.0,
                "convexity": 0.1,
                "spread": 0.5,
                "holdout": 0.25,
                "seed": 2,
            },
            {"model": {"name": "linear", "bias": False}, "client.local_steps": 3},
        ),
        "digits": ({"name": "digits", "clients": 12, "holdout": 0.25, "mix": 0.3, "seed": 4, **_dirichlet()}, {}),
        "digits examples": ({"name": "digits", "clients": 12, "holdout_examples": 0.2}, {}),
        "synthetic": (
            {"name": "synthetic", "clients": 9, "alpha": 0.5, "beta": 0.5, "max_examples": 60, "seed": 2},
            {},
        ),
        "synthetic iid": ({"name": "synthetic", "clients": 9, "iid": True, "sizes": 12, "holdout": 0.3}, {}),
        "synthetic examples": ({"name": "synthetic", "clients": 9, "sizes": 12, "holdout_examples": 0.3}, {}),
        "mnist": ({"name": "mnist", "test_clients": "partition", "clients": 6}, {}),
        "fashion_mnist": ({"name": "fashion_mnist", **cut}, {}),
        "emnist": ({"name": "emnist", "min_examples": 2, "max_examples": 5, "holdout": 0.25, "seed": 4}, {}),
        "emnist digits": ({"name": "emnist", "digits": True, "holdout_examples": 0.3}, {}),
        "emnist natural": ({"name": "emnist", "clients": 3, "partition": {"name": "natural"}}, {"cohort.size": 2}),
        "emnist dealt": (
            {"name": "emnist", "clients": 5, "partition": {"name": "iid"}, "mix": 0.5, "test_clients": "partition"},
            {},
        ),
        "emnist shuffled": (
            {
                "name": "emnist",
                "partition": {"name": "shuffled", "sizes_of": {"name": "natural"}},
                "test_clients": "pooled",
            },
            {},
        ),
        "emnist_idx": ({"name": "emnist_idx", "root": "idx/emnist", "split": "letters", **cut}, {}),
        "cifar10": ({"name": "cifar10", "crop": 24, "standardise": True, **cut}, {}),
        "cifar10 plain": ({"name": "cifar10", **cut}, {}),
        "cifar100 pachinko": (
            {"name": "cifar100", "clients": 4, "partition": {"name": "pachinko", "alpha": 0.5, "beta": 5.0}},
            {},
        ),
        "cifar100": ({"name": "cifar100", "labels": "coarse", "crop": 8, "standardise": True, "clients": 6}, {}),
        "cifar100 test clients": (
            {"name": "cifar100", "clients": 4, "partition": {"name": "pachinko"}, "test_clients": 5},
            {},
        ),
        "fed_cifar100": ({"name": "fed_cifar100", "crop": 24, "standardise": True}, {}),
        "fed_cifar100 coarse": ({"name": "fed_cifar100", "labels": "coarse", "mix": 0.5}, {}),
        "shakespeare": ({"name": "shakespeare", "form": "mcmahan", "min_lines": 3, "length": 9}, char),
        "shakespeare window": ({"name": "shakespeare", "example": "window", "min_lines": 3, "length": 9}, char),
        "shakespeare tff": ({"name": "shakespeare", "form": "tff", "length": 9}, char),
        "stackoverflow": ({"name": "stackoverflow", "vocabulary": 12, "length": 5}, word),
        "ag_news": ({"name": "ag_news", "tokens": words, "clients": 6}, text),
        "newsgroups": ({"name": "newsgroups", "headers": False, "quotes": False, "tokens": words, "clients": 6}, text),
        "newsgroups headers": ({"name": "newsgroups", "tokens": words, "clients": 6}, text),
        "leaf": ({"name": "leaf", "root": "leaf", "classes": 3}, {}),
        "gld": ({"name": "gld", "size": 8}, {}),
        "arrow": ({**table, "shape": [2, 3]}, {}),
        "arrow named": ({**table, **named}, {}),
    }
    settings = {"rounds": 2, "client.max_local_steps": 2, "cohort.size": 3}
    return made | {
        f"source {name}": Case({"data": data, **settings, **more}, None) for name, (data, more) in sources.items()
    }


def _dirichlet() -> dict[str, Any]:
    return {"partition": {"name": "dirichlet", "alpha": 1.0}}


def _kinds() -> dict[str, Case]:
    scaffold = {"client.correction.name": "scaffold", "checkpoint.every": 2, "checkpoint.keep": 1, "rounds": 5}
    adam = {"server.optimizer": {"name": "adam", "lr": 0.05}, "server.glad": {}, "model": WIDE, "rounds": 5}
    adafl = {"cohort.sampler.name": "adafl", "server.clip.initial": 0.4, "rounds": 5, "checkpoint.every": 2}
    grid = {"space": {"client.optimizer.lr": {"grid": [0.05, 0.2]}, "server.optimizer.lr": {"grid": [0.5, 1.0]}}}
    drawn = {
        "space": {"client.optimizer.lr": {"log": [0.01, 1.0]}},
        "sampler": {"name": "random"},
        "trials": 4,
        "final": 0,
    }
    alike = [{}, {"client.optimizer.lr": 0.05}, {"server.optimizer": MOMENTUM}]
    others = [{}, {"seed": 4}, {"cohort.size": 3}]
    return {
        "run": Case({**adam}, kind="run"),
        "run two phases": Case({"client.correction": {"name": "mime", "base": "adam"}}, kind="run"),
        "resume scaffold": Case(scaffold, kind="resume"),
        "resume adam": Case(adam, kind="resume"),
        "left and resumed": Case(adafl, kind="left"),
        "left and resumed scaffold": Case(scaffold, kind="left"),
        "trials": Case({"trials.count": 2, "trials.vary": ["model", "cohort"]}, kind="trials"),
        "trials of data": Case(
            {"trials": 2, "data": {"name": "synthetic", "clients": 9, "sizes": 12}, "rounds": 2}, None, "trials"
        ),
        "trials vary data": Case(
            {
                "trials": {"count": 2, "vary": ["data"]},
                "data": {"name": "digits", "clients": 9},
                "client.max_local_steps": 2,
            },
            None,
            "trials",
        ),
        "sweep": Case({}, kind="sweep", more={"cohort.size": [2, 5]}),
        "sweep of choices": Case(
            {"trials": 2}, kind="sweep", more={"server.optimizer": [{"name": "adam", "lr": 0.1}, MOMENTUM]}
        ),
        "runs in lockstep": Case({"model": WIDE, "rounds": 4}, kind="runs", more=alike),
        "runs in lockstep prox": Case(
            {"client.correction": {"name": "prox", "mu": 0.1}, "model": WIDE}, kind="runs", more=alike
        ),
        "runs in lockstep adam": Case({"client.optimizer": {"name": "adam", "lr": 0.01}}, kind="runs", more=alike[::2]),
        "runs apart": Case({"client.correction.name": "scaffold"}, kind="runs", more=others),
        "tune grid": Case({"rounds": 4}, kind="tune", more={**grid, "seeds": 2, "final": 1}),
        "tune random": Case({"rounds": 4}, kind="tune", more=drawn),
        "error of the cohort": Case({"cohort.size": 13}),
        "error of the loss": Case({}, own=OWN["wrong loss"]),
        "centralized": Case({"model": WIDE}, kind="centralized"),
    }


def _on_ray(local: Mapping[str, Case]) -> dict[str, Case]:
    names = [
        "server adam with glad",
        "aggregator median",
        "weighting ida clip",
        "correction scaffold",
        "correction mime adam",
        "diagnostics probe",
        "sampler adafl",
        "systems over-selection",
        "fine_tuning",
        "own module and loss",
        "own server optimizer",
        "own objective",
        "own correction",
        "own transforms",
        "own sampler that learns",
        "own aggregator of products",
        "model resnet56 batch",
        "resume scaffold",
        "trials",
        "runs in lockstep",
    ]
    return {
        f"on Ray: {name}": local[name]._replace(
            on_ray=True, kind="run" if local[name].kind == "rounds" else local[name].kind
        )
        for name in names
    }


def _compressed() -> dict[str, Case]:
    """Compression of updates, with and without error feedback, and of the model."""
    kinds: dict[str, dict[str, Any]] = {
        "quantise": {"name": "quantise", "levels": 3, "scope": "group"},
        "quantise rotated": {"name": "quantise", "levels": 1, "norm": "max", "rotate": True},
        "sign": {"name": "sign"},
        "top_k": {"name": "top_k", "fraction": 0.2},
        "random_k": {"name": "random_k", "fraction": 0.2, "scale": "unbiased"},
        "random_k least": {"name": "random_k", "fraction": 0.2, "scale": "least"},
        "eden": {"name": "eden", "bits": 2, "scale": "unbiased"},
        "eden least": {"name": "eden", "bits": 2, "scale": "least", "scope": "group"},
    }
    made = {}
    for place, (name, kind) in enumerate(kinds.items()):
        of = ("model", "change")[place % 2]
        made[f"compression {name}"] = Case({"client.compression": kind})
        made[f"compression {name} rest"] = Case({"client.compression": {**kind, "error_feedback": True}})
        made[f"compression {name} down"] = Case({"server.compression": {**kind, "of": of}})
    return made


def cases() -> dict[str, Case]:
    """Every case by its name, those on Ray last."""
    makers: list[Callable[[], dict[str, Case]]] = [
        _server, _clients, _personal, _cohorts, _ends, _trainers, _models, _own_parts, _sources, _kinds,
        _compressed,
    ]  # fmt: skip
    local = {name: case for make in makers for name, case in make().items()}
    return {**local, **_on_ray(local)}


def experiment(case: Case) -> raysim.Experiment:
    """The case's experiment, with the keys that this tree has."""
    table: dict[str, Any] = {}
    for key, value in {**BASE, **case.settings}.items():
        _put(table, key.split("."), value)
    engine = table.setdefault("engine", {})
    if "trainer" in engine:
        known = type(raysim.Experiment.model_validate({"cohort": {"size": 1}}).engine).model_fields
        engine[next(name for name in TRAINER if name in known)] = engine.pop("trainer")
    if case.on_ray:
        engine["workers"] = 2
    return raysim.Experiment.model_validate(table)


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        table = table.setdefault(name, {})
    if value is None:
        table.pop(path[-1], None)
    elif isinstance(value, Mapping):
        table[path[-1]] = {}
        for key, each in value.items():
            _put(table[path[-1]], str(key).split("."), each)
    else:
        table[path[-1]] = value
