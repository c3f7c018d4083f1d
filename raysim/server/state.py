"""Defines the server's whole state between rounds: one frozen record, which is also the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from raysim.models.model import Weights

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class ServerState:
    """State after `round` finished rounds. Replaced, never mutated.

    weights: the model that the next round broadcasts.
    The others are tensors by name:
    optimizer, sampler: their states, from `init` and the steps since.
    levels: of clipping and zeroing. glad: baselines. ledger: what diagnostics carry on.
    correction: the server's half of the clients' correction. clients: where the clients' own states lie (manifest.py).
    fairness: a fair objective's. received: what clients have of the model, where its changes are compressed.
    fedex: of the configurations' shares.
    """

    round: int
    weights: Weights
    optimizer: Tensors
    sampler: Tensors
    levels: Tensors
    glad: Tensors
    ledger: Tensors
    correction: Tensors = field(default_factory=dict)
    clients: Tensors = field(default_factory=dict)
    fairness: Tensors = field(default_factory=dict)
    received: Tensors = field(default_factory=dict)
    fedex: Tensors = field(default_factory=dict)
