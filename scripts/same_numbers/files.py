"""Writes the small files that the cases' data sources read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import language, tiny

SOURCES = (
    "mnist",
    "fashion_mnist",
    "emnist",
    "cifar10",
    "cifar100",
    "fed_cifar100",
    "shakespeare",
    "stackoverflow",
    "ag_news",
    "newsgroups",
    "gld",
)


def write(root: Path) -> None:
    """Published sources as the tests make them, LEAF's files, and tables of one's own."""
    root.mkdir(parents=True)
    for source in SOURCES:
        tiny.write(root, source)
    # They lie in one folder with the other emnist.
    tiny.write(root / "idx", "emnist_idx")
    draw = np.random.default_rng(5)
    for split, size in (("train", 24), ("validation", 12), ("test", 12)):
        _table(root / f"{split}.parquet", draw, size)
    language.write_model(root / "language")
    language.write_lines(root / "instructions" / "train.jsonl")
    for name, who in (("a", language.USERS), ("b", ("yan", "zoe"))):
        language.write_lines(root / "questions" / f"{name}.jsonl", who, keys=("who", "question", "reply"))
    for side in ("train", "test"):
        (root / "leaf" / "data" / side).mkdir(parents=True)
        users = {
            f"u{k}": {"x": draw.random((4, 5)).round(3).tolist(), "y": draw.integers(0, 3, 4).tolist()}
            for k in range(4)
        }
        content = {"users": list(users), "num_samples": [4] * len(users), "user_data": users}
        (root / "leaf" / "data" / side / "all.json").write_text(json.dumps(content))


def _table(file: Path, draw: np.random.Generator, size: int) -> None:
    columns = {
        "client": [f"u{row % 4}" for row in range(size)],
        "who": [row % 4 for row in range(size)],
        "x": draw.random((size, 6)).astype(np.float32).tolist(),
        "a": draw.random(size),
        "b": draw.random(size),
        "y": draw.integers(0, 4, size),
        "label": draw.integers(0, 4, size),
    }
    pq.write_table(pa.table(columns), file)
