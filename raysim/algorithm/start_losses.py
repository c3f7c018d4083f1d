"""Takes f_i, each client's mean loss of the model that it receives, in a phase before training.

f_i is over all of the client's training examples, as an evaluation sees them: module in evaluation mode, no masks, no
draws, examples as at a test. It depends on model and client alone, not on the others of its chunk.

Users: fair objectives (server/fairness/) and samplers with `choose` (cohort/sampler.py). docs/algorithms.md section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.phase import Broadcast, LocalContext, LocalResult, Members, Phase
from raysim.client.local_training import working_on
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.server.accumulator import Accumulator, Contribution, Sizes
from raysim.server.fairness.fairness import StartLoss
from raysim.server.section import ServerSection
from raysim.server.sums import Sums


def after_losses(one: Algorithm, server: ServerSection) -> Algorithm:
    """Return the algorithm of one phase, with a phase of losses of the model before it."""
    (training,) = one.phases
    return one._replace(phases=(Phase(training.broadcast, make(server, one.members), "losses"), training))


def make(server: ServerSection, members: Members) -> Callable[[LocalContext, Examples, Broadcast, Chunk], LocalResult]:
    """`Phase.local`: the sums list a fact for each client, with its loss and its weight before training.

    A client whose loss is not finite is rejected, and leaves the round.
    """
    by_examples = server.weighs_examples

    def local(context: LocalContext, examples: Examples, sent: Broadcast, chunk: Chunk) -> LocalResult:
        sums = Accumulator(Sizes(0), sent.weights.params.device)
        assert context.loss is not None
        for position, x, y in members.held(examples, sent, chunk):
            with working_on(position):
                loss = context.loss(sent.weights, x, y)
            if not math.isfinite(loss):
                sums.reject(position)
                continue
            included = Contribution(
                weight=float(len(y)) if by_examples else 1.0,
                held=len(y),
                squared_norm=0.0,
                seen=len(y),
                loss=loss,
                correct=math.nan,
                count=sent.repeats.get(position, 1),
            )
            sums.include([included], x.new_zeros((1, 0)))
            sums.note(position, included, None)
        return LocalResult(sums.total())

    return local


def losses_of(phases: Sequence[Sums], but: frozenset[int] = frozenset()) -> list[StartLoss]:
    """Return the clients' losses, in order of chunks, without those at the positions `but`; none before the phase."""
    facts = phases[0].facts if phases else ()
    return [StartLoss(fact.position, fact.weight, fact.loss) for fact in facts if fact.position not in but]
