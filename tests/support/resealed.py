"""Seals changed files anew, as a stranger would who knows how: what is left to notice are form and meaning."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.data import checksums, manifest
from raysim.data.manifest import FILE
from raysim.storage import sealed
from raysim.storage.cache import checksum
from raysim.storage.remote.index import INDEX


def reseal(root: Path) -> None:
    """Make the checksums of files below a folder those of their contents; lists of files come last."""
    found = sorted(file for file in root.rglob("*") if file.is_file() and not file.is_symlink())
    lists: dict[str, Callable[[Path], None]] = {FILE: _list_dataset, INDEX: _list_mirrored}
    for file in sorted(found, key=lambda file: (file.name == INDEX, file.name == FILE)):
        if file.name in lists:
            lists[file.name](file)
        content = file.read_bytes()
        last = file.suffix == ".parquet"
        if len(content) < 1 << 20 and sealed.flaw(content, last) is not None and _has_place(content, last):
            sealed.write(file, content, last)


def _has_place(content: bytes, last: bool) -> bool:
    mark = sealed.MARK.encode()
    at = content.rfind(mark) if last else content.find(mark)
    return 0 <= at <= len(content) - len(sealed.BLANK)


def _list_dataset(file: Path) -> None:
    def listed(table: Any) -> None:
        for split, entry in table["splits"].items():
            for kind, name in (("data", manifest.data_file(split)), ("index", manifest.index_file(split))):
                path = file.parent / name
                if path.is_file():
                    entry[f"{kind}_bytes"] = os.path.getsize(path)
                    entry[f"{kind}_crc32"] = checksums.of_file(path)
                    entry[f"{kind}_blake2b"] = checksum(path)

    _rewritten(file, listed)


def _list_mirrored(file: Path) -> None:
    """The index at the URI: the local record has the same name, and says what was fetched."""

    def listed(table: Any) -> None:
        for name, contents in table["files"].items():
            path = file.parent / name
            if isinstance(contents[0], list) and isinstance(contents[0][0], int) and path.is_file():
                table["files"][name] = [[os.path.getsize(path), checksum(path)]]

    _rewritten(file, listed)


def _rewritten(file: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file; one that is no longer a list of files stays as it is."""
    try:
        table = json.loads(file.read_bytes())
        change(table)
        text = json.dumps(table).encode()
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return
    file.write_bytes(text)
