"""Tries an objective on a client's first examples, before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raysim.client import dropout
from raysim.client.objective import LocalObjective, ObjectiveAt, Received, RoundAt
from raysim.client.trainers.watched_objective import check_losses
from raysim.config.global_draws import draws
from raysim.config.plain import shown
from raysim.errors import ModelError, within
from raysim.models.model import Model, Weights, bind


def check(
    objective: LocalObjective,
    model: Model,
    initial: Weights,
    examples: tuple[Tensor, Tensor],
    seed: int,
    id_of: Callable[[int], str],
) -> None:
    """Call the objective as a trainer does, at the first local step of the first round.

    Args:
        objective: see `LocalObjective`.
        model, initial: the model that a client receives.
        examples: x and y of the first examples.
        seed: the experiment's.
        id_of: returns a training client's id, by position.

    Raises:
        ModelError: it fails, returns other values than losses with a gradient, writes to its arguments, or draws from
            a global generator.
    """
    function, (x, y) = objective.function, examples
    try:
        inspect.signature(function).bind(None, x, y, None)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"objective= must be a function of (module, x, y, at), but {shown(function)} is not: {within(error)}."
        ) from error
    given, trained = initial.clone(), initial.clone()
    module = bind(model, trained, x.device).train()
    for layer in dropout.address(module, initial.params):
        layer.start(torch.zeros((), dtype=torch.int64, device=x.device))
    x, y = x.clone(), y.clone()
    at = ObjectiveAt(RoundAt(seed, 0, id_of), 0, 0, objective.constants, Received(model, given), x.device)
    with draws() as drew, _as_it_is(module, x) as written:
        before = [value._version for value in (x, y, given.params)]
        try:
            losses = function(module, x, y, at)
        except Exception as error:
            raise ModelError(
                f"objective= failed on a batch x of shape {tuple(x.shape)} and dtype {x.dtype}, y of shape "
                f"{tuple(y.shape)} and dtype {y.dtype}: {type(error).__name__}: {error}"
            ) from error
        drawn, after = drew(), [value._version for value in (x, y, given.params)]
    after[0] -= written()
    for name, old, new in zip(("x", "y", "at.broadcast"), before, after, strict=True):
        if old != new:
            raise ModelError(f"objective= must not write to {name}, but it did: work on a copy, {name}.clone().")
    if drawn:
        raise ModelError(
            "objective= drew from a global generator (of torch, NumPy or Python), whose draws differ from worker to "
            "worker: pass generator=at.generator to torch's functions."
        )
    try:
        check_losses(losses, len(y))
    except ValueError as error:
        raise ModelError(str(error)) from None
    params = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(losses.sum(), params, allow_unused=True) if losses.requires_grad else [None]
    if all(gradient is None for gradient in gradients):
        raise ModelError(
            "objective= returned losses that do not depend on the module's parameters, so they have no gradient."
        )


@contextmanager
def _as_it_is(module: nn.Module, x: Tensor) -> Iterator[Any]:
    """Exclude the module's own draws and writes to x; yields a function that returns the number of those writes."""
    states: list[tuple[Tensor, int]] = []
    written = 0

    def begin(*_: Any) -> None:
        states.append((torch.get_rng_state(), x._version))

    def end(*_: Any) -> None:
        nonlocal written
        state, version = states.pop()
        if not states:
            torch.set_rng_state(state)
            written += x._version - version

    handles = []
    for child in module.modules():
        handles += [child.register_forward_pre_hook(begin), child.register_forward_hook(end, always_call=True)]
    try:
        yield lambda: written
    finally:
        for handle in handles:
            handle.remove()
