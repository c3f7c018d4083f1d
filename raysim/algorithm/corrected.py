"""Adds a correction to an algorithm: its vectors beside the model, the server's half, a phase of full gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from raysim.algorithm import gradient_phase
from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.outgoing import Outgoing
from raysim.algorithm.participants import Participants
from raysim.algorithm.phase import Phase
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import Correction, Exchange, ServerResult, ServerStepped, Vectors
from raysim.client.section import ClientSection
from raysim.cohort.sampler import State
from raysim.config.form import check_form, check_forms, kept, kept_all
from raysim.config.own_figures import check_apart, own_figures
from raysim.config.plain import shown
from raysim.config.unwritten import check_unwritten, named, versions
from raysim.config.user_call import called
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.server.accumulator import Accumulator
from raysim.server.optimizers import step_check
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics, Server, Settle
from raysim.server.sums import Sums


def with_correction(
    base: Algorithm,
    client: ClientSection,
    server: ServerSection,
    server_side: Server,
    participants: Participants,
    layout: Layout,
) -> Algorithm:
    """Return the algorithm with the correction of `client`, which has one.

    Args:
        base: the algorithm; its last phase is training, and what trains there corrects.
        client, server: their sections of the experiment.
        server_side: the functions of `server`.
        participants: the clients.
        layout: of the parameters.
    """
    assert client.correcting is not None
    correction, title = corrections.make(client.correcting), corrections.CORRECTIONS.title(client.correcting)
    zeros = torch.zeros(layout.size)
    beside = correction.exchange.down(correction.server.init(zeros), zeros)
    own = _Corrected(
        base=base,
        correction=correction,
        title=title,
        is_built_in=corrections.is_built_in(client.correcting),
        names_down=tuple(beside),
        client=client,
        server=server,
        server_side=server_side,
        participants=participants,
        layout=layout,
    )
    *before_training, training = base.phases
    at_origin = training if correction.server.origin is None else training.sending(own.from_origin)
    phases = [*before_training, at_origin.sending(own.with_vectors)]
    if correction.exchange.full_gradients:
        gradients = gradient_phase.make(server, layout, base.members)
        phases.insert(-1, Phase(at_origin.broadcast, gradients, "gradients"))
    return base._replace(
        init=own.init,
        phases=tuple(phases),
        step=own.step,
        average=own.average,
        traffic=_with_vectors(base.traffic, correction.exchange, beside, layout),
        received=own.origin,
    )


def _with_vectors(traffic: Traffic, exchange: Exchange, beside: Vectors, layout: Layout) -> Traffic:
    """The traffic with what a correction sends beside the model."""
    num_down = sum(vector.numel() == layout.size for vector in beside.values())
    num_up = exchange.sums_changes + exchange.full_gradients
    return traffic._replace(down=traffic.down + num_down, up=traffic.up + num_up)


@dataclass(frozen=True)
class _Corrected:
    """The functions of an algorithm with a correction; fields as the arguments of `with_correction`.

    title: the correction's name in messages. is_built_in: its vectors have their forms. names_down: of the vectors that
    it sends beside the model.
    """

    base: Algorithm
    correction: Correction
    title: str
    is_built_in: bool
    names_down: tuple[str, ...]
    client: ClientSection
    server: ServerSection
    server_side: Server
    participants: Participants
    layout: Layout

    def init(self, weights: Weights, sampler: State) -> ServerState:
        """Add the correction's vectors to the state before the first round."""
        vectors = self.correction.server.init(weights.params)
        return replace(self.base.init(weights, sampler), correction=kept_all(vectors))

    def origin(self, state: ServerState) -> Tensor:
        """Return the vector that clients start at."""
        name = self.correction.server.origin
        return self.base.received(state) if name is None else state.correction[name]

    def from_origin(
        self, broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        """Send the vector that clients start at."""
        return replace(broadcast, weights=replace(broadcast.weights, params=self.origin(state)))

    def with_vectors(
        self, broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        """Send the correction's vectors too."""
        what, mean = f"{self.title}: Exchange.down, in round {state.round},", self._mean_gradient(state, sums)
        before = versions(*state.correction.values())
        beside = called(what, self.correction.exchange.down, state.correction, mean)
        check_unwritten(what, before, named("state", state.correction), ExperimentError)
        if not self.is_built_in:
            check_forms(what, "vectors", beside, dict.fromkeys(self.names_down, state.weights.params), ExperimentError)
            beside = kept_all(beside)
        return replace(broadcast, beside=beside)

    def step(self, state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        """Step from where clients started, and settle the correction's vectors."""
        *earlier, last = sums
        before = replace(state, weights=replace(state.weights, params=self.origin(state)))
        settle, seen = self._settling(self._mean_gradient(state, earlier)), sum(made.seen for made in earlier)
        after, metrics = self.server_side.step(before, last, aggregate, settle, seen)
        return (replace(after, weights=state.weights) if after.weights is before.weights else after), metrics

    def average(self, state: ServerState) -> Weights | None:
        """Return the average of the correction, which is scored too; None: it has none."""
        name = self.correction.server.average
        return None if name is None else replace(state.weights, params=state.correction[name])

    def _mean_gradient(self, state: ServerState, earlier: Sequence[Sums]) -> Tensor | None:
        # A round without clients has one phase.
        there = self.correction.exchange.full_gradients and len(earlier) >= len(self.base.phases)
        return gradient_phase.mean(earlier[-1] if there else None, state.weights.params)

    def _settling(self, gradient: Tensor | None) -> Settle | None:
        settle = self.correction.server.settle
        return None if settle is None else partial(self._settled, settle, gradient)

    def _settled(
        self,
        settle: Callable[[ServerStepped], ServerResult],
        gradient: Tensor | None,
        before: ServerState,
        made: Sums,
        params: Tensor,
        g: Tensor,
    ) -> tuple[Tensor, Tensors]:
        stepped = ServerStepped(
            state=before.correction,
            params=params,
            g=g,
            clients=made.clients,
            population=self.participants.population,
            lr=self.client.lr_at(before.round),
            tau=made.steps / made.clients,
            changes=made.changes,
            gradient=gradient,
            layout=self.layout,
            weighted_tau=made.weighted_steps / made.weight,
            server_lr=self.server.lr_at(self.participants.cohort_size(before.round), before.round),
        )
        what = f"{self.title}: ServerHalf.settle, in round {before.round},"
        after = called(what, settle, stepped)
        if not self.is_built_in:
            if not isinstance(after, ServerResult):
                raise ExperimentError(f"{what} must return a raysim.ServerResult, but returned {shown(after)}.")
            check_form(what, "params", after.params, params, ExperimentError)
            check_forms(what, "state", after.state, before.correction, ExperimentError)
            step_check.check_gaps(self.title, after.params, self.layout)
            return kept(after.params), kept_all(after.state)
        return after.params, after.state


def with_correction_figures(
    base: Algorithm, figures: Callable[[Tensor, Layout], Mapping[str, float]], title: str, layout: Layout
) -> Algorithm:
    """Return the algorithm with a correction's figures of the model after each round."""

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        what = f"{title}: ServerHalf.figures, in round {state.round},"
        own = own_figures(what, called(what, figures, after.weights.params, layout))
        check_apart(what, own, metrics)
        return after, {**metrics, **own}

    return base._replace(step=step)


def correct_updates(outgoing: Outgoing) -> Outgoing:
    """Stage: the updates that the correction sends, and the next states of its clients."""
    sent = outgoing.states.with_uploads(outgoing.trained)
    of_correction, changes = outgoing.states.after(outgoing.trained)
    return outgoing._replace(sent=sent, of_correction=of_correction, changes=changes)


def add_changes(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the changes of the states of clients that are not rejected."""
    assert outgoing.contributions is not None
    for change, included in zip(outgoing.changes, outgoing.contributions.included.tolist(), strict=True):
        if change is not None and included:
            sums.change(change)
