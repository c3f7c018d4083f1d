"""Tries an objective on a client's first examples, before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raysim.client import dropout
from raysim.client.objective import LocalObjective, ObjectiveAt, Received, RoundAt
from raysim.config.global_draws import draws
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition
from raysim.config.user_call import raised
from raysim.errors import ModelError, within
from raysim.models.model import Model, Weights, bind
from raysim.models.task import check_losses


class Trial(NamedTuple):
    """A call of an objective as a trainer makes it, at the first local step of the first round.

    objective: see `LocalObjective`. model, weights: what a client receives. examples: x and y of the first examples.
    seed: the experiment's. id_of: returns a training client's id, by position.
    """

    objective: LocalObjective
    model: Model
    weights: Weights
    examples: tuple[Tensor, Tensor]
    seed: int
    id_of: Callable[[int], str]

    def called(self) -> Called:
        """Call the objective on copies of everything.

        Raises:
            ModelError: it fails, returns other values than losses, writes to its arguments or to the module's
                parameters, or draws from a global generator.
        """
        received, trained, x, y = self.weights.clone(), self.weights.clone(), *(each.clone() for each in self.examples)
        module = bind(self.model, trained, x.device).train()
        for layer in dropout.address(module, trained.params):
            layer.start(torch.zeros((), dtype=torch.int64, device=x.device))
        given, at_start = Received(self.model, received), RoundAt(self.seed, 0, self.id_of)
        at = ObjectiveAt(at_start, 0, 0, self.objective.constants, given, x.device)
        watched = {"x": x, "y": y, "at.broadcast": received.params, PARAMETERS: trained.params}
        # By value too, because torch does not count writes through NumPy or `.data`; its count sees writes of equal
        # values.
        before = {name: (value._version, value.clone()) for name, value in watched.items()}
        with draws() as drew, _as_it_is(module, x) as written:
            try:
                losses = self.objective.function(module, x, y, at)
            except Exception as error:
                raise ModelError(
                    f"objective= failed on a batch x of shape {tuple(x.shape)} and dtype {x.dtype}, y of shape "
                    f"{tuple(y.shape)} and dtype {y.dtype}: {raised(error)}"
                ) from error
            drawn = drew()
        for name, (version, value) in before.items():
            now = watched[name]
            # A module may write to its input, by operations that torch counts.
            by_module = written() if name == "x" else 0
            unseen = not by_module and not torch.equal(value.nan_to_num(), now.detach().nan_to_num())
            if unseen or now._version - version != by_module:
                copy = "copy.deepcopy(module)" if name == PARAMETERS else f"{name}.clone()"
                raise ModelError(f"objective= must not write to {name}, but it did: work on a copy, {copy}.")
        if drawn:
            raise ModelError(
                "objective= drew from a global generator (of torch, NumPy or Python), whose draws differ from worker "
                "to worker: pass generator=at.generator to torch's functions."
            )
        try:
            check_losses(losses, len(y), "objective=")
        except ValueError as error:
            raise ModelError(str(error)) from None
        return Called(losses, module)


class Called(NamedTuple):
    """The losses of a batch, and the module that they depend on."""

    losses: Tensor
    module: nn.Module


PARAMETERS = "the module's parameters"


def check(trial: Trial) -> None:
    """Call the objective twice.

    Raises:
        ModelError: see `Trial.called`; or it takes other arguments, returns losses without a gradient or with one that
            fails, or other losses in the second call.
    """
    function = trial.objective.function
    try:
        inspect.signature(function).bind(None, *trial.examples, None)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"objective= must be a function of (module, x, y, at), but {shown(function)} is not: {within(error)}."
        ) from error
    losses, module = trial.called()
    own = OwnGenerators(function)
    again = trial.called()
    remedy = "Draw by at.generator, and keep nothing from call to call."
    check_repetition("objective=", losses, again.losses, ModelError, remedy, own.drew())
    params = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        gradients = torch.autograd.grad(losses.sum(), params, allow_unused=True) if losses.requires_grad else [None]
    except Exception as error:
        raise ModelError(
            f"objective= returned losses whose gradient cannot be computed: {raised(error)}. Look for a backward of "
            f"your own, and for writes to tensors that the losses were made of, such as an earlier call's."
        ) from error
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
