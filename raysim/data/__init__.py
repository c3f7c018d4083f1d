"""Provides federated datasets: clients of a train, validation and test split, in memory, on disk, or generated.

`prepare.prepare` prepares the dataset of a `[data]` section; `describe.describe` describes one as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.data.dataset import FederatedDataset, Split
from raysim.data.field import Field
from raysim.data.writer import DatasetWriter

if TYPE_CHECKING:
    from raysim.data.on_device import batch

__all__ = ["DatasetWriter", "FederatedDataset", "Field", "Split", "batch"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and nothing else here needs it.
    if name != "batch":
        raise AttributeError(f"module 'raysim.data' has no attribute {name!r}")
    from raysim.data.on_device import batch

    return batch
