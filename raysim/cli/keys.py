"""Defines `raysim keys`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.cli.as_json import Json, print_json

if TYPE_CHECKING:
    from raysim.config.section import Section
    from raysim.experiment.keys import Elsewhere, Key

INDENT = "    "


def keys(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key, table or choice by its dotted name, such as client.optimizer."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema, for editors.")] = False,
    as_json: Json = False,
) -> None:
    """Explain the keys of an experiment: meaning, values and default of one, or of all in a table."""
    import json

    from raysim.config import part
    from raysim.experiment.experiment import Experiment
    from raysim.experiment.keys import Elsewhere, find
    from raysim.experiment.keys import keys as keys_of
    from tuning import TuningSection

    if schema:
        typer.echo(json.dumps(_with_tuning(Experiment.model_json_schema(), TuningSection.model_json_schema())))
        return
    # The experiment's own keys name no parts: its packages need not be imported for them.
    elsewhere = Elsewhere({"tuning": TuningSection}, {} if key is None else part.sections())
    if as_json:
        found = [(Experiment, each) for each in keys_of(Experiment, elsewhere)] if key is None else find(key, elsewhere)
        print_json([_record(owner, each, elsewhere) for owner, each in found])
        return
    if key is None:
        typer.echo("\n".join(_listed(keys_of(Experiment, elsewhere))))
        return
    typer.echo("\n".join(_explained(key, find(key, elsewhere), elsewhere)))


def _with_tuning(schema: dict[str, Any], tuning: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment's schema with that of its table `tuning`, which a run ignores."""
    definitions = {**schema["$defs"], **tuning.pop("$defs", {}), "TuningSection": tuning}
    described = schema["properties"]["tuning"]["description"]
    allowed = {
        "anyOf": [{"$ref": "#/$defs/TuningSection"}, {"type": "null"}],
        "default": None,
        "description": described,
    }
    return {**schema, "$defs": definitions, "properties": {**schema["properties"], "tuning": allowed}}


def _listed(found: list[Key], indent: str = "") -> Iterator[str]:
    """Yield two lines for each key: what it holds and its default; what it means."""
    for each in found:
        yield f"{indent}{each.name}: {_facts(each)}"
        if each.field.description:
            yield f"{indent}{INDENT}{_plain(each.field.description)}"


def _explained(path: str, found: list[tuple[type[Section], Key]], elsewhere: Elsewhere) -> Iterator[str]:
    from raysim.experiment.keys import keys, keyword_of, name_key, name_of

    met: set[type[Section]] = set()
    table, _, last = path.rpartition(".")
    if all(key.name == table.rpartition(".")[2] and last in map(name_key, key.inside) for _, key in found):
        # The key that holds a choice's name: the table is meant.
        path = table
    is_choice = any(key.name != path.rpartition(".")[2] for _, key in found)
    alike: dict[tuple[str, str], list[tuple[type[Section], Key]]] = {}
    for owner, key in found:
        alike.setdefault((_facts(key), key.field.description or ""), []).append((owner, key))
    for (facts, description), owners in alike.items():
        names = [name for owner, _ in owners if (name := name_of(owner))]
        whose = f" [of {', '.join(names)}]" if len(found) > 1 and names else ""
        if not is_choice:
            yield f"{path}{whose}: {facts}"
            yield f"{INDENT}{_plain(description)}"
        for section in (inner for _, key in owners for inner in key.inside):
            if section in met:
                continue
            if met or not is_choice:
                yield ""
            met.add(section)
            about = _plain((section.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "))
            name = name_of(section)
            if (keyword := keyword_of(section)) is not None:
                about += f" raysim.run(exp, {keyword}=...) passes it."
            yield f'{name_key(section)} = "{name}": {about}' if name else about
            yield from _listed(keys(section, elsewhere), INDENT)


def _record(owner: type[Section], key: Key, elsewhere: Elsewhere, opened: bool = True) -> dict[str, Any]:
    """Return a key as a record.

    `of` in it is the choice that the key belongs to. `opened`: with the keys of the tables that it takes.
    """
    from raysim.experiment.keys import keys, name_of

    tables: list[dict[str, Any]] = []
    for section in key.inside if opened else ():
        inner = [_record(section, each, elsewhere, opened=False) for each in keys(section, elsewhere)]
        tables.append({"name": name_of(section), "keys": inner})
    meaning = _plain(key.field.description or "")
    return {"key": key.name, "of": name_of(owner), "takes": _facts(key), "meaning": meaning, "tables": tables}


def _facts(key: Key) -> str:
    from raysim.config import kinds
    from raysim.experiment.keys import default, name_of

    taken = _plain(kinds.takes(key.field.annotation, key.field.metadata))
    if names := [name for section in key.inside if (name := name_of(section))]:
        taken += f", by its name: {', '.join(names)}"
    return f"{taken}; {_plain(default(key.field))}"


def _plain(text: str) -> str:
    """Return the text without the marks of Markdown."""
    return text.replace("`", "").replace("*none*", "none")
