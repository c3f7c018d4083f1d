"""Watches the client states of a chunk: what was read can be read again, and what is written is known by a digest."""

from __future__ import annotations

from torch import Tensor

from raysim.algorithm.local_context import ClientStates
from raysim.engine.worker.result_digest import digest


class WatchedStates:
    """`ClientStates` of one chunk.

    Args:
        stored: where they lie; None: what `read` has is read, and nothing is stored.
        read: by position, what was read; filled while `stored` is read.
    """

    def __init__(self, stored: ClientStates | None, read: dict[int, Tensor | None]) -> None:
        self._stored, self._read = stored, read
        self.written: dict[int, int] = {}
        """By row of the chunk, digests of what was written."""

    def read(self, position: int) -> Tensor | None:
        """See `ClientStates`."""
        if self._stored is not None:
            self._read[position] = self._stored.read(position)
        state = self._read.get(position)
        # The caller may go on with it in place.
        return None if state is None else state.clone()

    def write(self, row: int, state: Tensor) -> None:
        """See `ClientStates`."""
        self.written[row] = digest(state)
        if self._stored is not None:
            self._stored.write(row, state)
