"""Applies transforms to the updates of trained clients, in order: a pure function of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim import seeds
from raysim.algorithm.broadcast import Broadcast
from raysim.client.local_training import Trained, with_norms, working_on
from raysim.client.transform import Transform, TransformAt, Transformed
from raysim.config.form import kept
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition, copied
from raysim.errors import ExperimentError, within
from raysim.models.layout import Layout
from raysim.models.probe import called, check_vector, probe


class Transforming(NamedTuple):
    """The transforms that all clients apply to their updates; `seed` addresses their draws. sent_groups: the layout
    of the groups that are sent, which transforms see."""

    transforms: tuple[Transform, ...]
    layout: Layout
    sent_groups: Layout
    seed: int


def apply_transforms(
    how: Transforming,
    broadcast: Broadcast,
    trained: Trained,
    states: Callable[[int], Sequence[Tensor]],
    id_of: Callable[[int], str],
) -> tuple[Trained, list[list[Tensor]]]:
    """Return the clients with the updates that they send, measured anew, and the vectors that each of them keeps.

    An update that is not finite is not transformed, and its client's state does not change.

    Args:
        how: see `Transforming`.
        broadcast: of the round.
        trained: the trained clients; not written to.
        states: the vectors that the client at a position keeps for transforms, in their order.
        id_of: a position's client id.
    """
    if not how.transforms:
        return trained, [[]] * len(trained.clients)
    deltas, kept = [], []
    with torch.inference_mode():
        facts = trained.clients.positions, trained.clients.num_examples, trained.clients.batches.steps
        for row, (position, *sizes) in enumerate(zip(*(fact.tolist() for fact in facts), strict=True)):
            delta, before = trained.updates.delta[row], states(position)
            if trained.finite[row]:
                with working_on(position):
                    delta, after = _of_one(how, broadcast, position, delta, before, id_of(position), *sizes)
            else:
                after = list(before)
            deltas.append(delta)
            kept.append(after)
        # Stacked, so torch aligns each update, whatever a transform returned.
        updates = replace(trained.updates, delta=torch.stack(deltas), squared_norms=None)
        return with_norms(trained.clients, updates, how.layout, trained.finite), kept


def _of_one(
    how: Transforming,
    broadcast: Broadcast,
    position: int,
    delta: Tensor,
    before: Sequence[Tensor],
    client_id: str,
    examples: int,
    steps: int,
) -> tuple[Tensor, list[Tensor]]:
    states, kept = iter(before), []
    none = delta.new_zeros(()).expand_as(delta)
    for place, transform in enumerate(how.transforms):
        key = seeds.key(how.seed, "transform", broadcast.round, position, place)
        generator = torch.Generator(delta.device).manual_seed(key >> 1)
        state = next(states) if transform.keeps_state else none
        at = TransformAt(
            delta, how.sent_groups, state, client_id, broadcast.round, generator, examples, steps, broadcast.lr
        )
        delta, state = checked_result(transform, transform.apply(at), at)
        if transform.keeps_state:
            kept.append(state)
    return delta, kept


def check(transform: Transform, title: str, params: Tensor, layout: Layout) -> None:
    """Apply the transform once, before the first round, to an update of the model's size.

    Raises:
        ExperimentError: it raises, writes to an argument, or returns an invalid value.
    """
    delta = probe(layout, params)

    def at_start() -> TransformAt:
        generator = torch.Generator(params.device).manual_seed(0)
        return TransformAt(delta, layout, torch.zeros_like(delta), "probe", 0, generator, 1, 1, 0.1)

    at, what = at_start(), f"{title}: apply"
    returned = called(what, transform.apply, at)
    once, own = copied(returned), OwnGenerators(transform)
    again = called(what, transform.apply, at_start())
    remedy = "Draw by at.generator, and keep state in Transformed."
    check_repetition(what, once, again, ExperimentError, remedy, own.drew())
    try:
        whole = checked_result(transform, returned, at)
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{title}: {within(error)}.") from None
    for name, vector in whole._asdict().items():
        check_vector(f"{title}: apply", name, vector, delta, layout)


def checked_result(transform: Transform, returned: Tensor | Transformed, at: TransformAt) -> Transformed:
    """Return a transform's result, with the old state if it keeps none.

    Raises:
        TypeError, ValueError: the result is not valid.
    """
    if transform.keeps_state != isinstance(returned, Transformed):
        what = "a raysim.Transformed" if transform.keeps_state else "a tensor"
        raise TypeError(
            f"a transform with keeps_state = {transform.keeps_state} must return {what}, but returned {shown(returned)}"
        )
    whole = returned if isinstance(returned, Transformed) else Transformed(returned, at.state)
    for name, vector in whole._asdict().items():
        if not isinstance(vector, Tensor):
            raise TypeError(f"a transform's {name} must be a tensor, but is {shown(vector)}")
        if vector.is_nested or vector.device != at.delta.device:
            raise ValueError(f"a transform's {name} must be {shown(at.delta)}, but is {shown(vector)}")
        if vector.layout != at.delta.layout:
            raise ValueError(f"a transform's {name} must be a dense tensor, but is {vector.layout}: use to_dense()")
        if vector.shape != at.delta.shape or vector.dtype != at.delta.dtype:
            raise ValueError(
                f"a transform's {name} must be {at.delta.dtype} of shape {tuple(at.delta.shape)}, but is "
                f"{vector.dtype} of shape {tuple(vector.shape)}"
            )
    return Transformed(kept(whole.delta), kept(whole.state) if transform.keeps_state else at.state)
