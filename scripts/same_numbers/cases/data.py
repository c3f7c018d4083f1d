"""Makes the datasets of cases: as small as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np


def datasets(name: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Splits of clients by name, drawn with a fixed seed; clients 0 to 3 have test examples too."""
    draw = np.random.default_rng(11)
    sizes = [3 + 2 * (7 * k % 12) for k in range(12)]

    def clients(count: int, prefix: str, size: int | None = None) -> dict[str, tuple[Any, Any]]:
        return {f"{prefix}{k}": _examples(name, draw, size or sizes[k]) for k in range(count)}

    return {"train": clients(12, "c"), "test": clients(4, "c", 6), "validation": clients(3, "v", 5)}


def _examples(name: str, draw: np.random.Generator, size: int) -> tuple[Any, Any]:
    if name in ("pixels", "colours", "large"):
        shape = {"pixels": (1, 12, 12), "colours": (3, 8, 8), "large": (3, 26, 26)}[name]
        return draw.random((size, *shape), dtype=np.float32), draw.integers(0, 4, size)
    if name == "texts":
        text = draw.integers(0, 9, (size, 7))
        return text[:, :-1], text[:, 1:]
    if name == "labelled texts":
        return draw.integers(0, 9, (size, 6)), draw.integers(0, 3, size)
    x = draw.standard_normal((size, 6), dtype=np.float32)
    if name == "regression":
        return x, x[:, :2].sum(1, keepdims=True) + draw.standard_normal((size, 1), dtype=np.float32)
    return x, draw.integers(0, 4, size)
