"""Writes validation errors as sentences: the key, the given value, the allowed values, the nearest match."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from raysim.config.plain import LONGEST_KEY, MOST_SAID, shown
from raysim.config.values import IN_WORDS, written

WORDS = MappingProxyType({"learning_rate": "lr"})
"""Words that other frameworks have for keys of many sections."""

_NONE = ("none", "None", "null", "off", "no", "nothing", "")
"""Words by which people ask for nothing."""

SAID = "said"
"""The kind of errors whose `text` is a complete sentence that names the key."""


def message(error: ValidationError, root: type[BaseModel], at: str = "") -> str:
    """Return one sentence per wrong key, in the order of the record's keys; `at` is the record's dotted key."""
    sentences: dict[str, None] = {}
    wanted: dict[tuple[str, str], list[str]] = {}
    numbers: dict[str, float] = {}
    named: set[str] = set()
    for details in error.errors():
        path, section = _resolve(details["loc"], root, ends_in_key=details["type"] in ("extra_forbidden", "missing"))
        path = [*filter(None, at.split(".")), *path]
        key, kind, given = ".".join(path), details["type"], details["input"]
        # Report wrong keys of a table, not the other types that the key allows.
        named.add(f"{key}." if kind in ("value_error", "union_tag_not_found", "union_tag_invalid") else key)
        if kind == "extra_forbidden":
            unknown, further = _unknown_key(path, section), deeper(path, section)
            # A key that is like none here may be meant for another table.
            elsewhere = "" if unknown.endswith(("?)", "})")) or len(path) == 1 else deeper([path[-1]], root, key)
            sentences[unknown + (further or elsewhere)] = None
        elif kind == "missing":
            sentences[f"{key} must be given{_described(path[-1], section)}"] = None
        elif kind == "union_tag_not_found":
            sentences[_unnamed(given, path, section)] = None
        elif kind == "union_tag_invalid":
            sentences[_misnamed(details["ctx"], path, section)] = None
        elif kind == SAID:
            word = given.get("name") if isinstance(given, Mapping) else given
            sentences[f"{details['ctx']['text']}{_without(word, path, section)}"] = None
        elif kind == "value_error":
            sentences[f"{key}: {details['ctx']['error']}" if key else str(details["ctx"]["error"])] = None
        else:
            # A key that takes several types fails once for each: one sentence lists them all.
            kinds = wanted.setdefault((key, f"{shown(given)}{_remedy(given, path, section)}"), [])
            kinds.append(_expectation(details))
            if isinstance(given, bool | int | float):
                numbers[key] = given
    for (key, given), kinds in wanted.items():
        if any(other.startswith((f"{key}.", f"{key}[")) for other in named):
            continue  # an error inside the table is more exact
        quoted = ""
        if kinds == [_NAMES["string"]] and key in numbers:
            quoted = f": write it in quotes, as {json.dumps(str(numbers[key]))}"
        sentences[f"{key} must be {' or '.join(dict.fromkeys(kinds))}, but got {given}{quoted}"] = None
    texts = list(sentences)
    more = [f"and {len(texts) - MOST_SAID} more"] if len(texts) > MOST_SAID else []
    return "; ".join([*texts[:MOST_SAID], *more])


_NAMES = MappingProxyType(
    {
        "int": "an integer",
        "float": "a number",
        "string": "a string",
        "bool": "true or false",
        "tuple": "a list",
        "model": "a table",
        "model_attributes": "a table",
        "dict": "a table",
    }
)

_BOUNDS = MappingProxyType(
    {
        "greater_than": ("greater than", "gt"),
        "greater_than_equal": ("greater than or equal to", "ge"),
        "less_than": ("less than", "lt"),
        "less_than_equal": ("less than or equal to", "le"),
    }
)


def _expectation(details: Any) -> str:
    kind = details["type"]
    for prefix, name in _NAMES.items():
        if kind in (f"{prefix}_type", f"{prefix}_parsing", f"{prefix}_from_float"):
            return name
    if kind == "string_pattern_mismatch":
        pattern = details["ctx"]["pattern"]
        return IN_WORDS.get(pattern, f"a text of the form {pattern}")
    if kind == "string_too_short":
        return f"a text of at least {details['ctx']['min_length']} characters"
    if kind == "too_short":
        return f"a list of at least {details['ctx']['min_length']}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"{words} {written(details['ctx'][name])}"
    if kind in ("string_too_long", "too_long"):
        what = "a text" if kind == "string_too_long" else "a list"
        units = "characters" if kind == "string_too_long" else "entries"
        return f"{what} of at most {written(details['ctx']['max_length'])} {units}"
    text: str = details["msg"]
    return text.removeprefix("Input should be ")


def _unknown_key(path: list[str], section: type[BaseModel] | None) -> str:
    *parents, key = path
    table = f"[{'.'.join(parents)}]" if parents else "the experiment"
    known = list(_keys(section)) if section else []
    chosen = section.model_fields["name"].default if section and parents and "name" in section.model_fields else None
    whose = f" with {_chooser([section])} = {chosen!r}" if section and isinstance(chosen, str) else ""
    hint = nearest(key, known, _meant(section))
    if chosen == "own" and "constants" in known and not hint:
        hint = f" (a constant of a script's part stands in constants = {{ {key} = ... }})"
    return f"unknown key {shown('.'.join(path))}: {table}{whose} takes {', '.join(known)}{hint}"


def deeper(path: list[str], section: type[BaseModel] | None, given: str = "") -> str:
    """Return a hint where a key of this name stands further below the table that was given it, or in another choice.

    given: the dotted key, where it is wrong.
    """
    # Sections import this module.
    from raysim.config import kinds

    *parents, key = path
    below: list[tuple[list[str], type[BaseModel]]] = [] if section is None else [(parents, section)]
    met = {section}
    for at, record in below:
        for name, field in _keys(record).items():
            new = [inner for inner in kinds.sections(field.annotation) if inner not in met]
            met.update(new)
            for inner in new:
                if (own := _meant(inner).get(key, key)) in _keys(inner):
                    found = ".".join([*at, name, own])
                    # A key that another choice of the same table has stands where it was given.
                    owner = f"[{'.'.join([*at, name])}] with {_chooser([inner])} = {_tag(inner)!r} has it"
                    return f" ({owner})" if found == given else f" (there is {found})"
            below += [([*at, name], inner) for inner in new]
    return ""


def _remedy(given: object, path: list[str], section: type[BaseModel] | None) -> str:
    """Return a hint where a value was given in the place of a table, or a table in that of a value."""
    field = _keys(section).get(path[-1]) if section and path else None
    if section is None or field is None:
        return ""
    key, tables, names = ".".join(path), _records(field.annotation), _tags(field)
    if names and (without := _without(given, path, section)):
        return without
    if isinstance(given, Mapping):
        inner = list(given.values())
        fits = not tables and len(inner) == 1 and _takes(section, path[-1], inner[0])
        return f" ({key} = {_value(inner[0])} needs no table)" if fits else ""
    if isinstance(given, str) and names:
        chooser = f"{key}.{_chooser(tables)}"
        return f" ({chooser} = {shown(given)} chooses it)" if given in names else f" ({_named(chooser, names, given)})"
    usual = type(field.default) if isinstance(field.default, BaseModel) else None
    chosen = tables[0] if len(tables) == 1 else usual
    keys = {name: inner for name, inner in _keys(chosen).items() if name != "name"} if chosen else {}
    if chosen is None or not keys:
        if not names and not isinstance(given, list | tuple) and _takes(section, path[-1], [given]):
            return f" (as a list: {_value([given])})"
        return f" ({_named(f'{key}.{_chooser(tables)}', names)})" if names else ""
    if not _is_table_only(field.annotation):
        return ""
    must = [name for name, inner in keys.items() if inner.is_required()]
    fitting = [name for name in keys if _takes(chosen, name, given)]
    if isinstance(given, bool) and len(keys) > 1:
        return f" ([{key}] takes {', '.join(keys)})"
    # The first key of a table is what it is mainly about.
    likely = [name for name in fitting if name in must or fitting == [name] or name == next(iter(keys))]
    meant = next((name for name in likely if name in must), next(iter(likely), None))
    if meant is None:
        return f" ([{key}] takes {', '.join(keys)})"
    more = f", and needs {' and '.join(name for name in must if name != meant)}" if set(must) - {meant} else ""
    return f" (did you mean {key}.{meant} = {_value(given)}? [{key}] takes {', '.join(keys)}{more})"


def _is_table_only(annotation: Any) -> bool:
    """Whether an annotation allows no value beside tables."""
    if get_origin(annotation) is typing.Annotated:
        return _is_table_only(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return all(_is_table_only(part) for part in get_args(annotation))
    return annotation is types.NoneType or bool(_records(annotation))


def _takes(section: type[BaseModel], key: str, given: object) -> bool:
    """Whether a key of a record takes a value, whatever else the record needs."""
    try:
        section.__pydantic_validator__.validate_python({key: given})
    except ValidationError as error:
        return all(details["loc"][:1] != (key,) for details in error.errors())
    return True


def _value(given: object) -> str:
    """Return a short value as TOML has it."""
    return str(given).lower() if isinstance(given, bool) else shown(given).replace("'", '"')


def _tags(field: FieldInfo) -> list[str]:
    """Return the names of the choices of a key."""
    records = [each for each in _records(field.annotation) if "name" in each.model_fields]
    return [tag for tag in map(_tag, records) if isinstance(tag, str)] if len(records) > 1 else []


def _records_of(path: list[str], section: type[BaseModel] | None) -> list[type[BaseModel]]:
    """Return the tables that a record's key takes."""
    field = _keys(section).get(path[-1]) if section and path else None
    return _records(field.annotation) if field else []


def _chooser(records: Iterable[type[BaseModel]]) -> str:
    """Return the key that chooses one of these tables."""
    names = [record.model_fields["name"].alias for record in records if "name" in record.model_fields]
    return next(filter(None, names), "name")


def _named(chooser: str, names: list[str], given: str | None = None) -> str:
    """Return the names that choose a table by this key, and that which is near the given one."""
    return f"{chooser} is one of {', '.join(names)}{'' if given is None else nearest(given, names)}"


def _misnamed(wrong: Mapping[str, str], path: list[str], section: type[BaseModel] | None) -> str:
    """Return which names choose a table, where it was given another one."""
    tag, allowed = wrong["tag"], [known.strip(" '") for known in wrong["expected_tags"].split(",")]
    hint = _without(tag, path, section) or nearest(tag, allowed)
    chooser = ".".join([*path, _chooser(_records_of(path, section))])
    return f"{chooser} must be one of {', '.join(allowed)}, but got {shown(tag)}{hint}"


def _unnamed(given: object, path: list[str], section: type[BaseModel] | None) -> str:
    """Return what to write where a table has no name that chooses it."""
    field = _keys(section).get(path[-1]) if section and path else None
    key, names = ".".join(path), _tags(field) if field else []
    inner = given.items() if isinstance(given, Mapping) else ()
    meant = next((name for name, value in inner if isinstance(value, str) and value in names), None)
    chooser = f"{key}.{_chooser(_records_of(path, section))}"
    hint = "" if meant is None else f" (did you mean {chooser} in place of {key}.{meant}?)"
    return f"{chooser} must be given{': one of ' if names else ''}{', '.join(names)}{hint}"


def _without(given: object, path: list[str], section: type[BaseModel] | None) -> str:
    """Return how to have none of an optional table, where a word such as "none" was to choose that."""
    key = ".".join(path).partition("[")[0]
    field = _keys(section).get(key.rpartition(".")[2]) if section else None
    if field is None or field.get_default() not in (None, ()) or not isinstance(given, str) or given not in _NONE:
        return ""
    return f"; there is none where {key} is left out (--unset {key})"


def _described(key: str, section: type[BaseModel] | None) -> str:
    """Return the first sentence of a key's description."""
    field = _keys(section).get(key) if section else None
    return f" ({field.description.partition('. ')[0].rstrip('.')})" if field and field.description else ""


def nearest(given: object, known: list[str], meant: Mapping[str, str] | None = None) -> str:
    """Return a hint with the nearest known name, if one is near; `meant`: other words for some of them."""
    names = dict(zip(known, known, strict=True)) | dict(meant or {})
    name = near(given, names)
    return "" if name is None else f" (did you mean {names[name]!r}?)"


def near(given: object, known: Iterable[str]) -> str | None:
    """Return the nearest known name; None if none is near."""
    # Its cost is quadratic.
    return next(iter(difflib.get_close_matches(str(given)[:LONGEST_KEY], list(known), n=1)), None)


def _meant(section: type[BaseModel] | None) -> Mapping[str, str]:
    """Return words that people use for keys of a section."""
    words = {**WORDS, **getattr(section, "MEANT", {})}
    return {word: key for word, key in words.items() if section and key in _keys(section)}


def _resolve(
    loc: tuple[int | str, ...], root: type[BaseModel], ends_in_key: bool
) -> tuple[list[str], type[BaseModel] | None]:
    """The key path without pydantic's union tags, and the record that the last key belongs to.

    `ends_in_key`: the last element is a key, whether the record has it or not.
    """
    path: list[str] = []
    annotation: Any = root
    section: type[BaseModel] | None = root
    for place, element in enumerate(loc):
        members = _records(annotation)
        tagged = [m for m in members if _tag(m) == element]
        if tagged and len(members) > 1:
            annotation = tagged[0]
            section = tagged[0]
            continue
        if (values := _inner(annotation, dict)) is not None:
            path.append(str(element))
            annotation, section = values, None
            continue
        if isinstance(element, int):
            path[-1:] = [f"{''.join(path[-1:])}[{element}]"]
            annotation = _inner(annotation, tuple)
            continue
        record = members[0] if members else None
        keys = _keys(record) if record else {}
        if record is None or (element not in keys and not (ends_in_key and place == len(loc) - 1)):
            # A step inside pydantic (a member of a union of plain types), not a key of ours.
            continue
        path.append(element)
        section = record
        annotation = keys[element].annotation if element in keys else None
    return path, section


def _keys(record: type[BaseModel]) -> dict[str, FieldInfo]:
    """The record's fields by the keys that stand for them in a file."""
    return {field.alias or name: field for name, field in record.model_fields.items()}


def _records(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, typing.Annotated):
        return [record for part in get_args(annotation) for record in _records(part)]
    return []


def _inner(annotation: Any, kind: type) -> Any:
    """Return the annotation of what is in a list (tuple) or a table (dict) of any length; None if it allows none."""
    if get_origin(annotation) is kind:
        return get_args(annotation)[1 if kind is dict else 0]
    if get_origin(annotation) in (Union, types.UnionType, typing.Annotated):
        found = (_inner(part, kind) for part in get_args(annotation))
        return next((each for each in found if each is not None), None)
    return None


def _tag(record: type[BaseModel]) -> object:
    # Choices without a name are told apart by the keys they hold, and tagged with their record's name.
    field = record.model_fields.get("name")
    return field.default if field else record.__name__
