"""Runs a correction on two quadratic functions of one number, for values that anyone can check by hand.

client  f_i(x)           gradient   a local step of SGD with lr = 1/2, without a correction
1       (x - 8)^2 / 2    x - 8      halves the distance to 8
2       (x + 4)^2        2 x + 8    puts y at -4

A client has one example, and both train in every round. The server takes the mean of what they send. The mean loss is
least at x = 0, which gradient descent does not leave, but FedAvg does where it takes several local steps: it drifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor, nn

from raysim.api.run import rounds
from raysim.client.corrections.choice import CorrectionSection
from raysim.client.corrections.feddualavg import Composite
from raysim.client.corrections.fedpa import Posterior
from raysim.data.dataset import FederatedDataset
from raysim.experiment.experiment import Experiment

CURVATURES_AND_MINIMA = ((1.0, 8.0), (2.0, -4.0))


def two_clients(
    section: CorrectionSection | Posterior | Composite | None,
    x: float = 0.0,
    local_steps: int = 2,
    num_rounds: int = 2,
    server: Mapping[str, Any] = MappingProxyType({}),
) -> list[float]:
    """Return the model that is broadcast after each round of a run, in float64.

    Args:
        section: of the correction; None: FedAvg.
        x: the first model.
        local_steps: of each client in each round.
        num_rounds: of the run.
        server: further keys of `[server]`.

    >>> two_clients(None, local_steps=1)  # y = 4, -4
    [0.0, 0.0]
    >>> two_clients(None)  # y = 6, -4, then 6.25, -4
    [1.0, 1.125]
    """
    posterior = section if isinstance(section, Posterior) else None
    composite = section if isinstance(section, Composite) else None
    correction = None if posterior or composite else section
    client = {"correction": correction, "posterior": posterior, "batch_size": 1, "local_steps": local_steps}
    experiment = Experiment.model_validate(
        {
            "name": "two-clients",
            "rounds": num_rounds,
            "client": {**client, "optimizer": {"name": "sgd", "lr": 0.5}},
            "composite": composite,
            "cohort": {"size": 2},
            "server": {"weighting": "uniform", "optimizer": {"name": "sgd", "lr": 1.0}, **server},
            "engine": {"workers": 0, "dtype": "float64"},
        }
    )
    made = rounds(
        experiment,
        dataset=FederatedDataset.from_clients(
            train={f"client {i}": (np.ones((1, 1)), np.array([own])) for i, own in enumerate(CURVATURES_AND_MINIMA)}
        ),
        model=lambda: nn.Linear(1, 1, bias=False),
        params={"weight": np.array([[x]])},
        loss=_quadratic,
    )
    return [done.params["weight"].item() for done in made]


def _quadratic(outputs: Tensor, targets: Tensor) -> Tensor:
    """a (x - b)^2 / 2 of targets (a, b)."""
    curvature, minimum = targets.unbind(dim=1)
    return curvature * (outputs[:, 0] - minimum) ** 2 / 2
