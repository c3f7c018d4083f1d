"""Decides which splits a process keeps on its device, as `engine.examples` says.

Runs on the same data with the same setting share them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch

from raysim.data.on_device import Examples
from raysim.engine.plan.plan import Plan, evaluated_splits

log = logging.getLogger("raysim")

UNASKED = 0.25
"""Of the memory that this process may still use on a card, what a split may take under "auto"."""


@dataclass
class _Held:
    """examples: of one dataset. tried: the splits that were uploaded, or were to be and did not fit."""

    examples: Examples
    tried: set[str] = field(default_factory=set)


class ExampleMemory:
    """The examples of a process's runs.

    Args:
        share: of a card's memory, what this process may use, in (0, 1].
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._held: dict[tuple[str, str, torch.device], _Held] = {}

    def of(self, plan: Plan, device: torch.device) -> Examples:
        """The run's examples; its splits are uploaded to `device` where they are to be, unless another run's were."""
        key = plan.dataset.fingerprint, plan.experiment.engine.examples, device
        if key not in self._held:
            self._held[key] = _Held(Examples(plan.dataset))
        held = self._held[key]
        for name in _to_upload(plan, device):
            if name not in held.tried:
                held.tried.add(name)
                self._upload(held.examples, plan, name, device)
        return held.examples

    def keep_only(self, fingerprints: Collection[str]) -> None:
        """Let go of the examples of all other data: no run has them any more."""
        self._held = {key: held for key, held in self._held.items() if key[0] in fingerprints}

    def _upload(self, examples: Examples, plan: Plan, name: str, device: torch.device) -> None:
        num_bytes = stored_bytes(plan, name)
        if plan.experiment.engine.examples == "auto" and num_bytes > UNASKED * self._room_bytes(device):
            return
        try:
            examples.upload(name, device)
        except torch.OutOfMemoryError as error:
            log.warning(
                "the examples of split %r are sent chunk by chunk, because their %.1f MB did not fit into the memory "
                "of the device beside what is there: %s",
                name,
                num_bytes / 1e6,
                error,
            )

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
