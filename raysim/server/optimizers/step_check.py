"""Checks a server optimizer that a script or a package brings, before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raysim.config.form import has_form, is_plain, kept_all
from raysim.config.own_figures import own_figures
from raysim.config.own_generators import OwnGenerators
from raysim.config.own_part import OwnServerOptimizer
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition, copied
from raysim.config.user_call import watched_call
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.probe import probe
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped

Own = OwnServerOptimizer
"""What a script's function is called with."""

LR = 0.1
"""Of the step that is tried."""


def check_step(optimizer: ServerOptimizer, title: str, params: Tensor, layout: Layout) -> None:
    """Take a step twice, before the first round. Writes are looked for in these steps only.

    `title` is the optimizer's name in messages.

    Raises:
        ExperimentError: it raised, or wrote to what it was given, or the model or a vector of the state is not what it
            has to be.
    """
    # A copy: a step that writes in place must not change the first model before it is refused.
    params = params.clone()
    returned: Any = optimizer.init(params)
    check_state(title, returned)
    before = kept_all(returned)
    # Numbers that differ: with zeros, what a step keeps outside of its state would not show.
    descent = Descent(layout, probe(layout, params), LR)
    arguments = {"params": params, "descent.g": descent.g, **before}
    versions = {name: value._version for name, value in arguments.items() if isinstance(value, Tensor)}
    stepped = watched_call(f"{title}: step, tried before the first round,", optimizer.step, params, descent, before)
    if written := [name for name, version in versions.items() if arguments[name]._version != version]:
        raise ExperimentError(
            f"{title}: step must leave its arguments as they are and return new tensors, but wrote in "
            f"place to {' and '.join(written)}: torch.add(params, update) makes one, params.add_(update) writes."
        )
    check_form(title, stepped, params, before)
    stepped, own = copied(stepped), OwnGenerators(optimizer)
    again = watched_call(f"{title}: step, tried before the first round,", optimizer.step, params, descent, before)
    remedy = "Keep what changes in its state."
    check_repetition(f"{title}: step", stepped, again, ExperimentError, remedy, own.drew())
    check_gaps(title, stepped.params, layout)


def check_state(title: str, state: Any) -> None:
    """Refuse a state that files cannot hold: it is checkpointed.

    Raises:
        ExperimentError: it is no mapping from names to dense tensors on the CPU.
    """
    requirement = f"{title}: init must return the state as a mapping from names to tensors"
    if not isinstance(state, Mapping):
        raise ExperimentError(f"{requirement}, but returned {shown(state)}.")
    for name, vector in state.items():
        if not isinstance(name, str) or not isinstance(vector, Tensor) or not is_plain(vector):
            raise ExperimentError(f"{requirement}, dense and on the CPU, but {shown(name)} is {shown(vector)}.")


def check_form(title: str, stepped: Any, params: Tensor, state: Mapping[str, Tensor]) -> None:
    """Refuse what is not a step from a model and its optimizer's state; asked after every step, it costs no arithmetic.

    Raises:
        ExperimentError: a vector is missing, or has another shape, dtype, layout or device than before.
    """
    if not isinstance(stepped, Stepped) or not isinstance(stepped.state, Mapping):
        raise ExperimentError(
            f"{title}: step must return a raysim.server.Stepped(params, state) of a tensor and a mapping, "
            f"but returned {shown(stepped)}."
        )
    expected = {"params": params, **state}
    after = {"params": stepped.params, **stepped.state}
    if missing := [name for name in expected if not isinstance(after.get(name), Tensor)]:
        raise ExperimentError(f"{title}: step must return {', '.join(expected)}, but left out {missing}.")
    own_figures(f"{title}: step", stepped.metrics)
    for name, vector in after.items():
        like = expected.get(name)
        if like is None or not has_form(vector, like):
            raise ExperimentError(
                f"{title}: step must return what it was given, but {name!r} came back as "
                f"{shown(vector)} and was {'nothing' if like is None else shown(like)}."
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
            f"{who}: step must leave zeros between the parameters of a flat vector, but the model that it returned "
            f"has other numbers there: add vectors, or what layout.map(function, vector) makes."
        )
