"""Which files of the repository are pages of the site, and how links between them read there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
}
"""Files that do not lie in docs/ -> what they are in the site."""

CONTENTS = {
    "Tutorials": ("first-run", "own-model-and-data", "tuning", "cluster", "new-algorithm", "reading-results"),
    "Guide": ("algorithms", "tuning", "cluster", "recovery", "papers", "reproduction", "performance"),
    "Inside": ("architecture", "contributing", "changelog"),
}
"""The order of pages by part; what is not there is left out, and what is not named follows under "More"."""

FOLDERS = {"Tutorials": "tutorials/"}

REFERENCE = "reference/"

LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s#\"]+)([#)\"])")
"""The target of a link or picture, without its anchor."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def in_site(path: str) -> str:
    """Where a file of the repository is in the site; the same path where it is no part of it."""
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


def navigation(present: Iterable[str]) -> list[dict[str, list[str]] | str]:
    """The site's contents, from the pages that are there."""
    left = dict.fromkeys(page for page in present if page != "index.md")
    parts: list[dict[str, list[str]] | str] = ["index.md"]

    def add(title: str, pages: list[str]) -> None:
        for page in pages:
            del left[page]
        if pages:
            parts.append({title: pages})

    for title, names in CONTENTS.items():
        wanted = [f"{FOLDERS.get(title, '')}{name}.md" for name in names]
        add(title, [page for page in wanted if page in left])
        if title == "Guide":
            add("Reference", [page for page in left if page.startswith(REFERENCE)])
    add("More", list(left))
    return parts
