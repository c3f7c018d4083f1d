"""How examples reach a device: by its definition, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from raysim.arrays import Int64s
from raysim.data import DatasetWriter, FederatedDataset, Field, Split
from raysim.data import on_device as module
from raysim.data.array_split import ArraySplit
from raysim.data.generated_split import GeneratedSplit
from raysim.data.on_device import Examples, concatenate
from raysim.data.pooled import pool_clients
from raysim.data.subset import Subset

SIZES = (4, 1, 7, 2)
LIKE = torch.zeros(1, dtype=torch.float64)
SEGMENTS = [(2, 1, 6), (0, 0, 4), (3, 1, 2), (2, 0, 7)]

FIELDS: dict[str, tuple[Field, Field]] = {
    "bytes with scale and offset, labels": (Field((2, 3), "uint8", 1 / 255, -0.5), Field((), "int64")),
    "float32, labels of a byte": (Field((5,), "float32"), Field((), "uint8")),
    "float64, real targets": (Field((), "float64"), Field((2,), "float32")),
    "half precision, scaled real targets": (Field((3,), "float16"), Field((), "float64", 2.0, 1.0)),
    "texts with padding": (Field((6,), "uint16"), Field((6,), "int32", padding=0)),
    "wide unsigned numbers": (Field((2,), "uint64"), Field((), "uint32")),
    "booleans": (Field((4,), "bool"), Field((), "bool")),
}


def values(draw: np.random.Generator, n: int, field: Field) -> npt.NDArray[Any]:
    made = draw.standard_normal((n, *field.shape)) if field.is_floating else draw.integers(0, 2, (n, *field.shape))
    return made.astype(field.dtype)


def clients(x: Field, y: Field) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    draw = np.random.default_rng(0)
    return {f"c{k}": (values(draw, n, x), values(draw, n, y)) for k, n in enumerate(SIZES)}


def stored(folder: Path, x: Field, y: Field, rows_per_batch: int) -> FederatedDataset:
    size = rows_per_batch * (x.example_bytes + y.example_bytes)
    with DatasetWriter(folder, x, y, None if y.is_floating else 2, batch_bytes=size) as writer:
        for client_id, rows in clients(x, y).items():
            writer.write("train", client_id, *rows)
    return FederatedDataset.open(folder)


class Computed:
    """Clients that are computed when they are asked for."""

    def __init__(self, x: Field, y: Field) -> None:
        self.rows = list(clients(x, y).values())

    def sizes(self, numbers: Int64s) -> Int64s:
        return np.array(SIZES, np.int64)[numbers]

    def client(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.rows[number]


def kept_as(where: str, folder: Path, x: Field, y: Field) -> FederatedDataset:
    """The clients of the fields, wherever they may lie."""
    if where == "mapped, in one batch":
        return stored(folder, x, y, 1000)
    mapped = stored(folder, x, y, 3)
    first_rows = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    xs, ys = (np.concatenate(side) for side in zip(*clients(x, y).values(), strict=True))
    # What processes share can only be read.
    xs.flags.writeable = ys.flags.writeable = False
    split: Split = ArraySplit(tuple(clients(x, y)), xs, ys, first_rows)
    if where == "some of more clients":
        more = ArraySplit(("other", *clients(x, y)), np.r_[xs[:1], xs], np.r_[ys[:1], ys], np.r_[0, first_rows + 1])
        split = Subset(more, np.arange(1, 5))
    if where == "computed":
        split = GeneratedSplit(Computed(x, y), len(SIZES))
    return mapped if where == "mapped, in several" else replace(mapped, train=split)


WHERE = ("in memory", "mapped, in one batch", "mapped, in several", "some of more clients", "computed")


def by_definition(side: int, field: Field, own: dict[str, Any]) -> torch.Tensor:
    """The segments' rows: floats in the dtype of LIKE, integers as int64, scaled where the field says so."""
    rows = [own[f"c{position}"][side][start:stop] for position, start, stop in SEGMENTS]
    joined = np.concatenate(rows)
    if (field.scale, field.offset) != (1.0, 0.0):
        return torch.from_numpy(joined.astype(np.float64) * field.scale + field.offset)
    return torch.from_numpy(joined.astype(np.float64 if field.is_floating else np.int64))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fields", FIELDS)
def test_rows_are_the_same_bits_wherever_they_lie(fields: str, where: str, tmp_path: Path) -> None:
    x, y = FIELDS[fields]
    expected = tuple(by_definition(side, field, clients(x, y)) for side, field in ((0, x), (1, y)))
    on_host, on_device = (Examples(kept_as(where, tmp_path / name, x, y)) for name in ("host", "device"))
    on_device.upload("train", torch.device("cpu"))
    for examples in (on_host, on_device):
        for made, by_hand in zip(examples.load("train", SEGMENTS, LIKE), expected, strict=True):
            assert made.dtype == by_hand.dtype
            assert torch.equal(made, by_hand)


@pytest.mark.parametrize("where", WHERE)
def test_what_was_loaded_is_the_callers_own(where: str, tmp_path: Path) -> None:
    examples = Examples(kept_as(where, tmp_path / "data", Field((3,), "float64"), Field((), "int64")))
    for upload in (False, True):
        if upload:
            examples.upload("train", torch.device("cpu"))
        for made in examples.load("train", [(0, 0, 4)], LIKE):
            before = made.clone()
            made.zero_()
            assert before.any()
            again = examples.load("train", [(0, 0, 4)], LIKE)
            assert any(torch.equal(before, other) for other in again)


def test_all_clients_as_one_are_loaded_in_order(tmp_path: Path) -> None:
    x, y = FIELDS["float32, labels of a byte"]
    everybody = [np.concatenate(side) for side in zip(*clients(x, y).values(), strict=True)]
    for where in WHERE:
        examples = Examples(pool_clients(kept_as(where, tmp_path / where, x, y)))
        for made, expected in zip(examples.load("train", [(0, 0, 14)], LIKE), everybody, strict=True):
            np.testing.assert_array_equal(made.numpy(), expected)


@pytest.mark.parametrize("most", [1, 3, 5, 1000])
def test_an_upload_goes_in_blocks_of_a_bounded_size(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = FIELDS["texts with padding"]
    examples = Examples(kept_as("mapped, in several", tmp_path / "data", x, y))
    expected = examples.load("train", SEGMENTS, LIKE)
    sent = []

    def noted(pieces: Sequence[npt.NDArray[Any]], pinned: bool) -> torch.Tensor:
        sent.append(sum(map(len, pieces)))
        return concatenate(pieces, pinned)

    monkeypatch.setattr(module, "concatenate", noted)
    monkeypatch.setattr(module, "BLOCK_BYTES", most * (x.example_bytes + y.example_bytes))
    examples.upload("train", torch.device("cpu"))
    # Of x and of y.
    assert sum(sent) == 2 * sum(SIZES)
    assert set(sent[:-2]) <= {most}
    assert max(sent) <= most
    assert all(map(torch.equal, examples.load("train", SEGMENTS, LIKE), expected))


def test_after_letting_go_rows_come_from_the_host_again(tmp_path: Path) -> None:
    examples = Examples(kept_as("in memory", tmp_path / "data", *FIELDS["booleans"]))
    expected = examples.load("train", SEGMENTS, LIKE)
    assert not examples.let_go()
    examples.upload("train", torch.device("cpu"))
    assert examples.let_go()
    assert not examples.let_go()
    assert all(map(torch.equal, examples.load("train", SEGMENTS, LIKE), expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA card here")
@pytest.mark.parametrize("fields", FIELDS)
def test_a_cards_own_rows_are_those_that_are_sent(fields: str, tmp_path: Path) -> None:
    x, y = FIELDS[fields]
    card = torch.device("cuda")
    examples = Examples(kept_as("mapped, in several", tmp_path / "data", x, y))
    sent = examples.load("train", SEGMENTS, LIKE.to(card))
    examples.upload("train", card)
    gathered = examples.load("train", SEGMENTS, LIKE.to(card))
    assert all(made.is_cuda for made in gathered)
    assert all(map(torch.equal, gathered, sent))
