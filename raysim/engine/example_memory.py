"""Which splits a process keeps on its device, as `engine.examples` says; runs that use the same splits of the same data
share them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterator

import torch

from raysim.client.examples import Examples
from raysim.engine.plan import Plan, evaluated_splits

log = logging.getLogger("raysim")

UNASKED = 0.25
"""Of the memory that this process may still use on a card, what a split may take under "auto"."""


class ExampleMemory:
    """The examples of a process's runs.

    Args:
        share: of a card's memory, what this process may use, in (0, 1].
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._held: dict[str, dict[Hashable, Examples]] = {}

    def of(self, plan: Plan, device: torch.device) -> Examples:
        """The run's examples; its splits are uploaded to `device` where they are to be, unless another run's were."""
        names = tuple(_to_upload(plan, device))
        key = plan.experiment.engine.examples, names, device
        held = self._held.setdefault(plan.dataset.fingerprint, {})
        if key not in held:
            held[key] = self._made(plan, names, device)
        return held[key]

    def keep_only(self, fingerprints: Collection[str]) -> None:
        """Let go of the examples of all other data: no run has them any more."""
        self._held = {own: held for own, held in self._held.items() if own in fingerprints}

    def _made(self, plan: Plan, names: tuple[str, ...], device: torch.device) -> Examples:
        examples, asked = Examples(plan.dataset), plan.experiment.engine.examples == "device"
        for name in names:
            if not asked and stored_bytes(plan, name) > UNASKED * self._room_bytes(device):
                continue
            try:
                examples.upload(name, device)
            except torch.OutOfMemoryError as error:
                log.warning(
                    "the examples of split %r are sent chunk by chunk, because their %.1f MB did not fit into the "
                    "memory of the device beside what is there: %s",
                    name,
                    stored_bytes(plan, name) / 1e6,
                    error,
                )
        return examples

    def _room_bytes(self, device: torch.device) -> float:
        free, total = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        # What torch has from the card, and nobody has from torch, is free too.
        unused = torch.cuda.memory_reserved(device) - allocated
        return min(free + unused, self._share * total - allocated)


def stored_bytes(plan: Plan, name: str) -> int:
    """What a split's examples take, as stored."""
    dataset = plan.dataset
    return int(dataset.split(name).sizes().sum()) * (dataset.x.example_bytes + dataset.y.example_bytes)


def _to_upload(plan: Plan, device: torch.device) -> Iterator[str]:
    """What is trained and scored on; unasked only that of which each client is met at least once on average."""
    e, dataset = plan.experiment, plan.dataset
    asked = e.engine.examples == "device"
    if not asked and (e.engine.examples == "host" or device.type != "cuda"):
        return
    scored = set(evaluated_splits(plan))
    if e.evaluation.fine_tuning is not None:
        scored.add(e.evaluation.fine_tuning.split)
    size_at = e.cohort.size_at(len(dataset.train))
    for name, split in dataset.splits.items():
        if name != "train" and name not in scored:
            continue
        clients = e.evaluation.clients
        whole = name in scored and (clients == "all" or clients >= len(split))
        if asked or whole or (name == "train" and sum(size_at(t) for t in range(e.rounds)) >= len(split)):
            yield name
