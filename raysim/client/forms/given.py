"""The form that hands out updates that were made before: of clients that other runs' clients were trained with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from raysim.client.form import Client, Updates
from raysim.models.model import Weights


class Given:
    """Updates of one chunk's clients, as they were trained together."""

    trains_together = True

    def __init__(self, updates: Updates) -> None:
        self._updates = updates

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Yield them; the clients are those that they were made for."""
        assert len(clients) == len(self._updates.seen)
        yield self._updates
