"""Extends Markdown for the site: angle brackets are text, as in `runs/<name>`, and never HTML."""

from __future__ import annotations

from typing import Any

from markdown import Extension


class AngleBrackets(Extension):  # type: ignore[misc]  # Markdown has no types
    """Removes the rules that let HTML through."""

    def extendMarkdown(self, md: Any) -> None:  # noqa: N802, the name is Markdown's
        """Called once by Markdown."""
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")


def makeExtension(**settings: Any) -> AngleBrackets:  # noqa: N802, the name is Markdown's
    """Called once by Markdown."""
    return AngleBrackets(**settings)
