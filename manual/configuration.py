"""Generates docs/configuration.md from the schema: every section, and type, default and meaning of every key.

Nothing is listed by hand: a new section of the schema gets a heading, and a new choice a place in the first table.
`python -m manual.configuration` writes the page.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from pydantic.fields import FieldInfo

import raysim
import tuning
from manual import examples
from manual.pages import ROOT
from raysim import Section
from raysim.config import kinds
from raysim.experiment import keys
from raysim.experiment.keys import KeyTable

PAGE = ROOT / "docs" / "configuration.md"

ELSEWHERE = keys.Elsewhere({"tuning": tuning.TuningSection})
"""Tables of the experiment whose schema is in another package."""

HEAD = """# Configuration

This page is generated from the code (`python -m manual.configuration` writes it). An experiment is a TOML file, read by
`raysim.load` or passed to a command; these are its keys. `--set KEY=VALUE` changes any of them by its dotted name, such
as `server.optimizer.lr`, and `--unset KEY` removes one. A key that does not exist, or that belongs to another choice,
is an error that names the nearest key. A key whose default is *none* may be absent; its meaning states the effect.
Editors complete and explain keys by the JSON schema, which `raysim keys --schema` prints.
`raysim keys client.optimizer` prints what this page says of a key.
"""

CHOICES = """## Choices

Keys that name a part, and the names that they take. `own` is a part that a script passes:
[a method of your own](tutorials/new-algorithm.md). `raysim parts` has a line about each, and lists the parts of
installed packages. `dataset=` and `model=` of `raysim.run` take data and a module from a script.

| key | choices |
| --- | --- |"""


Homes = Mapping[type[Section], KeyTable]


def page() -> str:
    """Return the page's Markdown."""
    tables = list(described())
    homes = {section: table for table in tables for section in table.sections}
    lines = [HEAD, CHOICES, *_choices(tables, homes), "", "## The experiment", *_keys(raysim.Experiment, "", homes)]
    for table in tables:
        lines += _table(table, homes)
    return "\n".join(lines).rstrip() + "\n"


def described() -> Iterator[KeyTable]:
    """Yield every table below the experiment; see `raysim.experiment.keys.tables`."""
    return keys.tables(ELSEWHERE)


def missing() -> list[str]:
    """Return the missing descriptions and examples of keys."""
    every: list[tuple[str, type[Section]]] = [("", raysim.Experiment)]
    every += [(table.path, section) for table in described() for section in table.sections]
    lacks = []
    for path, section in every:
        where = f"{section.__module__}.{section.__name__}"
        for key, field, inside in keys.keys(section, ELSEWHERE):
            if not field.description:
                lacks.append(f"{where}.{key}: no description")
            if _example(path, key, section, field) is None and not inside:
                lacks.append(f"{where}.{key}: no example")
    return lacks


def _choices(tables: Iterable[KeyTable], homes: Homes) -> Iterator[str]:
    for table in tables:
        if any(keys.name_of(section) for section in table.sections):
            yield f"| `{table.path}` | {_links(table.sections, homes)} |"


def _table(table: KeyTable, homes: Homes) -> Iterator[str]:
    yield f"\n## `{table.path}`\n"
    if not _is_choice(table):
        yield from _section(table.sections[0], table.path, homes)
        return
    by = f", by its `{keys.name_key(table.sections[0])}`" if keys.name_of(table.sections[0]) else ""
    yield f"One of these{by}: {_links(table.sections, homes)}."
    for section in table.sections:
        yield f"\n### {_heading(section, table)}\n"
        yield from _section(section, table.path, homes)


def _section(section: type[Section], path: str, homes: Homes) -> Iterator[str]:
    yield "\n\n".join(text for text in (_head(section), inspect.cleandoc(section.__doc__ or "")) if text)
    yield from _keys(section, path, homes)


def _keys(section: type[Section], path: str, homes: Homes) -> Iterator[str]:
    yield ""
    for key, field, inside in keys.keys(section, ELSEWHERE):
        kind = kinds.takes(field.annotation, field.metadata)
        if inside:
            kind += f": {_links(inside, homes)}"
        facts = [kind, keys.default(field)]
        value = _example(path, key, section, field)
        if value is not None:
            facts.append(f"such as `{key} = {kinds.toml(value)}`")
        yield f"- **`{key}`**: {field.description}\n  {_capital('; '.join(facts))}."


def _example(path: str, key: str, section: type[Section], field: FieldInfo) -> object:
    """Return a value that is not a table: a table is shown key by key."""
    dotted = f"{path}.{key}".removeprefix(".")
    value = examples.example(dotted, keys.name_of(section), field, examples.used_in_configs())
    return None if isinstance(value, Section) else value


def _is_choice(table: KeyTable) -> bool:
    return len(table.sections) > 1 or keys.name_of(table.sections[0]) is not None


def _title(section: type[Section]) -> str:
    name = keys.name_of(section)
    return f"`{name}`" if name else "with " + ", ".join(f"`{key.name}`" for key in keys.keys(section, ELSEWHERE))


def _heading(section: type[Section], table: KeyTable) -> str:
    """Return what the section is headed by, which no other section is."""
    if not _is_choice(table):
        return f"`{table.path}`"
    return f"`{table.path}` {'= ' if keys.name_of(section) else ''}{_title(section)}"


def _links(sections: Iterable[type[Section]], homes: Homes) -> str:
    return ", ".join(_link(section, homes[section]) for section in sections)


def _link(section: type[Section], home: KeyTable) -> str:
    return f"[{_title(section) if _is_choice(home) else 'its keys'}](#{anchor(_heading(section, home))})"


def anchor(heading: str) -> str:
    """Return the id that forges and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _head(section: type[Section]) -> str:
    """Return the first paragraph of the choice's module docstring, if the module has no other section."""
    module = sys.modules[section.__module__]
    others = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Section)]
    mine = [value for value in others if value.__module__ == section.__module__]
    if len(mine) > 1 or keys.name_of(section) is None:
        return ""
    first, *more = (module.__doc__ or "").split("\n\n")
    return "\n\n".join([first, *more[:1]] if first.rstrip().endswith(":") else [first]).strip()


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
