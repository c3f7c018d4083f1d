"""Names settings that several cases share."""

from __future__ import annotations

from typing import Any

SGD = {"name": "sgd", "lr": 1.0}
WIDE = {"name": "mlp", "hidden": [7, 5]}
MOMENTUM = {"name": "momentum", "lr": 0.7, "beta1": 0.8}


def client(**optimizer: Any) -> dict[str, Any]:
    """The keys of a client optimizer."""
    return {"client.optimizer": optimizer}
