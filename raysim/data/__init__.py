"""Provides federated datasets: clients of a train, validation and test split, in memory, on disk, or generated.

`prepare.prepare` prepares the dataset of a `[data]` section; `describe.describe` describes one as text.
"""

from raysim.data.dataset import FederatedDataset, Split
from raysim.data.field import Field
from raysim.data.writer import DatasetWriter

__all__ = ["DatasetWriter", "FederatedDataset", "Field", "Split"]
