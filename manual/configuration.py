"""Generates the configuration reference from the schema: every section, and type, default and meaning of every key.

The experiment's top-level keys have one page, and each of its tables has one. Nothing is listed by hand: a new section
of the schema gets a page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping

from pydantic.fields import FieldInfo

import raysim
import tuning
from manual import examples
from raysim import Section
from raysim.config import kinds
from raysim.experiment import keys
from raysim.experiment.keys import KeyTable

FOLDER = "reference/configuration/"

ELSEWHERE: dict[str, type[Section]] = {"tuning": tuning.TuningSection}
"""Tables of the experiment whose schema is in another package."""

HEAD = """# Configuration

An experiment is a TOML file, read by `raysim.load` or passed to a command. These are its keys; each table has a page.
`--set KEY=VALUE` changes any of them by its dotted name, such as `server.optimizer.lr`, and `--unset KEY` removes one.
A key that does not exist, or that belongs to another choice, is an error that names the nearest key. A key whose
default is *none* may be absent; its meaning states the effect. Editors complete and explain keys by the
JSON schema: `raysim keys --schema > raysim.json`. `raysim keys client.optimizer` prints what this reference says of it.
"""


Homes = Mapping[type[Section], KeyTable]


def pages() -> dict[str, str]:
    """Return path in the site -> Markdown."""
    tables = list(described())
    homes = {section: table for table in tables for section in table.sections}
    pages = {f"{FOLDER}index.md": _written([HEAD, *_keys(raysim.Experiment, "", "", homes)])}
    for page in dict.fromkeys(table.page for table in tables):
        pages[f"{FOLDER}{page}.md"] = _written(
            line for table in tables if table.page == page for line in _table(table, homes)
        )
    return pages


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


def _table(table: KeyTable, homes: Homes) -> Iterator[str]:
    mark = "#" if table.path == table.page else "##"
    yield f"{mark} `[{table.path}]` {{ #{_anchor(table.path)} }}\n"
    if not _is_choice(table):
        yield from _section(table.sections[0], table, homes)
        return
    links = ", ".join(_link(section, table.page, table) for section in table.sections)
    by = f", by its `{keys.name_key(table.sections[0])}`" if keys.name_of(table.sections[0]) else ""
    yield f"One of these{by}: {links}.\n"
    for section in table.sections:
        yield f"{mark}# {_title(section)} {{ #{_anchor_of(section, table)} }}\n"
        yield from _section(section, table, homes)


def _section(section: type[Section], table: KeyTable, homes: Homes) -> Iterator[str]:
    for text in (_head(section), inspect.cleandoc(section.__doc__ or "")):
        if text:
            yield f"{text}\n"
    yield from _keys(section, table.path, table.page, homes)


def _keys(section: type[Section], path: str, page: str, homes: Homes) -> Iterator[str]:
    for key, field, inside in keys.keys(section, ELSEWHERE):
        kind = kinds.takes(field.annotation, field.metadata)
        if inside:
            kind += ": " + ", ".join(_link(each, page, homes[each]) for each in inside)
        facts = [kind, keys.default(field)]
        value = _example(path, key, section, field)
        if value is not None:
            facts.append(f"such as `{key} = {kinds.toml(value)}`")
        yield f"`{key}`\n:   {'; '.join(facts)}\n\n    {field.description}\n"


def _example(path: str, key: str, section: type[Section], field: FieldInfo) -> object:
    """Return a value that is no table: a table is shown key by key."""
    dotted = f"{path}.{key}".removeprefix(".")
    value = examples.example(dotted, keys.name_of(section), field, examples.used_in_configs())
    return None if isinstance(value, Section) else value


def _is_choice(table: KeyTable) -> bool:
    return len(table.sections) > 1 or keys.name_of(table.sections[0]) is not None


def _title(section: type[Section]) -> str:
    name = keys.name_of(section)
    return f"`{name}`" if name else "with " + ", ".join(f"`{key.name}`" for key in keys.keys(section, ELSEWHERE))


def _anchor(path: str) -> str:
    return path.replace(".", "-")


def _anchor_of(section: type[Section], table: KeyTable) -> str:
    return f"{_anchor(table.path)}-{keys.name_of(section) or section.__name__.lower()}"


def _link(section: type[Section], page: str, home: KeyTable) -> str:
    anchor = _anchor_of(section, home) if _is_choice(home) else _anchor(home.path)
    label = _title(section) if _is_choice(home) else "its keys"
    return f"[{label}]({'' if home.page == page else f'{home.page}.md'}#{anchor})"


def _head(section: type[Section]) -> str:
    """Return the first paragraph of the choice's module docstring, if the module has no other section."""
    module = sys.modules[section.__module__]
    others = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Section)]
    mine = [value for value in others if value.__module__ == section.__module__]
    if len(mine) > 1 or keys.name_of(section) is None:
        return ""
    first, *more = (module.__doc__ or "").split("\n\n")
    return "\n\n".join([first, *more[:1]] if first.rstrip().endswith(":") else [first]).strip()


def _written(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
