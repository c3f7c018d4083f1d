"""Defines an algorithm: pure functions of the server's state, what clients keep and transfer, and personal models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext
from raysim.algorithm.members import Members
from raysim.algorithm.phase import Phase
from raysim.cohort.sampler import State
from raysim.data.on_device import Examples
from raysim.models.model import Weights
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums


class Traffic(NamedTuple):
    """Numbers of vectors of the model's size that a client receives and sends beside the model; `unsent`: numbers of
    the model that are neither received nor sent. model_bytes, update_bytes: of the compressed model and update; None
    where they are not compressed."""

    down: int = 0
    up: int = 0
    unsent: int = 0
    model_bytes: int | None = None
    update_bytes: int | None = None


class PersonalModels(NamedTuple):
    """What scores personal models, as two pure functions.

    broadcast(state, positions): what a worker needs of the newest state, for the clients at these positions.
    model(context, examples, sent, position): the personal model of a training client, (P,). from_state: whether it
    comes from a vector that the client keeps.
    """

    broadcast: Callable[[ServerState, Sequence[int]], Broadcast]
    model: Callable[[LocalContext, Examples, Broadcast, int], Tensor]
    from_state: bool


class Algorithm(NamedTuple):
    """An algorithm as functions: all state enters and leaves through their arguments.

    `step` takes the sums of every phase and, if a rule needs every update, the vector that replaces the mean; it also
    returns the round's metrics. `average`: the weights to evaluate beside the state's. `state_vectors`: the number of
    vectors (P,) that a client keeps between rounds. `traffic`: what a client receives and sends. `members`: the clients
    of a chunk. `received`: the vector that clients start at. `personal`: the clients' personal models, if there
    are any. `of_all`: the model that is evaluated.
    """

    init: Callable[[Weights, State], ServerState]
    phases: tuple[Phase, ...]
    step: Callable[[ServerState, Sequence[Sums], Tensor | None], tuple[ServerState, Metrics]]
    average: Callable[[ServerState], Weights | None]
    state_vectors: int
    traffic: Traffic
    members: Members
    received: Callable[[ServerState], Tensor]
    personal: PersonalModels | None = None
    of_all: Callable[[ServerState], Weights] = lambda state: state.weights
