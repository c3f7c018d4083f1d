"""Archives and record files in publishers' formats."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def packed(path: Path, members: Mapping[str, bytes], folder: str = "cifar/") -> Path:
    """A tar.gz of the members, below a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"{folder}{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def records(*columns: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> bytes:
    """CIFAR's binary records: the columns side by side, a row an image."""
    return np.hstack([c[:, None] if c.ndim == 1 else c for c in columns]).astype(np.uint8).tobytes()


def idx(values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">{1 + values.ndim}I", 2048 + values.ndim, *values.shape) + values.tobytes()
