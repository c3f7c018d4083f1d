"""Checks a client optimizer that a script or a package brings, before the first round: it takes a step or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, State
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.probe import PURE, called, check_rows, tried, unlike_rows

LR = 0.1


def check_step(
    optimizer: ClientOptimizer,
    title: str,
    params: Tensor,
    layout: Layout,
    rows: bool,
    start: Mapping[str, Tensor] | None = None,
) -> None:
    """Take two steps of one client, and where clients are trained together, of a stack.

    Args:
        optimizer: the pair of functions.
        title: how messages name it.
        params: of one client.
        layout: where its parameters lie.
        rows: clients are trained together.
        start: the state to start from, (P,) each; None: as `init` makes it.

    Raises:
        ExperimentError: the state is not what it has to be, `affine` is not what `step` does, or a row of a stack
            depends on another.
    """
    stack = unlike_rows(layout, params)
    alone = [_stepped(optimizer, title, row, layout, start) for row in (stack if rows else stack[:1])]
    own = OwnGenerators(optimizer)
    again = _stepped(optimizer, title, stack[0], layout, start)
    check_repetition(f"{title}: step", alone[0], again, ExperimentError, PURE, own.drew())
    if optimizer.affine is not None:
        _check_affine(optimizer, title, stack[0], alone[0], start)
    if not rows:
        return
    together = _stepped(optimizer, title, stack, layout, start)
    check_rows(title, "step", together, alone, stack)


def _check_affine(
    optimizer: ClientOptimizer, title: str, params: Tensor, stepped: Tensor, start: Mapping[str, Tensor] | None
) -> None:
    """Take the two steps of `_stepped` by `affine`."""
    assert optimizer.affine is not None
    factors = tried(f"{title}: affine", optimizer.affine, optimizer.init(params) if start is None else start)
    share, constant = factors
    expected = params.clone()
    for gradient in (params * 0.5, params.square()):
        expected -= LR * (share * gradient + (0 if constant is None else constant))
    if not torch.allclose(stepped, expected, rtol=1e-3, atol=1e-5):
        raise ExperimentError(
            f"{title}: affine must return share and constant of every step, y <- y - lr (share g + constant), but step "
            f"does something else: leave affine out."
        )


def _stepped(
    optimizer: ClientOptimizer, title: str, params: Tensor, layout: Layout, start: Mapping[str, Tensor] | None
) -> Tensor:
    """The weights after two steps, with a state that was checked."""
    params = params.clone()
    state: State = {} if start is None else {name: value.expand(params.shape) for name, value in start.items()}
    if start is None:
        state = tried(f"{title}: init", optimizer.init, params)
        _check_init(f"{title}: init", state, params)
    # Of other directions: a step that normalises would take the one back with the other.
    for gradient in (params * 0.5, params.square()):
        _step(optimizer, f"{title}: step", params, gradient, state)
    if not layout.has_zero_gaps(params):
        raise ExperimentError(f"{title}: step must leave zeros between the parameters of a flat vector as they are.")
    return params


def _check_init(title: str, state: Any, params: Tensor) -> None:
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ExperimentError(f"{title} must return a dict from names to tensors, but returned {shown(state)}.")
    lead = params.shape[:-1]
    for name, value in state.items():
        if value.is_nested or value.device.type == "meta":
            raise ExperimentError(f"{title} must return tensors with values, but {shown(name)} is {shown(value)}.")
        if value.shape[: len(lead)] != lead:
            raise ExperimentError(
                f"{title} must return a row of {name!r} for each row of params, {shown(params)}, but returned "
                f"{shown(value)}: torch.zeros_like(params) has them."
            )
    _check_memory(title, state, params)


def _check_memory(title: str, state: State, params: Tensor) -> None:
    """Refuse vectors that follow what `step` writes to params or to another vector."""
    seen: dict[int, str] = {}
    for name, value in state.items():
        if not value.numel() or value.layout != torch.strided:
            continue
        of_params = value.untyped_storage().data_ptr() == params.untyped_storage().data_ptr()
        if of_params or value.data_ptr() in seen:
            other = "params" if of_params else repr(seen[value.data_ptr()])
            raise ExperimentError(
                f"{title} must return vectors with memory of their own, but {name!r} has that of {other}, so each "
                f"write to the one would change the other: clone() makes a copy."
            )
        seen[value.data_ptr()] = name


def _step(optimizer: ClientOptimizer, title: str, params: Tensor, gradient: Tensor, state: State) -> None:
    tensors, before = dict(state), [(value.shape, value.dtype) for value in state.values()]
    returned = called(title, optimizer.step, params, gradient, state, LR, writes=("argument",))
    # A lambda that writes in place returns what it wrote to.
    if returned is not None and returned is not params:
        raise ExperimentError(
            f"{title} must write to params and state in place and return nothing, but returned {shown(returned)}: "
            f"params.copy_(new) writes."
        )
    if list(state) != list(tensors) or any(state[name] is not value for name, value in tensors.items()):
        raise ExperimentError(
            f"{title} must write to the tensors of state in place, but put others there: value.copy_(new) writes."
        )
    if before != [(value.shape, value.dtype) for value in state.values()]:
        raise ExperimentError(f"{title} must leave the shapes and dtypes of state as they are.")
