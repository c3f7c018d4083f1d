"""Defines a correction: how clients change local gradients, so that they move less towards their own optima.

It is a record of pure functions over flat vectors (P,): the client's half, the server's half, and the vectors that they
send to each other. In local training, from the broadcast model x,

    gradient = bend(grad - [anchored] grad at x on the same batch + offset_i + pull (y - x))

with one vector offset_i per client, fixed for the round; clipping, weight decay and the optimizer come after it. So
methods differ only in the source of offset_i, and in the states of the two halves. A method that needs more has a
`bend`, which is called at every local step; a `begin`, where local training starts; or an `upload`, which is sent in
place of y - x. A round calls, in this order:

    server     exchange.down(server's state, mean full gradient) -> vectors beside the model
    client i   windows(LocalWork) -> the local steps whose models are averaged
               offset(ClientStart) -> offset_i;  begin(ClientStart) -> the first y;  local training
               upload(ClientEnd) -> the update to send;  after(ClientEnd) -> the client's next state
    server     its optimizer;  settle(ServerStepped) -> the next model, and the server's next state

No function writes to its arguments. The code that runs a correction depends on its record, never on its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, State
from raysim.client.proximal import Penalty, prox
from raysim.models.layout import Layout

Vectors = Mapping[str, Tensor]
"""Flat vectors (P,) by name."""


class ClientStart(NamedTuple):
    """A client at the beginning of its round.

    received: the vectors beside the model. state: the client's vector, or (S, P) if it keeps several; before its first
    round, `ClientHalf.init`, or zeros; empty if clients keep no state. gradient: its full local gradient at x, if the
    correction needs it. layout: the place of each parameter in a vector. params: x, (P,).
    """

    received: Vectors
    state: Tensor
    gradient: Tensor | None
    layout: Layout
    params: Tensor


class LocalWork(NamedTuple):
    """A client's work in a round.

    round: 0 for the first. tau: number of local steps. unit: those of an epoch, or 1 where `local_steps` measures work.
    """

    round: int
    tau: int
    unit: int


class LocalGradient(NamedTuple):
    """A local step's gradient: of one client, (P,), or of a stack of clients, (K, P); not to be written to.

    gradient: with offset and pull. params: y. start: x, (P,). received: the vectors beside the model, (P,) each.
    layout: the place of each parameter along the last axis.
    """

    gradient: Tensor
    params: Tensor
    start: Tensor
    received: Vectors
    layout: Layout


class LocalPoint(NamedTuple):
    """The local model before a local step: of one client, (P,), or of a stack of clients, (K, P); not to be written to.

    iterate: what the optimizer steps. step: local steps taken. lr: of this round. received: the vectors beside the
    model. layout: the place of each parameter along the last axis.
    """

    iterate: Tensor
    step: int
    lr: float
    received: Vectors
    layout: Layout


@dataclass(frozen=True)
class ProximalPoint:
    """A `ClientHalf.point` that trainers know: prox(z, E + step lr), z what the optimizer steps.

    penalty: see raysim/client/proximal.py. elapsed: the name of the received vector (1,) that is E.
    """

    penalty: Penalty
    elapsed: str

    def __call__(self, at: LocalPoint) -> Tensor:
        """Return the model at which the gradient is taken."""
        return prox(self.penalty, at.iterate, float(at.received[self.elapsed]) + at.step * at.lr, at.layout)


class ClientEnd(NamedTuple):
    """A client at the end of its round.

    state: as at the beginning. delta: y - x, before attacks. tau: number of local steps. lr: of this round. gap: rounds
    since its last participation, t - t'; any number in its first round. gradient: the mean of its raw loss gradients,
    if they are summed. layout: the place of each parameter in a vector. params: x, (P,). samples: (l, P), the means of
    y over the windows of local steps, if the correction has windows.
    """

    received: Vectors
    state: Tensor
    delta: Tensor
    tau: int
    lr: float
    gap: int
    gradient: Tensor | None
    layout: Layout
    params: Tensor
    samples: Tensor | None = None


class ServerStepped(NamedTuple):
    """A round after the server's optimizer.

    state: the server's half before it. params: x - lr f g. g: f g, the pseudo-gradient as FedGLAD scaled it: x - the
    clients' mean. clients, population: M and N. lr: the clients' of this round. tau: mean local steps of the cohort.
    changes: sum of the changes of the cohort's client states, if the correction sums them. gradient: the cohort's mean
    full gradient at x, if there was a phase for it. layout: the place of each parameter in a vector. weighted_tau: sum
    p_i tau_i. server_lr: of this round.
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
    weighted_tau: float
    server_lr: float


class ServerResult(NamedTuple):
    """`params`: the next model to broadcast. `state`: the server's half. Arguments are not written to."""

    params: Tensor
    state: Vectors


class ClientHalf(NamedTuple):
    """The client's half: the change of its local gradients, and the state that it keeps between rounds.

    pull: mu of the pull towards x.
    offset: offset_i; None: there is none.
    own_gradient: `offset` needs the client's full gradient at x, `ClientStart.gradient`.
    anchored: the gradient at x on the same batch is subtracted.
    after: the client's state after the round, (P,), or (S, P) if it keeps several vectors; None: clients keep none.
    sums_gradients: `after` needs the mean of the raw loss gradients, `ClientEnd.gradient`.
    inverts_sgd: `after` computes that mean from the update, (x - y) / (tau lr), which holds for plain SGD. With
        `sums_gradients` it does so only if local steps are plain SGD; then `ClientEnd.gradient` is None.
    optimizer, start: the optimizer that replaces the client's, and its state in every round, from the received vectors.
    bend: from the gradient of a local step to the one to step with; each row of a stack independently.
    vectors: S, the vectors (P,) of a client's state.
    init: a client's state before its first round, from the model that it then receives; None: zeros.
    begin: y before the first local step; None: x.
    upload: the update that is sent; None: y - x.
    point: the model at which a local step takes the gradient, from what the optimizer steps; each row of a stack
        independently. None: that itself.
    windows: ranges of local steps, [first, stop), in order and apart, over which y after each step is averaged.
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
    vectors: int = 1
    init: Callable[[Tensor], Tensor] | None = None
    begin: Callable[[ClientStart], Tensor] | None = None
    upload: Callable[[ClientEnd], Tensor] | None = None
    windows: Callable[[LocalWork], Sequence[tuple[int, int]]] | None = None
    point: Callable[[LocalPoint], Tensor] | None = None

    def sums(self, plain_sgd: bool) -> bool:
        """Whether trainers sum raw gradients; `plain_sgd`: apart from the correction, local steps are plain SGD."""
        inverts = self.inverts_sgd and plain_sgd and self.bend is None
        return self.sums_gradients and not inverts


class ServerHalf(NamedTuple):
    """The server's half: the state that it keeps between rounds, and its change of the model.

    init: the state before the first round, from the initial model.
    settle: the model and the state after a round; None: the optimizer's model, and no state.
    average: the name of the state's vector that is the clients' mean, if the model differs from it: it is evaluated
    beside the model, and a mean needs server.optimizer.lr = 1.
    origin: the name of the state's vector that clients receive and the optimizer steps, in place of the model.
    figures: metrics of a round, from the model after it.
    """

    init: Callable[[Tensor], Vectors] = lambda params: {}
    settle: Callable[[ServerStepped], ServerResult] | None = None
    average: str | None = None
    origin: str | None = None
    figures: Callable[[Tensor, Layout], Mapping[str, float]] | None = None


class Exchange(NamedTuple):
    """The vectors sent beside the model and the updates.

    down: the vectors beside the model, from the server's state and the cohort's mean full gradient.
    full_gradients: a phase before local training computes that mean; otherwise it is None.
    sums_changes: clients send `after` minus the state before, and `ServerStepped.changes` is their sum.
    """

    down: Callable[[Vectors, Tensor | None], Vectors] = lambda state, gradient: {}
    full_gradients: bool = False
    sums_changes: bool = False


class Requires(NamedTuple):
    """The choices with which the correction is defined; others are refused. The defaults allow all.

    Some requirements follow from the halves and are not repeated here (experiment/compatibility.py): clients with state
    are not drawn twice a round, and a replaced optimizer must be SGD.

    server_sgd: server.optimizer is SGD.
    weightings: of server.weighting, the default first; None: any.
    aggregators: names of server.aggregator; None: any.
    equal_steps: all clients take the same number of local steps.
    unit_lr: server.optimizer.lr is 1, without scaling and schedule.
    every_client: every client takes part in every round.
    """

    server_sgd: bool = False
    weightings: tuple[str, ...] | None = None
    aggregators: tuple[str, ...] | None = None
    equal_steps: bool = False
    unit_lr: bool = False
    every_client: bool = False


class Correction(NamedTuple):
    """Changes the gradients of local training, by pure functions of flat vectors (P,); the defaults change nothing.

    The equations, and the order of the calls, are at the head of raysim/client/corrections/correction.py; feddyn.py
    beside it is a short example, docs/cookbook.md has another.

    client: a client's offset of its gradients, its state, and what it sends.
    server: the server's state, and what it does after its optimizer's step.
    exchange: the vectors sent beside the model and the updates.
    requires: settings without which the method is not defined.
    """

    client: ClientHalf = ClientHalf()
    server: ServerHalf = ServerHalf()
    exchange: Exchange = Exchange()
    requires: Requires = Requires()

    @property
    def only_pulls(self) -> bool:
        """Whether the correction has no effect except the pull towards x."""
        return self == Correction(ClientHalf(pull=self.client.pull))
