"""Orders the texts of a safetensors file, which the library writes in an order by chance, another one in each call."""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH_BYTES = 8

_TEXTS = "__metadata__"


def put_in_order(file: Path) -> None:
    """Write the texts of a safetensors file in the order of their names, in place.

    So files of the same tensors and texts have the same bytes. The library has an order for tensors.

    Args:
        file: as the library wrote it, and not sealed yet.
    """
    with file.open("r+b") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        head = json.loads(opened.read(length))
        head[_TEXTS] = dict(sorted(head.get(_TEXTS, {}).items()))
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
        # The tensors stay where they are, which may be large. Blanks may follow the head.
        if len(text) <= length:
            opened.seek(_LENGTH_BYTES)
            opened.write(text.ljust(length))
