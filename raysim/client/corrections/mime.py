"""Mime and MimeLite: clients apply the server's optimizer, its state s frozen in the round.

local step   y <- y - lr U(g, s);  g = grad(y; B) - grad(x; B) + c (mime), grad(y; B) (mimelite)
server       s <- V(c, s), c = mean over the cohort of full local gradients at x; the model moves as if uncorrected

base         U                                               V
sgd          g                                               -
momentum     b1 m + (1 - b1) g                               m <- b1 m + (1 - b1) c
adam         (b1 m + (1 - b1) g) / (sqrt(v) + eps)           m likewise; v <- b2 v + (1 - b2) c^2

State, of the server alone: m and v, start at 0. No bias correction.

c is weighted as the clients' updates are, and taken in a pass before local training, in training mode. grad(x; B) has
the masks and draws of grad(y; B). Clipping and weight decay act on g.

Source: Karimireddy et al. (2021), algorithm 1; docs/algorithms.md section 3. Departure: v as it was before the round,
where the paper leaves open whether V comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from raysim.client.corrections.correction import (
    ClientHalf,
    Correction,
    Exchange,
    Requires,
    ServerHalf,
    ServerResult,
    ServerStepped,
    Vectors,
)
from raysim.client.optimizers.optimizer import ClientOptimizer, Rate, State, descend
from raysim.config.section import Section
from raysim.config.values import Epsilon

Base = Literal["sgd", "momentum", "adam"]
Beta = Annotated[float, Field(ge=0, lt=1)]
_KEYS = MappingProxyType({"sgd": (), "momentum": ("beta1",), "adam": ("beta1", "beta2", "eps")})
_DEFAULTS = MappingProxyType({"beta1": 0.9, "beta2": 0.99, "eps": 1e-3})


class MimeBase(BaseModel):
    """Keys of the server optimizer that clients apply."""

    base: Base = Field("momentum", description="Server optimizer that clients apply.")
    beta1: Beta | None = Field(None, description="Decay of the first moment, for momentum and adam. Absent: 0.9.")
    beta2: Beta | None = Field(None, description="Decay of the second moment, for adam. Absent: 0.99.")
    eps: Epsilon | None = Field(None, description="Added to the root, for adam. Absent: 1e-3.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """The record says every constant of its base."""
        if not isinstance(given, Mapping):
            return given
        base = given.get("base", "momentum")
        keys = _KEYS.get(base, ()) if isinstance(base, str) else ()
        return {**given, **{key: _DEFAULTS[key] for key in keys if given.get(key) is None}}

    @model_validator(mode="after")
    def _keys_of_the_base(self) -> MimeBase:
        for key in _DEFAULTS:
            if getattr(self, key) is not None and key not in _KEYS[self.base]:
                has = ", ".join(_KEYS[self.base]) or "no constants"
                raise ValueError(f"base = {self.base!r} has {has}, but got {key} = {getattr(self, key)}: remove it")
        return self


class Mime(MimeBase, Section):
    """Mime: the gradient at x is taken off, and the cohort's mean put in its place."""

    name: Literal["mime"] = "mime"


class MimeLite(MimeBase, Section):
    """MimeLite: Mime without the second gradient."""

    name: Literal["mimelite"] = "mimelite"


def make(section: Mime | MimeLite) -> Correction:
    """Close the functions over the base and its constants; those it has none of are never read.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(Mime(base="sgd"), x=4.0, num_rounds=1)  # c = 6, of -4 and 16; y = 1, then -0.5; 1, then 1
    [0.25]
    >>> two_clients(MimeLite(beta1=0.5), x=8.0, local_steps=1)  # U = 0, 12, m = 6; then U = 1.5, 12
    [5.0, 1.625]
    >>> section = MimeLite(base="adam", beta1=0, beta2=0.75, eps=1)
    >>> two_clients(section, x=4.0, local_steps=1)  # U = -4, 16, v = 9; then U = -7 / 4, 10 / 4
    [1.0, 0.8125]
    """
    b1, b2, eps = section.beta1 or 0.0, section.beta2 or 0.0, section.eps or 0.0
    lite = isinstance(section, MimeLite)
    learns = not lite or section.base != "sgd"

    def init(params: Tensor) -> Vectors:
        return {name: torch.zeros_like(params) for name in {"sgd": "", "momentum": "m", "adam": "mv"}[section.base]}

    def down(state: Vectors, gradient: Tensor | None) -> Vectors:
        if lite:
            return {**state}
        assert gradient is not None
        return {**state, "c": gradient}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        if section.base != "sgd":
            gradient.mul_(1 - b1).add_(state["m"], alpha=b1)
        if section.base == "adam":
            gradient.div_(state["v"].sqrt().add_(eps))
        descend(params, gradient, lr)

    def affine(state: Mapping[str, Tensor]) -> tuple[float, Tensor | None]:
        return (1 - b1, state["m"] * b1) if section.base == "momentum" else (1.0, None)

    def settle(stepped: ServerStepped) -> ServerResult:
        c, after = stepped.gradient, dict(stepped.state)
        assert c is not None
        if "m" in after:
            after["m"] = (after["m"] * b1).add_(c, alpha=1 - b1)
        if "v" in after:
            after["v"] = (after["v"] * b2).addcmul_(c, c, value=1 - b2)
        return ServerResult(stepped.params, after)

    return Correction(
        ClientHalf(
            offset=None if lite else lambda begins: begins.received["c"],
            anchored=not lite,
            optimizer=ClientOptimizer(lambda params: {}, step, affine=None if section.base == "adam" else affine),
            start=lambda received: {name: vector for name, vector in received.items() if name != "c"},
        ),
        ServerHalf(init, settle if learns else None),
        # MimeLite over sgd has nothing that a full gradient would move: it is FedAvg, at FedAvg's cost.
        Exchange(down=down, full_gradients=learns),
        Requires(server_sgd=True, weightings=("uniform", "examples"), aggregators=("mean",)),
    )
