"""Files in TensorFlow Federated's two formats, written without TensorFlow."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Clients = Mapping[str, Mapping[str, Any]]


def hdf5(path: Path, clients: Clients) -> Path:
    """`examples/<client>/<column>`."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, columns in clients.items():
            for name, values in columns.items():
                file.create_dataset(f"examples/{client}/{name}", data=values)
        if not clients:
            file.create_group("examples")
    return path


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(value: bytes | Sequence[float] | Sequence[int]) -> bytes:
    """A tf.train.Feature: one text, packed floats or packed integers."""
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if isinstance(value[0], float):
        return field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
    return field(3, field(1, b"".join(varint(int(number)) for number in value)))


def message(features: Mapping[str, Any]) -> bytes:
    """A tf.train.Example."""
    entries = [field(1, field(1, name.encode()) + field(2, feature(value))) for name, value in features.items()]
    return field(1, b"".join(entries))


def sqlite(path: Path, splits: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Path:
    """The tables of the published files; splits -> clients -> examples."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, clients in splits.items():
            for client, examples in clients.items():
                database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(examples)))
                rows = [(split, client, message(example)) for example in examples]
                database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    database.close()
    return path


def image(value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """28 x 28 pixels of value / 255."""
    return np.full((28, 28), value / 255, np.float32)
