"""Adds up full local gradients at the broadcast: the phase before training of Mime, MimeLite and FedDANE."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from raysim.algorithm.broadcast import Broadcast, counts, weighed
from raysim.algorithm.local_context import LocalContext, LocalResult
from raysim.algorithm.members import Members
from raysim.client import local_training
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.models.layout import Layout
from raysim.server.accumulator import Accumulator, Contributions, Sizes
from raysim.server.section import ServerSection
from raysim.server.sums import Sums


def make(
    server: ServerSection, layout: Layout, members: Members
) -> Callable[[LocalContext, Examples, Broadcast, Chunk], LocalResult]:
    """`Phase.local`: the sums' `delta` is sum w_i grad f_i(x), with the weights of the clients' updates.

    A client whose gradient is not finite is rejected, and leaves the round.
    """

    by_examples, sizes = server.weighs_examples, Sizes(layout.size, groups=len(layout.names))

    def local(context: LocalContext, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> LocalResult:
        sums = Accumulator(sizes, broadcast.weights.params.device)
        assert context.gradients is not None
        clients = members.of(examples, broadcast, chunk)
        for together, gradients in local_training.full_gradients(context.gradients, broadcast.weights, clients):
            positions, held = together.positions, together.num_examples
            included = gradients.isfinite().all(-1).numpy(force=True)
            sums.reject(positions[~included].tolist())
            weights = weighed(broadcast, positions, held if by_examples else None)
            drawn = counts(broadcast, positions)
            sums.include(Contributions.plain(weights, held, count=drawn, included=included), gradients)
        return LocalResult(sums.total())

    return local


def mean(sums: Sums | None, like: Tensor) -> Tensor | None:
    """Return the cohort's mean gradient in the dtype of `like`, from the phase's sums; None without them.

    If every client was rejected it is 0, and is not used.
    """
    if sums is None:
        return None
    return (sums.delta / (sums.weight or 1.0)).to(like.dtype).to(like.device)
