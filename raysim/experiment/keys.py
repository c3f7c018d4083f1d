"""Lists the keys of an experiment from its schema: where they stand, what they hold, their defaults and meanings.

Nothing is listed by hand: a new section of the schema is here by itself. The command `raysim keys` and the
configuration reference are written from this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from raysim.config import kinds
from raysim.config.messages import WORDS, near
from raysim.config.own_part import OwnPart, PartSection
from raysim.config.part import Kind, Packaged
from raysim.config.section import Section
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment


class Elsewhere(NamedTuple):
    """Sections that raysim's schema does not name.

    tables: of the experiment's keys whose schema is in another package, by their key. parts: of packages' parts.
    """

    tables: Mapping[str, type[Section]]
    parts: Mapping[Kind, tuple[type[Section], ...]] = MappingProxyType({})


class KeyTable(NamedTuple):
    """The sections that one dotted key may hold: one, or choices. `page`: the experiment's key that they lie in."""

    path: str
    page: str
    sections: tuple[type[Section], ...]


class Key(NamedTuple):
    """A key of a section, or of the experiment: its name, its field, and the sections that it may hold."""

    name: str
    field: FieldInfo
    inside: tuple[type[Section], ...]


def tables(elsewhere: Elsewhere) -> Iterator[KeyTable]:
    """Yield every table below the experiment; a section that several keys may hold appears at the first key."""
    met: set[type[Section]] = set()
    for top in keys(Experiment, elsewhere):
        waiting = deque([(top.name, top.inside)] if top.inside else [])
        while waiting:
            path, inside = waiting.popleft()
            new = tuple(section for section in inside if section not in met)
            met.update(new)
            if new:
                yield KeyTable(path, top.name, new)
            waiting.extend(
                (f"{path}.{key.name}", key.inside) for section in new for key in keys(section, elsewhere) if key.inside
            )


def keys(section: type[Section], elsewhere: Elsewhere) -> list[Key]:
    """Return the keys of a section as a file has them, without the name that makes the choice."""
    listed = []
    for name, field in section.model_fields.items():
        key = field.alias or name
        if name == "name" and name_of(section):
            continue
        if section is Experiment and key in elsewhere.tables:
            inside: tuple[type[Section], ...] = (elsewhere.tables[key],)
        else:
            packaged = _packaged(field.annotation, field.metadata)
            inside = (
                *kinds.sections(field.annotation),
                *(part for kind in packaged for part in elsewhere.parts.get(kind, ())),
            )
        listed.append(Key(key, field, inside))
    return listed


def _packaged(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[Kind]:
    """Yield the kinds of the parts that packages may add to a key, or to the entries of its list."""
    for each in metadata:
        if isinstance(each, Packaged):
            yield each.kind
    for inner in get_args(annotation):
        yield from _packaged(inner, getattr(inner, "__metadata__", ()))


def find(path: str, elsewhere: Elsewhere) -> list[tuple[type[Section], Key]]:
    """Return the keys of this dotted path, each with the section that has it: one for each choice.

    A part of the path may be the name of a choice, as in `client.correction.prox.mu`: then only that choice counts. A
    path that ends in such a name gives the key that it is chosen by, with this choice alone inside. One that ends in
    the key that holds the name, as in `client.correction.name`, gives the same key as `client.correction`.

    Raises:
        ExperimentError: there is none; names the nearest, or where such a key or choice is.
    """
    sections: tuple[type[Section], ...] = (Experiment,)
    owners: list[tuple[type[Section], Key]] = []
    before = ""
    for part in path.split("."):
        every = [(section, key) for section in sections for key in keys(section, elsewhere)]
        found = [(section, key) for section, key in every if key.name == part]
        chosen = tuple(section for section in sections if name_of(section) == part)
        if found:
            owners = found
        elif chosen:
            inside = [(owner, tuple(section for section in chosen if section in key.inside)) for owner, key in owners]
            owners = [
                (owner, key._replace(inside=taken))
                for (owner, taken), (_, key) in zip(inside, owners, strict=True)
                if taken
            ]
        elif f"{before}{part}" == path and any(name_of(section) and name_key(section) == part for section in sections):
            return owners
        else:
            raise ExperimentError(_missing(part, before, every, sections, elsewhere))
        sections = tuple(dict.fromkeys(inner for _, key in owners for inner in key.inside))
        before += f"{part}."
    return owners


MOST_PLACES = 4
"""An error names at most so many other places of a key."""


def _missing(
    part: str,
    before: str,
    every: list[tuple[type[Section], Key]],
    sections: tuple[type[Section], ...],
    elsewhere: Elsewhere,
) -> str:
    """Return what to say where the sections at `before` have no key, and no choice, of this name."""
    names = sorted({key.name for _, key in every} | {name for section in sections if (name := name_of(section))})
    where = f"{before.removesuffix('.')} has" if before else "an experiment has"
    if (meant := near(part, names)) is not None:
        return f"{where} no key {part!r} (did you mean {before}{meant}?)."
    found = places(part, elsewhere)
    more = f" and {len(found) - MOST_PLACES} more" if len(found) > MOST_PLACES else ""
    there = f"is {', '.join(found[:MOST_PLACES])}{more}" if found else f"are {', '.join(names)}"
    hint = f": there {there}" if found or names else ""
    has_own = any(keyword_of(section) is not None for section in sections)
    own = f"; a script's own part reads {before}constants.{part}" if has_own else ""
    return f"{where} no key {part!r}{hint}{own}."


def places(path: str, elsewhere: Elsewhere) -> list[str]:
    """Return the dotted paths of the keys and choices of this name, those that are less deep first.

    A dotted path is returned as it is, if there is such a key.
    """
    word = WORDS.get(path, path)
    found = [name for name in (key.name for key in keys(Experiment, elsewhere)) if name == word]
    for table in sorted(tables(elsewhere), key=lambda table: table.path.count(".")):
        for section in table.sections:
            names = [key.name for key in keys(section, elsewhere)] + [name_of(section)]
            found += [f"{table.path}.{name}" for name in names if word in (name, f"{table.path}.{name}")]
    return list(dict.fromkeys(found))


def name_of(section: type[Section]) -> str | None:
    """Return the name that chooses the section; None if it is not a choice."""
    field = section.model_fields.get("name")
    if field is None or get_origin(field.annotation) is not Literal or len(get_args(field.annotation)) > 1:
        return None
    name: str = get_args(field.annotation)[0]
    return name


def keyword_of(section: type[PartSection]) -> str | None:
    """Return the keyword by which a script passes the part of a section; None: it is no script's own."""
    return section.KEYWORD if issubclass(section, OwnPart) else None


def name_key(section: type[Section]) -> str:
    """Return the key by which a file chooses the section: `name`, or what the section calls it."""
    return section.model_fields["name"].alias or "name"


def default(field: FieldInfo) -> str:
    """Return what the key is where a file does not name it, in words."""
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        name = name_of(type(value))
        others = {key: held for key, held in value if held != type(value).model_fields[key].default}
        if others:
            keys = ", ".join(f"`{key} = {kinds.toml(held)}`" for key, held in others.items())
            return f"default `{name}` with {keys}"
        return f"default `{name}`" if name else "default: its keys' defaults"
    return "default *none*" if value is None else f"default `{kinds.toml(value)}`"
