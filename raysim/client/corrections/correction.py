"""A correction: how clients' local gradients are bent so that the cohort pulls together.

A record of pure functions over flat vectors (P,): the client's half, the server's half, and what they send to each
other. In local training, from the model x that was received,

    gradient = bend(grad - [anchored] grad at x on the same batch + offset_i + pull (y - x))

with one vector offset_i per client, fixed for the round; clipping, weight decay and the optimizer come after it. So all
that differs from one method to the next is where offset_i comes from, and what the two halves keep. What no offset and
no pull can say, a `bend` does, which is called at every local step. A round calls, in this order:

    server     sent.down(server's state, mean full gradient) -> vectors beside the model
    client i   offset(ClientStart) -> offset_i;  local training;  after(ClientEnd) -> the client's next state
    server     its optimizer;  settle(ServerStepped) -> the next model, and the server's next state

No function writes to its arguments. Whoever runs a correction asks its record, never its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, State
from raysim.models.layout import Layout

Vectors = Mapping[str, Tensor]
"""Flat vectors (P,) by name."""


class ClientStart(NamedTuple):
    """A client at the beginning of its round.

    sent: what came beside the model. state: the client's own vector, zeros before its first round; empty where clients
    remember nothing. gradient: its full local gradient at x, where the correction asks for it. layout: where each
    parameter lies in a vector.
    """

    sent: Vectors
    state: Tensor
    gradient: Tensor | None
    layout: Layout


class LocalGradient(NamedTuple):
    """A local step's gradient: of one client, (P,), or of a stack of clients, (K, P); not to be written to.

    gradient: with what offset and pull added to it. params: y. start: x, (P,). sent: what came beside the model, (P,)
    each. layout: where each parameter lies along the last axis.
    """

    gradient: Tensor
    params: Tensor
    start: Tensor
    sent: Vectors
    layout: Layout


class ClientEnd(NamedTuple):
    """A client at the end of its round.

    delta: y - x, before an adversary had its way. tau: local steps taken. lr: of this round. gap: rounds since it last
    took part, t - t'; at its first, any number. gradient: the mean of its raw loss gradients, where that is summed.
    layout: where each parameter lies in a vector.
    """

    sent: Vectors
    state: Tensor
    delta: Tensor
    tau: int
    lr: float
    gap: int
    gradient: Tensor | None
    layout: Layout


class ServerStepped(NamedTuple):
    """A round after the server's optimizer.

    state: the server's half before it. params: x - lr f g. g: f g, the pseudo-gradient as FedGLAD scaled it: x - the
    clients' mean. clients, population: M and N. lr: the clients' of this round. tau: mean local steps of the cohort.
    changes: sum over the cohort of what their states changed by, where the correction sums that. gradient: the
    cohort's mean full gradient at x, where there was a pass for it. layout: where each parameter lies in a vector.
    """

    state: Vectors
    params: Tensor
    g: Tensor
    clients: int
    population: int
    lr: float
    tau: float
    changes: Tensor
    gradient: Tensor | None
    layout: Layout


class ServerResult(NamedTuple):
    """`params`: the model that is broadcast next. `state`: the server's half. Arguments are not written to."""

    params: Tensor
    state: Vectors


class ClientHalf(NamedTuple):
    """What bends a client's local gradients, and what the client keeps from round to round.

    pull: mu of the pull towards x.
    offset: offset_i; None: there is none.
    own_gradient: `offset` needs the client's own full gradient at x, `ClientStart.gradient`.
    anchored: the gradient at x on the same batch is subtracted.
    after: the client's state after the round; None: clients keep none.
    sums_gradients: `after` needs the mean of the raw loss gradients, `ClientEnd.gradient`.
    inverts_sgd: `after` takes that mean from how far the client went, (x - y) / (tau lr), which holds for plain SGD.
        With `sums_gradients` it does so where local steps are plain SGD, and `ClientEnd.gradient` is None there.
    optimizer, start: what stands in for the client's optimizer, and its state in every round, from what was sent.
    bend: the gradient to step with, made of the one at hand at every local step; each row of a stack by itself.
    """

    pull: float = 0.0
    offset: Callable[[ClientStart], Tensor] | None = None
    own_gradient: bool = False
    anchored: bool = False
    after: Callable[[ClientEnd], Tensor] | None = None
    sums_gradients: bool = False
    inverts_sgd: bool = False
    optimizer: ClientOptimizer | None = None
    start: Callable[[Vectors], State] | None = None
    bend: Callable[[LocalGradient], Tensor] | None = None

    def sums(self, plain_sgd: bool) -> bool:
        """Whether trainers sum raw gradients, for clients whose local steps are plain SGD but for the correction."""
        inverts = self.inverts_sgd and plain_sgd and self.bend is None
        return self.sums_gradients and not inverts


class ServerHalf(NamedTuple):
    """What the server keeps from round to round, and makes of the model.

    init: the state before the first round, from the initial model.
    settle: the model and the state after a round; None: the optimizer's model, and no state.
    average: names the vector of the state that is the clients' mean, where the model is another: it is evaluated beside
    the model, and a mean needs server.optimizer.lr = 1.
    """

    init: Callable[[Tensor], Vectors] = lambda params: {}
    settle: Callable[[ServerStepped], ServerResult] | None = None
    average: str | None = None


class Sent(NamedTuple):
    """What travels beside the model and the updates.

    down: the vectors beside the model, from the server's state and the cohort's mean full gradient.
    full_gradients: a pass over the cohort before local training takes that mean; otherwise it is None.
    sums_changes: clients send `after` less the state before, and `ServerStepped.changes` is their sum.
    """

    down: Callable[[Vectors, Tensor | None], Vectors] = lambda state, gradient: {}
    full_gradients: bool = False
    sums_changes: bool = False


class Requires(NamedTuple):
    """What the correction is defined with; other choices are refused. The defaults allow all.

    What follows from the halves is not repeated here (experiment/compatibility.py): clients that keep a state are not
    drawn twice a round, and one whose optimizer is replaced has none but SGD.

    server_sgd: server.optimizer is SGD.
    weightings: of server.weighting, the default first; None: any.
    aggregators: names of server.aggregator; None: any.
    equal_steps: all clients take equally many local steps.
    """

    server_sgd: bool = False
    weightings: tuple[str, ...] | None = None
    aggregators: tuple[str, ...] | None = None
    equal_steps: bool = False


class Correction(NamedTuple):
    """See the module's head; the defaults correct nothing. feddyn.py is a short example."""

    client: ClientHalf = ClientHalf()
    server: ServerHalf = ServerHalf()
    sent: Sent = Sent()
    requires: Requires = Requires()

    @property
    def only_pulls(self) -> bool:
        """Whether it is the pull towards x, if anything at all."""
        return self == Correction(ClientHalf(pull=self.client.pull))
