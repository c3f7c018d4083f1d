"""Runs the loop on Ray, with pools that end with it. If a script pulls round by round, the driver is an actor."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import torch

from raysim.config import torch_settings
from raysim.engine import wire
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.cluster.dashboard import Dashboard
from raysim.engine.on_ray.cluster.data_on_nodes import SentPlan, receive_plan
from raysim.engine.on_ray.cluster.handles import GroupedMethod, RemoteMethod
from raysim.engine.on_ray.executor.on_ray import OnRay, StartedPools
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import loop
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.opening import Opening, open_folder
from raysim.experiment.stopping import Seen, StopReason
from raysim.models.model import Weights
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState
from raysim.storage.remote import removed

if TYPE_CHECKING:
    from ray import ObjectRef


class OpenMethod(Protocol):
    """`Driver.open`."""

    def remote(self, *, overlap: bool) -> ObjectRef[None]:
        """Call it, without waiting."""
        ...


class DriverHandle(Protocol):
    """The actor of a `Driver`."""

    @property
    def start(self) -> RemoteMethod[[], None]:
        """See `Driver`."""
        ...

    @property
    def open(self) -> OpenMethod:
        """See `Driver`."""
        ...

    @property
    def advance(self) -> RemoteMethod[[], object]:
        """See `Driver`."""
        ...

    @property
    def stop(self) -> GroupedMethod[[], None]:
        """See `Driver`."""
        ...

    @property
    def close(self) -> RemoteMethod[[], None]:
        """See `Driver`."""
        ...


class Driver:
    """Owns its pools and the open run folder. `next` runs a round; `stop` may be called meanwhile.

    Args:
        sent: the run; its data are received by `start`.
        placement: where its pools go.
        started_pools: its pools, where the script has started them; None starts them here.
        opening: the run's folder, on this machine's paths; None writes nothing.
        name: by which others can attach to the run.
        start: where to continue from, and what `[stop]` has seen before, if there is no folder that says so; None:
            before the first round.
    """

    def __init__(
        self,
        sent: SentPlan,
        placement: Placement,
        started_pools: StartedPools | None,
        opening: Opening | None,
        name: str | None = None,
        start: tuple[ServerState, Seen] | None = None,
    ) -> None:
        # The modules of the plan's parts are imported now.
        torch_settings.renew()
        self._start = start
        self._sent: SentPlan | None = sent
        self._plan: Plan = sent.plan
        self._placement, self._started_pools, self._opening, self._name = placement, started_pools, opening, name
        if opening is not None and opening.copies is not None:
            removed.know(opening.copies)
        self._open = ExitStack()
        self._rounds: Generator[Finished, None, ServerState] | None = None
        self._dashboard = Dashboard(sent.plan.experiment.name)
        self.folder: RunFolder | None = None
        """While the run writes to it."""
        self.stopped: StopReason | None = None
        """Why the run has stopped before its last round."""

    def start(self) -> None:
        """Wait for the first pool. Nothing is written to the disk before."""
        # Not in the constructor: an error there reaches the script as a dead actor, without its type.
        sent, self._sent = self._sent, None
        assert sent is not None
        self._plan = receive_plan(sent)
        self._executor = OnRay(self._plan, self._placement, self._started_pools)
        self._open.callback(self._executor.close)

    @property
    def workers(self) -> list[str]:
        """The places of the pools that have started, in this order; it grows."""
        return self._executor.started

    def open(self, overlap: bool) -> None:
        """Open the folder, and find the state to continue from.

        Args:
            overlap: begin a round before the previous one is evaluated. Not for readers who pull round by round: their
                next round is in training already, and this would make two.
        """
        plan, (state, seen) = self._plan, self._start or (None, None)
        if self._opening is not None:
            self.folder, state = self._open.enter_context(open_folder(plan, self._opening, self._name))
        state = state or plan.initial_state()
        self.weights: Weights = state.weights
        self._rounds = loop.rounds(plan, self._executor, state, self.folder, self._executor.stop.is_set, overlap, seen)
        # Closing the loop checkpoints the last recorded round, so the folder is open until then.
        self._open.callback(self._rounds.close)

    def next(self) -> Finished | None:
        """Run one round; returns None after the last round, or after `stop`."""
        assert self._rounds is not None
        # Reductions of the server step depend on the number of threads too, which torch keeps per calling thread.
        torch.set_num_threads(self._plan.experiment.engine.threads)
        finished = next(self._rounds, None)
        if finished is not None:
            self.weights, self.stopped = finished.weights, finished.stopped
            self._dashboard.row(finished.row)
        return finished

    def advance(self) -> object:
        """`next`, packed to travel."""
        try:
            finished = self.next()
        except BaseException:
            self.close()
            raise
        if finished is None:
            self.close()
        return None if finished is None else wire.pack(finished)

    def close(self) -> None:
        """Checkpoint the last recorded round, close the folder, and end the pools."""
        self._open.close()

    def stop(self) -> None:
        """Request the loop to end at once, with a checkpoint of the last finished round."""
        self._executor.stop.set()
