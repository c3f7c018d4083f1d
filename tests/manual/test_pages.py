"""What makes the site: its contents, links between its pages, and that it needs no network."""

from __future__ import annotations

from pathlib import Path

import raysim
import tuning
from manual import pages, reference


def test_links_between_files_become_links_between_pages() -> None:
    text = (
        "[a](docs/tuning.md#the-protocol) ![b](docs/report.png) [c](CHANGELOG.md) [d](https://x.org/docs/a.md) [e](#x)"
    )
    assert pages.relinked(text, "CONTRIBUTING.md") == (
        "[a](tuning.md#the-protocol) ![b](report.png) [c](changelog.md) [d](https://x.org/docs/a.md) [e](#x)"
    )
    assert pages.relinked("[a](../CONTRIBUTING.md#x) [b](papers.md)", "docs/architecture.md") == (
        "[a](contributing.md#x) [b](papers.md)"
    )
    assert pages.relinked("[a](../../CHANGELOG.md) [b](../tuning.md)", "docs/tutorials/first-run.md") == (
        "[a](../changelog.md) [b](../tuning.md)"
    )


def test_code_is_left_alone() -> None:
    block = "```python\nx = f[a](docs/b.md)\n```"
    assert pages.relinked(f"[a](docs/b.md)\n{block}\n", "CONTRIBUTING.md") == f"[a](b.md)\n{block}\n"


def test_contents_have_every_page_once_and_only_those_that_are_there() -> None:
    present = [
        "index.md",
        "papers.md",
        "tuning.md",
        "new.md",
        "tutorials/tuning.md",
        "reference/api.md",
        "configuration.md",
        "changelog.md",
    ]
    assert pages.navigation(present) == [
        "index.md",
        {"Tutorials": ["tutorials/tuning.md"]},
        {"Guide": ["tuning.md", "papers.md"]},
        {"Reference": ["configuration.md", "reference/api.md"]},
        {"Inside": ["changelog.md"]},
        {"More": ["new.md"]},
    ]


def test_what_a_browser_would_fetch_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.org/x.js"></script><link rel="stylesheet" href="//fonts.org/a.css">'
        '<img src=logo.png><a href="https://example.org">a link</a><link rel="canonical" href="https://example.org/">'
    )
    (tmp_path / "b.css").write_text('@import "https://cdn.org/y.css"; a { background: url(https://cdn.org/z.png) }')
    assert list(pages.fetched_in(tmp_path)) == [
        "a.html: https://cdn.org/x.js",
        "a.html: //fonts.org/a.css",
        "b.css: https://cdn.org/y.css",
        "b.css: https://cdn.org/z.png",
    ]


def test_the_reference_has_every_public_name_and_every_command() -> None:
    python = reference.python_page()
    for module in (raysim, tuning):
        assert all(f"::: {module.__name__}.{name}\n" in python for name in module.__all__)
    said = reference.command_page()
    for command in ("run", "resume", "replay", "check", "tune", "report", "compare", "data inspect", "data prepare"):
        assert f"## `raysim {command}`\n\n```text\nUsage: raysim {command} " in said
