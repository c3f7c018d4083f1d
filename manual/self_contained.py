"""Whether a built page needs the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=[\"\']?((?:https?:)?//[^\"\'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"\']?(?:stylesheet|preload|preconnect|prefetch|icon))[^>]*?"
    r"\bhref=[\"\']?((?:https?:)?//[^\"\'\s>]+)"
    r"|(?:@import\s+|url\()[\"\']?((?:https?:)?//[^\"\'\s)]+)",
    re.IGNORECASE,
)
"""What a browser fetches when it opens a page: scripts, pictures, styles, fonts. Links to click are none."""


def fetched(text: str) -> list[str]:
    """The addresses that a page or a style sheet makes a browser fetch."""
    return [next(filter(None, found)) for found in LOADED.findall(text)]


def in_folder(folder: Path) -> Iterator[str]:
    """`file: address` for every address that a built site fetches from elsewhere."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".html", ".css"):
            for address in fetched(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(folder)}: {address}"
