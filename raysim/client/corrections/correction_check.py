"""Checks a correction of a script or a package: calls each function, before the first round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from raysim.client.corrections.correction import (
    ClientEnd,
    ClientHalf,
    ClientStart,
    Correction,
    LocalGradient,
    LocalPoint,
    LocalWork,
    ServerHalf,
    ServerResult,
    ServerStepped,
    Vectors,
)
from raysim.client.optimizers.step_check import check_step
from raysim.config.form import has_values
from raysim.config.own_figures import own_figures
from raysim.config.plain import shown
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.probe import called, check_rows, check_vector, check_vectors, probe, tried, unlike_rows

LR = 0.1


def check(correction: Correction, title: str, params: Tensor, layout: Layout, rows: bool, plain_sgd: bool) -> None:
    """Call every function of the record with vectors of the model's size.

    Args:
        correction: the record.
        title: its name in messages.
        params: the initial model.
        layout: of its parameters.
        rows: clients are trained together.
        plain_sgd: see `ClientHalf.sums`.

    Raises:
        ExperimentError: a function raises, writes to an argument, or returns an invalid value; the error names it.
    """
    exchange, half = correction.exchange, correction.client
    if exchange.sums_changes and half.after is None:
        raise ExperimentError(
            f"{title}: Exchange.sums_changes sums what `after` changes, but ClientHalf.after is None."
        )
    if half.vectors < 1 or (exchange.sums_changes and half.vectors > 1):
        raise ExperimentError(
            f"{title}: ClientHalf.vectors must be at least 1, and 1 with Exchange.sums_changes, but is {half.vectors}."
        )
    like = probe(layout, params)
    mean = like if exchange.full_gradients else None
    state = tried(f"{title}: ServerHalf.init", correction.server.init, like.clone())
    _check_names(f"{title}: ServerHalf.init", state)
    down = tried(f"{title}: Exchange.down", exchange.down, state, mean)
    _check_names(f"{title}: Exchange.down", down)
    check_vectors(f"{title}: Exchange.down", "vectors", down, dict.fromkeys(down, like), layout)
    _check_client(half, title, down, like, layout, rows, plain_sgd)
    _check_server(correction, title, state, like, layout, mean)


def check_pull(title: str, pull: object) -> None:
    """Refuse a pull that is not a finite number: the choice of a trainer depends on it already."""
    if not isinstance(pull, Real) or not math.isfinite(pull):
        raise ExperimentError(f"{title}: ClientHalf.pull must be a finite number, but is {shown(pull)}.")


def _check_client(
    half: ClientHalf, title: str, down: Vectors, like: Tensor, layout: Layout, rows: bool, plain_sgd: bool
) -> None:
    own = like * 0.3 if half.own_gradient else None
    several = like if half.vectors == 1 else like.expand(half.vectors, -1)
    state = several * 0.5 if half.after is not None else like.new_zeros(0)
    if half.init is not None:
        vector = tried(f"{title}: ClientHalf.init", half.init, like.clone())
        check_vector(f"{title}: ClientHalf.init", "the state", vector, several, layout)
    begins = ClientStart(down, state, own, layout, like)
    for name, function in (("offset", half.offset), ("begin", half.begin)):
        if function is not None:
            vector = tried(f"{title}: ClientHalf.{name}", function, begins)
            check_vector(f"{title}: ClientHalf.{name}", "a vector", vector, like, layout)
    gradient = like * 0.3 if half.sums(plain_sgd) else None
    samples = None
    if half.windows is not None:
        tried(f"{title}: ClientHalf.windows", half.windows, LocalWork(0, 2, 1))
        samples = probe(layout, like, rows=2)
    ended = ClientEnd(down, state, like * 0.7, 1, LR, 1, gradient, layout, like, samples)
    if half.upload is not None:
        vector = tried(f"{title}: ClientHalf.upload", half.upload, ended)
        check_vector(f"{title}: ClientHalf.upload", "a vector", vector, like, layout)
    if half.after is not None:
        vector = tried(f"{title}: ClientHalf.after", half.after, ended)
        check_vector(f"{title}: ClientHalf.after", "the state", vector, several, layout)
    _check_steps(half, title, down, like, layout, rows)
    start = None
    if half.start is not None:
        start = tried(f"{title}: ClientHalf.start", half.start, down)
        _check_names(f"{title}: ClientHalf.start", start)
        check_vectors(f"{title}: ClientHalf.start", "state", start, dict.fromkeys(start, like), layout)
    if half.optimizer is not None:
        check_step(half.optimizer, f"{title}: ClientHalf.optimizer", like, layout, rows, start)


def _check_steps(half: ClientHalf, title: str, down: Vectors, like: Tensor, layout: Layout, rows: bool) -> None:
    """What is called at every local step, of one client, and where clients are trained together, of a stack."""
    stack = unlike_rows(layout, like)
    if half.bend is not None:
        bend, name = half.bend, f"{title}: ClientHalf.bend"

        def bent(gradient: Tensor) -> Tensor:
            made: Tensor = tried(name, bend, LocalGradient(gradient, gradient * 0.5, like, down, layout))
            check_vector(name, "a gradient", made, gradient, layout)
            return made

        alone = [bent(row) for row in stack]
        if rows:
            check_rows(name, "bend", bent(stack), alone, torch.zeros_like(stack))
    if half.point is not None:
        point, name = half.point, f"{title}: ClientHalf.point"

        def moved(iterate: Tensor) -> Tensor:
            made: Tensor = tried(name, point, LocalPoint(iterate, 1, LR, down, layout))
            check_vector(name, "a model", made, iterate, layout)
            return made

        alone = [moved(row) for row in stack]
        if rows:
            check_rows(name, "map", moved(stack), alone, torch.zeros_like(stack))


def _check_server(
    correction: Correction, title: str, state: Vectors, like: Tensor, layout: Layout, mean: Tensor | None
) -> None:
    server: ServerHalf = correction.server
    if server.average is not None and server.average not in state:
        raise ExperimentError(
            f"{title}: ServerHalf.average must name a vector of the server's state, {sorted(state)}, but is "
            f"{server.average!r}."
        )
    if server.origin is not None and (server.origin not in state or server.settle is None):
        raise ExperimentError(
            f"{title}: ServerHalf.origin must name a vector of the server's state, {sorted(state)}, which "
            f"ServerHalf.settle makes anew, but is {server.origin!r}."
        )
    if server.figures is not None:
        what = f"{title}: ServerHalf.figures, tried before the first round,"
        own_figures(what, called(what, server.figures, like.clone(), layout))
    if server.settle is None:
        return
    changes = like * 0.3 if correction.exchange.sums_changes else like.new_zeros(0)
    stepped = ServerStepped(state, like * 0.7, like * 0.5, 1, 2, LR, 1.0, changes, mean, layout, 1.0, LR)
    settled = tried(f"{title}: ServerHalf.settle", server.settle, stepped)
    if not isinstance(settled, ServerResult):
        raise ExperimentError(
            f"{title}: ServerHalf.settle must return a raysim.ServerResult, but returned {shown(settled)}."
        )
    check_vector(f"{title}: ServerHalf.settle", "params", settled.params, like, layout)
    check_vectors(f"{title}: ServerHalf.settle", "state", settled.state, state, layout)


def _check_names(title: str, returned: Any) -> None:
    if not isinstance(returned, Mapping) or not all(isinstance(value, Tensor) for value in returned.values()):
        raise ExperimentError(f"{title} must return a mapping from names to tensors, but returned {shown(returned)}.")
    for name, value in returned.items():
        # The functions that get it next are watched for writes, which takes numbers to compare.
        if not has_values(value):
            raise ExperimentError(
                f"{title} must return dense tensors with values, but {shown(name)} is {shown(value)}."
            )
