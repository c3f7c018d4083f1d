"""Validation errors as a person would say them: the key, what was given, what is allowed, the nearest match."""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError


def message(error: ValidationError, root: type[BaseModel]) -> str:
    """One line per fault, in the order of the record's keys."""
    lines = dict.fromkeys(_line(details, root) for details in error.errors())
    return "; ".join(lines)


def _line(details: Any, root: type[BaseModel]) -> str:
    path, section = _resolve(details["loc"], root)
    key = ".".join(path)
    kind, given = details["type"], details["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, section)
    if kind == "missing":
        return f"{key} must be given"
    if kind == "union_tag_not_found":
        return f"{key} must say by its name which choice it is"
    if kind == "union_tag_invalid":
        allowed = [tag.strip(" '") for tag in details["ctx"]["expected_tags"].split(",")]
        tag = details["ctx"]["tag"]
        return f"{key}.name must be one of {', '.join(allowed)}, but got {tag!r}{_nearest(tag, allowed)}"
    if kind == "value_error":
        where = f"{key}: " if key else ""
        return f"{where}{details['ctx']['error']}"
    wanted = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"{key} must be {wanted}, but got {given!r}"


def _unknown_key(path: list[str], section: type[BaseModel] | None) -> str:
    *parents, key = path
    table = f"[{'.'.join(parents)}]" if parents else "the experiment"
    known = list(section.model_fields) if section else []
    chosen = section.model_fields["name"].default if section and parents and "name" in section.model_fields else None
    whose = f" with name = {chosen!r}" if isinstance(chosen, str) else ""
    return f"unknown key {'.'.join(path)!r}: {table}{whose} takes {', '.join(known)}{_nearest(key, known)}"


def _nearest(given: object, known: list[str]) -> str:
    match = difflib.get_close_matches(str(given), known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _resolve(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[list[str], type[BaseModel] | None]:
    """The key path without pydantic's union tags, and the record that the last key belongs to."""
    path: list[str] = []
    annotation: Any = root
    section: type[BaseModel] | None = root
    for element in loc:
        members = _records(annotation)
        tagged = [m for m in members if _tag(m) == element]
        if tagged and len(members) > 1:
            annotation = tagged[0]
            section = tagged[0]
            continue
        if isinstance(element, int):
            path[-1] += f"[{element}]"
            continue
        record = members[0] if members else None
        if record is None or (element not in record.model_fields and element != loc[-1]):
            # A step inside pydantic (a member of a union of plain types), not a key of ours.
            continue
        path.append(element)
        section = record
        annotation = record.model_fields[element].annotation if element in record.model_fields else None
    return path, section


def _records(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, typing.Annotated):
        return [record for part in get_args(annotation) for record in _records(part)]
    return []


def _tag(record: type[BaseModel]) -> object:
    field = record.model_fields.get("name")
    return field.default if field else None
