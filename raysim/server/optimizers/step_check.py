"""Checks a server optimizer that a script or a package brings, before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raysim.config.own_generators import OwnGenerators
from raysim.config.own_part import OwnServerOptimizer
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition
from raysim.config.user_call import watched_call
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.probe import probe
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped

Own = OwnServerOptimizer
"""What a script's function is called with."""

LR = 0.1
"""Of the step that is tried."""


def check_step(optimizer: ServerOptimizer, params: Tensor, layout: Layout) -> None:
    """Take a step twice, before the first round. Writes are looked for in these steps only.

    Raises:
        ExperimentError: it raised, or wrote to what it was given, or the model or a vector of the state is not what it
            has to be.
    """
    # A copy: a step that writes in place must not change the first model before it is refused.
    params = params.clone()
    before: Any = optimizer.init(params)
    if not isinstance(before, Mapping):
        raise ExperimentError(
            f"server_optimizer=: init must return the state as a mapping from names to tensors, but returned "
            f"{shown(before)}."
        )
    # Numbers that differ: with zeros, what a step keeps outside of its state would not show.
    descent = Descent(layout, probe(layout, params), LR)
    arguments = {"params": params, "descent.g": descent.g, **before}
    versions = {name: value._version for name, value in arguments.items() if isinstance(value, Tensor)}
    stepped = watched_call(
        "server_optimizer=: step, tried before the first round,", optimizer.step, params, descent, before
    )
    if written := [name for name, version in versions.items() if arguments[name]._version != version]:
        raise ExperimentError(
            f"server_optimizer=: step must leave its arguments as they are and return new tensors, but wrote in "
            f"place to {' and '.join(written)}: torch.add(params, update) makes one, params.add_(update) writes."
        )
    check_form(stepped, params, before)
    own = OwnGenerators(optimizer)
    again = watched_call(
        "server_optimizer=: step, tried before the first round,", optimizer.step, params, descent, before
    )
    remedy = "Keep what changes in its state."
    check_repetition("server_optimizer=: step", stepped, again, ExperimentError, remedy, own.drew())
    check_gaps("server_optimizer=", stepped.params, layout)


def check_form(stepped: Any, params: Tensor, state: Mapping[str, Tensor]) -> None:
    """Refuse what is not a step from a model and its optimizer's state; asked after every step, it costs no arithmetic.

    Raises:
        ExperimentError: a vector is missing, or has another shape or dtype than before.
    """
    if not isinstance(stepped, Stepped) or not isinstance(stepped.state, Mapping):
        raise ExperimentError(
            f"server_optimizer=: step must return a raysim.server.Stepped(params, state) of a tensor and a mapping, "
            f"but returned {shown(stepped)}."
        )
    expected = {"params": params, **state}
    after = {"params": stepped.params, **stepped.state}
    if missing := [name for name in expected if not isinstance(after.get(name), Tensor)]:
        raise ExperimentError(
            f"A step of the server optimizer must return {', '.join(expected)}, but left out {missing}."
        )
    for name, vector in after.items():
        like = expected.get(name)
        if like is None or vector.shape != like.shape or vector.dtype != like.dtype:
            raise ExperimentError(
                f"A step of the server optimizer must return what it was given, but {name!r} came back as "
                f"{_form(vector)} and was {_form(like)}."
            )


def check_gaps(who: str, params: Tensor, layout: Layout) -> None:
    """Refuse a stepped model with numbers between its parameters, which norms and products would count.

    Raises:
        ExperimentError: says how to make a vector.
    """
    # A model that is not finite has diverged, which its caller says.
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in layout.views(params).values())
    if finite and not layout.has_zero_gaps(params):
        raise ExperimentError(
            f"A step of {who} must leave zeros between the parameters of a flat vector, but the model that it returned "
            f"has other numbers there: add vectors, or what layout.map(function, vector) makes."
        )


def _form(vector: Tensor | None) -> str:
    return "nothing" if vector is None else f"{vector.dtype} of shape {tuple(vector.shape)}"
