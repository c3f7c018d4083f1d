"""Which files are pages of the site, how links between them read there, and whether a built page needs the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
}
"""Files that do not lie in docs/ -> what they are in the site."""

CONTENTS = {
    "Tutorials": ("first-run", "own-model-and-data", "adapters", "tuning", "cluster", "new-algorithm"),
    "Guide": (
        "experiments",
        "results",
        "coming-from",
        "cookbook",
        "data",
        "pretrained",
        "language-models",
        "algorithms",
        "tuning",
        "cluster",
        "storage",
        "stopping",
        "privacy",
        "recovery",
        "security",
        "drift",
        "compression",
        "methods",
        "papers",
        "reproduction",
        "performance",
    ),
    "Inside": ("architecture", "contributing", "changelog"),
}
"""The order of pages by part; what is not there is left out, and what is not named follows under "More"."""

FOLDERS = {"Tutorials": "tutorials/"}

REFERENCE = "reference/"

LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s#\"]+)([#)\"])")
"""The target of a link or picture, without its anchor."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def in_site(path: str) -> str:
    """Where a file of the repository is in the site; the same path where it is not part of it."""
    return OUTSIDE.get(path, path.removeprefix("docs/"))


def relinked(text: str, path: str) -> str:
    """The Markdown of the file `path`, with links as they read in the site."""
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
    """The site's contents, from the pages that are there."""
    left = list(present)

    def taken(wanted: Iterable[str]) -> Contents:
        """Those of the pages that are there and stand nowhere yet."""
        found: Contents = [page for page in wanted if page in left]
        left[:] = [page for page in left if page not in found]
        return found

    def below(folder: str) -> Contents:
        return taken([page for page in left if page.startswith(folder)])

    parts: Contents = taken(["index.md"])
    for title, names in CONTENTS.items():
        parts.append({title: taken([f"{FOLDERS.get(title, '')}{name}.md" for name in names])})
    parts.insert(-1, {"Reference": [*taken(["configuration.md"]), *below(REFERENCE)]})
    parts.append({"More": taken(list(left))})
    return [part for part in parts if isinstance(part, str) or any(part.values())]


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


def fetched_in(folder: Path) -> Iterator[str]:
    """`file: address` for every address that a built site fetches from elsewhere."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".html", ".css"):
            for address in fetched(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(folder)}: {address}"
