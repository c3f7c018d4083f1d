"""Decides which splits a process keeps on its device, by `engine.examples`.

Runs with the same data and the same setting share them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch

from raysim import card
from raysim.data.on_device import Examples
from raysim.engine.plan import own_models
from raysim.engine.plan.plan import Plan, evaluated_splits

log = logging.getLogger("raysim")

UNASKED = 0.25
"""Under "auto", the largest share of a card's free memory that a split may take."""


@dataclass
class _Held:
    """examples: of one dataset. tried: the splits that were uploaded, or that did not fit."""

    examples: Examples
    tried: set[str] = field(default_factory=set)


class ExampleMemory:
    """The examples of a process's runs.

    Args:
        share: the share of a card's memory that this process may use, in (0, 1].
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._held: dict[tuple[str, str, torch.device], _Held] = {}

    def of(self, plan: Plan, device: torch.device) -> Examples:
        """Return the run's examples; uploads the splits that belong on `device`, unless another run has done so."""
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
        """Release the examples of all other datasets: no run uses them any more."""
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
        free, total, allocated, reserved = card.memory(device)
        # Memory that torch has reserved but not allocated is free too.
        return min(free + reserved - allocated, self._share * total - allocated)


def stored_bytes(plan: Plan, name: str) -> int:
    """Return the bytes of a split's examples, as stored."""
    dataset = plan.dataset
    return int(dataset.split(name).sizes().sum()) * (dataset.x.example_bytes + dataset.y.example_bytes)


def _to_upload(plan: Plan, device: torch.device) -> Iterator[str]:
    """Yield the splits for training and scoring; under "auto" only those that the run uses at least once on average."""
    e, dataset = plan.experiment, plan.dataset
    on_device = e.engine.examples == "device"
    if not on_device and (e.engine.examples == "host" or device.type != "cuda"):
        return
    scored = {*evaluated_splits(plan), *own_models.splits(e).values()}
    if e.fedex is not None:
        scored.add(e.fedex.split)
    size_at = e.cohort.size_at(len(dataset.train))
    for name, split in dataset.splits.items():
        if name != "train" and name not in scored:
            continue
        clients = e.evaluation.clients
        whole = name in scored and (clients == "all" or clients >= len(split))
        if on_device or whole or (name == "train" and sum(size_at(t) for t in range(e.rounds)) >= len(split)):
            yield name
