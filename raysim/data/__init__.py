"""Federated datasets: clients of a train, validation and test split, in memory, on disk, or generated.

`prepare.prepare` makes the dataset that a `[data]` section asks for; `describe.describe` says what is in one.
"""

from raysim.data.dataset import FederatedDataset, Split
from raysim.data.field import Field
from raysim.data.writer import DatasetWriter

__all__ = ["DatasetWriter", "FederatedDataset", "Field", "Split"]
