"""Counts what a round of an algorithm computes on clients and server: sums and products of vectors of the model's size.

The functions of the correction and of the client's optimizer are called once with vectors of the model's size, and the
operators that they call are counted. So a correction of a script is counted as a built-in one is. Around them stand,
with g the gradient of a batch, K local steps and |P| clients,

    client   K times: g, + offset_i, + pull (y - x), the optimizer's step;  once: the client's next state
    server   the sum of |P| models;  x - mean, if the correction uses it;  the model and the server's next state

Source: Varno et al. (2022), algorithm 2 and tables 3 to 5. As there, offset_i counts at every local step, where raysim
makes it once a round, the mean's division and the update x - y_i do not count, and the server's optimizer, clipping and
weight decay are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysim.client.corrections.correction import (
    ClientEnd,
    ClientHalf,
    ClientStart,
    Correction,
    LocalGradient,
    LocalPoint,
    ServerStepped,
)
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.models.layout import Layout
from raysim.models.probe import probe

_FREE = frozenset({"neg", "zeros_like", "empty_like", "clone", "copy", "detach", "view", "expand", "alias", "slice"})
"""Operators of no arithmetic; a sign is part of the sum that it enters."""
_SUMS = frozenset({"add", "sub", "rsub"})
_PRODUCTS = frozenset({"mul", "div"})
_BOTH = MappingProxyType({"addcmul": 1, "addcdiv": 1})
"""A sum, and so many products beside that with `value`."""
_LR, _TAU, _GAP, _CLIENTS, _POPULATION = 0.3, 2, 3, 2, 5
"""Of the calls; none of them, and no quotient of them, is 1."""


class OperatorCount(NamedTuple):
    """gradients: of batches. sums, products, others: of vectors; others are roots, comparisons and the like."""

    gradients: int = 0
    sums: int = 0
    products: int = 0
    others: int = 0

    def plus(self, other: OperatorCount) -> OperatorCount:
        """Return both together."""
        return OperatorCount(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def written(self) -> str:
        """In the paper's letters: g a gradient, n the model's size, s a sum, m a product; o any other.

        >>> OperatorCount(gradients=1, sums=4, products=2).written
        'g + 4 ns + 2 nm'
        """
        parts = zip(self, ("g", "ns", "nm", "no"), strict=True)
        return " + ".join(letter if times == 1 else f"{times} {letter}" for times, letter in parts if times)


class Operations(NamedTuple):
    """step: of a local step. client: of a client, once a round. passes: full gradients of a client, one for each time
    that it passes over all its examples. vectors: of each client that the server adds up. server: once a round."""

    step: OperatorCount
    client: OperatorCount
    passes: int
    vectors: int
    server: OperatorCount

    @property
    def of_client(self) -> str:
        """What a client computes: "K (g + 4 ns + 2 nm) + ns + nm"; G is a full gradient."""
        full = {0: [], 1: ["G"]}.get(self.passes, [f"{self.passes} G"])
        return " + ".join([f"K ({self.step.written})", *filter(None, [self.client.written]), *full])

    @property
    def of_server(self) -> str:
        """What the server computes: "|P| ns + 3 ns + nm"."""
        added = OperatorCount(sums=self.vectors).written
        return " + ".join([f"|P| {added}", *filter(None, [self.server.written])])


class _OperatorMode(TorchDispatchMode):
    """Counts operators, and notes whether any of them reads `watched`."""

    def __init__(self, watched: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self._watched, self.reads = OperatorCount(), watched, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler at the first call, for a second.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.reads |= any(each is self._watched for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        name = func.overloadpacket.__name__.rstrip("_")
        scaled = abs(kwargs.get("alpha", kwargs.get("value", 1))) != 1
        if name in _SUMS:
            self.count = self.count.plus(OperatorCount(sums=1, products=int(scaled)))
        elif name in _PRODUCTS:
            self.count = self.count.plus(OperatorCount(products=1))
        elif name in _BOTH:
            self.count = self.count.plus(OperatorCount(sums=1, products=_BOTH[name] + scaled))
        elif name not in _FREE:
            self.count = self.count.plus(OperatorCount(others=1))
        return func(*args, **kwargs)


def operations(
    correction: Correction, optimizer: ClientOptimizer, plain_sgd: bool, layout: Layout, params: Tensor
) -> Operations:
    """Return the operations of a round.

    Args:
        correction: the record.
        optimizer: the clients', if the correction does not replace it.
        plain_sgd: see `ClientHalf.sums`.
        layout, params: of the model.
    """
    half, like = correction.client, probe(layout, params)
    mean = like if correction.exchange.full_gradients else None
    state = correction.server.init(like)
    down = correction.exchange.down(state, mean)
    own = like if half.own_gradient else None
    kept = like.new_zeros(0)
    if half.after is not None:
        kept = like if half.vectors == 1 else like.expand(half.vectors, -1)
    step = OperatorCount(gradients=1 + half.anchored, sums=int(half.anchored))
    begins = ClientStart(down, kept, own, layout, like)
    if half.offset is not None:
        counted = _counted(half.offset, begins)
        step = step.plus(counted).plus(OperatorCount(sums=1))
    if half.pull:
        # y - x, times mu, added to the gradient.
        step = step.plus(OperatorCount(sums=2, products=1))
    if half.bend is not None:
        step = step.plus(_counted(half.bend, LocalGradient(like, like, like, down, layout)))
    if half.point is not None:
        step = step.plus(_counted(half.point, LocalPoint(like, 1, _LR, down, layout)))
    step = step.plus(_optimizer_step(half, optimizer, down, like))
    sums_gradients = half.sums(plain_sgd)
    client = OperatorCount(products=1) if sums_gradients else OperatorCount()
    step = step.plus(OperatorCount(sums=1)) if sums_gradients else step
    gradient = like if sums_gradients else None
    samples = None if half.windows is None else probe(layout, params, rows=2)
    ended = ClientEnd(down, kept, like, _TAU, _LR, _GAP, gradient, layout, like, samples)
    # y is added to the sum of its window.
    step = step if samples is None else step.plus(OperatorCount(sums=1))
    if half.begin is not None:
        client = client.plus(_counted(half.begin, begins))
    for function in filter(None, (half.upload, half.after)):
        client = client.plus(_counted(function, ended))
    if correction.exchange.sums_changes:
        client = client.plus(OperatorCount(sums=1))
    passes = int(correction.exchange.full_gradients) + int(half.own_gradient)
    vectors = 1 + int(correction.exchange.sums_changes) + int(correction.exchange.full_gradients)
    return Operations(step, client, passes, vectors, _server(correction, state, like, mean, layout))


def _optimizer_step(
    half: ClientHalf, optimizer: ClientOptimizer, down: Mapping[str, Tensor], like: Tensor
) -> OperatorCount:
    chosen, y = half.optimizer or optimizer, like.clone()
    state = dict(half.start(down)) if half.start is not None else chosen.init(y)
    return _counted(chosen.step, y, like.clone(), {name: vector.clone() for name, vector in state.items()}, _LR)


def _server(
    correction: Correction, state: Mapping[str, Tensor], like: Tensor, mean: Tensor | None, layout: Layout
) -> OperatorCount:
    if correction.server.settle is None:
        return OperatorCount()
    # Told from the others by its identity.
    g = like.view_as(like)
    changes = like if correction.exchange.sums_changes else like.new_zeros(0)
    stepped = ServerStepped(
        state, like, g, _CLIENTS, _POPULATION, _LR, float(_TAU), changes, mean, layout, float(_TAU), _LR
    )
    counting = _OperatorMode(watched=g)
    with counting:
        correction.server.settle(stepped)
    # The clients' mean is at hand; the pseudo-gradient is what remains of it to be computed.
    return counting.count.plus(OperatorCount(sums=int(counting.reads)))


def _counted(function: Callable[..., Any], *given: Any) -> OperatorCount:
    counting = _OperatorMode()
    with torch.no_grad(), counting:
        function(*given)
    return counting.count
