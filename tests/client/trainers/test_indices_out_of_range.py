"""An index for which a table has no row ends training, whichever trainer: no other row is read for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.errors import ClientError

TRAINERS = ["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap"]


def standard() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3))


class ByFunction(nn.Module):
    """Looks rows up by the function of torch below nn.functional's, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.b = nn.Parameter(torch.ones(6, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(torch.embedding(weight=self.table, indices=x).mean(1))
        return made


def train(index: int, trainer: str, module: type[nn.Module] | None = None) -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.integers(0, 6, (6, 3)), rng.integers(0, 3, 6)) for i in range(4)}
    clients["c2"][0][4, 1] = index
    data = raysim.FederatedDataset.from_clients(train=clients)
    experiment = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "cohort": {"size": 4},
            "client": {"batch_size": 3},
            "engine": {"workers": 0, "trainer": trainer, "chunk_size": 4},
        }
    )
    for _ in raysim.rounds(experiment, dataset=data, model=module or standard):
        pass


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_index_that_is_no_row_ends_training(trainer: str) -> None:
    train(5, trainer)
    for index in (-1, -6, 6, 11, 1 << 40):
        with pytest.raises(ClientError, match="out of"):
            train(index, trainer)


def test_tables_that_a_forward_looks_up_by_itself_are_compared_too() -> None:
    train(5, "vmap", ByFunction)
    for index in (-1, 6):
        with pytest.raises(ClientError, match="out of"):
            train(index, "vmap", ByFunction)
