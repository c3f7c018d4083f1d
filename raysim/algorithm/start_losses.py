"""Takes f_i, each client's mean loss of the model that it receives, in a phase before training.

f_i is over all of the client's training examples, as an evaluation sees them: module in evaluation mode, no masks, no
draws, examples as at a test. It depends on model and client alone, not on the others of its chunk.

Users: fair objectives (server/fairness/) and samplers with `choose` (cohort/sampler.py). docs/algorithms.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast, counts
from raysim.algorithm.local_context import LocalContext, LocalResult
from raysim.algorithm.members import Members
from raysim.algorithm.phase import Phase
from raysim.client.local_training import working_on
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.server.accumulator import Accumulator, Contributions, Sizes
from raysim.server.fairness.fairness import StartLoss
from raysim.server.section import ServerSection
from raysim.server.sums import Sums


def with_start_losses(base: Algorithm, server: ServerSection) -> Algorithm:
    """Return the algorithm of one phase, with a phase of losses of the model before it."""
    (training,) = base.phases
    return base._replace(phases=(Phase(training.broadcast, make(server, base.members), "losses"), training))


def make(server: ServerSection, members: Members) -> Callable[[LocalContext, Examples, Broadcast, Chunk], LocalResult]:
    """`Phase.local`: the sums list a fact for each client, with its loss and its weight before training.

    A client whose loss is not finite is rejected, and leaves the round.
    """
    by_examples = server.weighs_examples

    def local(context: LocalContext, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> LocalResult:
        sums = Accumulator(Sizes(0), broadcast.weights.params.device)
        assert context.loss is not None
        facts = []
        for position, x, y in members.held(examples, broadcast, chunk):
            with working_on(position):
                facts.append((position, len(y), context.loss(broadcast.weights, x, y)))
        positions, sizes = (np.array([fact[column] for fact in facts], np.int64) for column in (0, 1))
        losses, no_hits = np.array([fact[2] for fact in facts]), np.full(len(facts), np.nan)
        included, weights = np.isfinite(losses), sizes.astype(np.float64) if by_examples else np.ones(len(facts))
        sums.reject(positions[~included].tolist())
        drawn = counts(broadcast, positions)
        clients = Contributions.plain(weights, sizes, loss=losses, correct=no_hits, count=drawn, included=included)
        sums.include(clients, broadcast.weights.params.new_zeros((len(facts), 0)))
        sums.note(clients, positions, None)
        return LocalResult(sums.total())

    return local


def losses_of(phases: Sequence[Sums], but: frozenset[int] = frozenset()) -> list[StartLoss]:
    """Return the clients' losses, in order of chunks, without those at the positions `but`; none before the phase."""
    facts = phases[0].facts if phases else ()
    return [StartLoss(fact.position, fact.weight, fact.loss) for fact in facts if fact.position not in but]
