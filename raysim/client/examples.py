"""How clients' examples reach the device that trains and scores on them: the one way that every caller takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.client.load import converted, joined
from raysim.client.resident import Resident, Segment, in_place, uploaded
from raysim.data.dataset import FederatedDataset


class Examples:
    """A dataset as one worker sees it. Where rows lie changes no bit of what `load` returns.

    Rows of a split that was uploaded are gathered on its device. Those of a split in one array are gathered on the
    host, any others read client by client, and sent there.

    Args:
        dataset: the run's.
    """

    def __init__(self, dataset: FederatedDataset) -> None:
        self.dataset = dataset
        self._in_place: dict[str, Resident | None] = {}
        self._uploaded: dict[str, Resident] = {}

    def upload(self, name: str, device: torch.device) -> None:
        """Keep a copy of a split on the device from here on.

        Raises:
            torch.OutOfMemoryError: it does not fit; nothing of it stays there.
        """
        self._uploaded[name] = uploaded(self.dataset, self.dataset.split(name), device)

    def let_go(self) -> bool:
        """Free what was uploaded; whether there was anything."""
        had = bool(self._uploaded)
        self._uploaded.clear()
        return had

    def load(self, name: str, segments: Sequence[Segment], like: Tensor) -> tuple[Tensor, Tensor]:
        """The segments' (x, y), row behind row, on the device of `like`, floats in its dtype, as `converted` has them.

        Args:
            name: of the split.
            segments: at least one, and at least one example in all.
            like: any tensor.
        """
        x, y = self._stored(name, segments)
        return (
            converted(x.to(like.device), self.dataset.x, like.dtype),
            converted(y.to(like.device), self.dataset.y, like.dtype),
        )

    def _stored(self, name: str, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        resident = self._uploaded.get(name) or self._whole(name)
        if resident is not None:
            return resident.gather(segments)
        split = self.dataset.split(name)
        clients = [(split.client(position), start, stop) for position, start, stop in segments]
        x, y = (joined([client[side][start:stop] for client, start, stop in clients]) for side in (0, 1))
        return x, y

    def _whole(self, name: str) -> Resident | None:
        """The split as it lies on the host, where it is in one array. None is looked at before it is asked for."""
        if name not in self._in_place:
            arrays = self.dataset.split(name).arrays()
            self._in_place[name] = None if arrays is None else in_place(arrays)
        return self._in_place[name]
