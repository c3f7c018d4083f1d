"""Lists the pages of the site, converts links between them, and finds built pages that need the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
}
"""Files outside docs/ -> their place in the site."""

CONTENTS = {
    "Tutorials": ("first-run", "own-model-and-data", "tuning", "cluster", "new-algorithm"),
    "Guide": (
        "coming-from",
        "data",
        "algorithms",
        "tuning",
        "cluster",
        "storage",
        "recovery",
        "papers",
        "reproduction",
        "performance",
    ),
    "Inside": ("architecture", "contributing", "changelog"),
}
"""The order of pages by part; missing pages are left out, and unnamed pages follow under "More"."""

FOLDERS = {"Tutorials": "tutorials/"}

REFERENCE = "reference/"

LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s#\"]+)([#)\"])")
"""The target of a link or picture, without its anchor."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def in_site(path: str) -> str:
    """Return the place of a repository's file in the site; the same path if it is not in the site."""
    return OUTSIDE.get(path, path.removeprefix("docs/"))


def relinked(text: str, path: str) -> str:
    """Return the Markdown of the file `path`, with links of the site."""
    here = dirname(in_site(path))

    def moved(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if re.match(r"\w+:", target):
            return found[0]
        file = normpath(join(dirname(path), target))
        return f"{before}{relpath(in_site(file), here or '.')}{after}"

    kept: list[str] = []
    end = 0
    for block in FENCED.finditer(text):
        kept += [LINK.sub(moved, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*kept, LINK.sub(moved, text[end:])])


Contents = list[str | dict[str, "Contents"]]


def navigation(present: Iterable[str]) -> Contents:
    """Return the site's contents, from the existing pages."""
    left = list(present)

    def taken(wanted: Iterable[str]) -> Contents:
        """Return the wanted pages that exist and are not placed yet."""
        found: Contents = [page for page in wanted if page in left]
        left[:] = [page for page in left if page not in found]
        return found

    def below(folder: str) -> Contents:
        return taken([page for page in left if page.startswith(folder)])

    parts: Contents = taken(["index.md"])
    for title, names in CONTENTS.items():
        parts.append({title: taken([f"{FOLDERS.get(title, '')}{name}.md" for name in names])})
    parts.insert(-1, {"Reference": [{"Configuration": below(f"{REFERENCE}configuration/")}, *below(REFERENCE)]})
    parts.append({"More": taken(list(left))})
    return [part for part in parts if isinstance(part, str) or any(part.values())]


LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=[\"\']?((?:https?:)?//[^\"\'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"\']?(?:stylesheet|preload|preconnect|prefetch|icon))[^>]*?"
    r"\bhref=[\"\']?((?:https?:)?//[^\"\'\s>]+)"
    r"|(?:@import\s+|url\()[\"\']?((?:https?:)?//[^\"\'\s)]+)",
    re.IGNORECASE,
)
"""Matches what a browser fetches with a page: scripts, pictures, styles, fonts, but no links to click."""


def fetched(text: str) -> list[str]:
    """Return the addresses that a page or a style sheet makes a browser fetch."""
    return [next(filter(None, found)) for found in LOADED.findall(text)]


def fetched_in(folder: Path) -> Iterator[str]:
    """Yield `file: address` for every address that a built site fetches from elsewhere."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".html", ".css"):
            for address in fetched(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(folder)}: {address}"
