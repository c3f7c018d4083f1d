"""What each key of a section means, as the section's docstring says it: in entries `key: meaning`.

Several keys may share one, keys may stand in backquotes, and something in parentheses may follow them. What the
docstring of a base says holds where the section says nothing else.
"""

from __future__ import annotations

import inspect
import re

from raysim import Section


def meanings(section: type[Section]) -> dict[str, str]:
    """The meaning of each key of which the docstrings say one."""
    keys = [field.alias or name for name, field in section.model_fields.items()]
    found: dict[str, str] = {}
    for record in reversed(_documented(section)):
        found |= _entries(record, keys)
    return found


def prose(section: type[Section]) -> str:
    """The docstring without its entries."""
    keys = [field.alias or name for name, field in section.model_fields.items()]
    text = _entry(keys).sub("", _docstring(section))
    paragraphs = (paragraph.strip() for paragraph in text.removesuffix("Attributes:").split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph and paragraph != "Attributes:")


def _documented(section: type[Section]) -> list[type[Section]]:
    """The section and its bases, the nearest first."""
    mine = section.__mro__[: section.__mro__.index(Section)]
    return [record for record in mine if issubclass(record, Section) and record.__dict__.get("__doc__")]


def _docstring(section: type[Section]) -> str:
    return inspect.cleandoc(section.__doc__ or "")


def _entry(keys: list[str]) -> re.Pattern[str]:
    """One entry: its keys, and what is said of them up to the next entry or an empty line."""
    key = "`?(?:" + "|".join(map(re.escape, keys)) + ")`?"
    names = rf"{key}(?:, {key})*(?: \([^)]*\))?"
    start = rf"(?:^[ ]*|(?<=\. )){names}:\s"
    return re.compile(
        rf"(?:^[ ]*|(?<=\. ))(?P<names>{names}):\s(?P<meaning>.*?)(?={start}|\n\s*\n|\Z)", re.MULTILINE | re.DOTALL
    )


def _entries(section: type[Section], keys: list[str]) -> dict[str, str]:
    return {
        key: " ".join(entry["meaning"].split())
        for entry in _entry(keys).finditer(_docstring(section))
        for key in entry["names"].partition(" (")[0].replace("`", "").split(", ")
    }
