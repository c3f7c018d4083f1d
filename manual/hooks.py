"""Defines the hooks that mkdocs calls while it builds the site (mkdocs.yml names this file)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from manual import pages, reference


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/, generated pages included, and order the contents."""
    generated = {
        reference.COMMANDS: reference.command_page(),
        reference.PYTHON: reference.python_page(),
    }
    for path, place in pages.OUTSIDE.items():
        files.append(File.generated(config, place, content=(pages.ROOT / path).read_text(encoding="utf-8")))
    for place, text in generated.items():
        files.append(File.generated(config, place, content=text))
    config.nav = pages.navigation(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Convert a page's links to those of the site."""
    places = {place: path for path, place in pages.OUTSIDE.items()}
    place = page.file.src_uri
    if place.startswith(pages.REFERENCE):
        return markdown
    return pages.relinked(markdown, places.get(place, f"docs/{place}"))


def on_post_build(config: Any) -> None:
    """Refuse a site that needs the network."""
    fetched = list(pages.fetched_in(Path(config.site_dir)))
    if fetched:
        raise PluginError("pages fetch from elsewhere: " + "; ".join(fetched))
