"""scripts/flip-bits: a flipped bit at rest is refused, or changes no number; and other numbers would be noticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import raysim
from scripts.flip_bits.tries import OUTCOMES, difference, scenes, tries


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Counter[tuple[str, str]]:
    """Outcomes by scene and outcome."""
    folder = tmp_path_factory.mktemp("flips")
    every = list(tries(scenes(folder / "recorded"), folder / "tries", 21, seed=4))
    assert not [one for one in every if one.outcome in ("SILENT", "crashed")]
    return Counter((one.scene, one.outcome) for one in every)


def test_no_flipped_bit_changes_a_number_unseen(found: Counter[tuple[str, str]]) -> None:
    assert found.total() == 21
    for scene in ("cached", "batches", "published"):
        assert found[scene, "refused"] > 0
    assert found["cached", "identical"] > 0, "what can be made again, is"
    assert {outcome for _, outcome in found} < set(OUTCOMES)


def test_other_numbers_are_noticed() -> None:
    rounds, clients = (
        pa.table({"round": [0, 1], "loss": [0.5, None], "wall_time_s": [1.0, 2.0]}),
        pa.table({"a": ["b"]}),
    )
    one = raysim.Result({"w": torch.tensor([1.0, -0.0])}, rounds, clients, Path())
    assert difference(one, replace(one, params={"w": torch.tensor([1.0, -0.0])})) is None
    assert difference(one, replace(one, params={"w": torch.tensor([1.0 + 1e-7, -0.0])})) == "the model's w"
    assert difference(one, replace(one, params={})) == "the model's names"
    assert difference(one, replace(one, rounds=rounds.slice(1))) == "round of rounds"
    assert difference(one, replace(one, clients=clients.rename_columns(["c"]))) == "the columns of clients"
    slower = rounds.set_column(2, "wall_time_s", pa.array([9.0, 9.0]))
    assert difference(one, replace(one, rounds=slower)) is None
