"""Clusters (IFCA, HypCluster): several models are trained, and a client trains the one that fits it best.

All models go down; client i trains, and is scored with, that of argmin_j f_i(x_j), ties to the lowest j, f_i its mean
loss over its training examples as an evaluation sees them. Each model takes a server step of its own, with p_i over the
clients that trained it, and a state of its own; without any it stays. count = 1 is FedAvg. Clients keep nothing.

Model j starts from the model's seed + j. raysim/algorithm/clustered.py carries it out.

Sources: Ghosh et al. (2020), IFCA with model averaging; Mansour et al. (2020), HypCluster;
docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysim.client.personalisation.personalisation import PersonalSection
from raysim.config.section import Section


class Clusters(PersonalSection, Section):
    """Clusters (IFCA, HypCluster): several models, of which a client trains the one that fits it best."""

    name: Literal["clusters"] = "clusters"
    count: int = Field(ge=1, le=1_000, description="Number of models; at most as many as training clients.")

    @property
    def keeps(self) -> bool:
        """Clients keep nothing."""
        return False
