"""Reads the names and descriptions of sections from their source, without importing it: torch alone takes seconds.

It follows an annotation such as `prox.Prox | OwnCorrection` through imports to the classes and literals that it allows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

GROUP = "raysim.parts"
"""Entry points of this group are parts."""

_SOURCE = re.compile(r"Sources?: (.+?)(?:;\s+docs/|\.(?:\s+[A-Z]|\s*$))", re.DOTALL)


class Described(NamedTuple):
    """A choice of a key. summary: one line. source: its publication; empty if the docstring names none."""

    name: str
    summary: str
    source: str


class Named(NamedTuple):
    """A name in a module."""

    module: str
    name: str


class Definition(NamedTuple):
    """The definition of a name, and its module."""

    module: str
    node: ast.AST


def choices(section: Named, key: str) -> list[Described]:
    """Return the choices of a section's key, in the order of its annotation.

    Raises:
        LookupError: there is no such section or key.
    """
    module, record = _definition(section) or Definition("", ast.Pass())
    for node in record.body if isinstance(record, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == key:
            return list(_allowed(node.annotation, module, _description(node.value)))
    raise LookupError(f"{section.name} of {section.module} has no key {key!r}")


def choice(module: str, named: ast.expr) -> Described:
    """Describe the section that an expression of a module names.

    Raises:
        LookupError: it cannot be found, or has no `name`.
    """
    for name in _allowed(named, module, ""):
        return name
    raise LookupError(f"{ast.unparse(named)} of {module} is not a section that can be read")


def call(place: Named) -> tuple[str, ast.Call]:
    """Return the call that defines a name of a module, and the module of the call.

    Raises:
        LookupError: the name is not defined by a call.
    """
    definition = _definition(place)
    if definition is not None and isinstance(definition.node, ast.Call):
        return definition.module, definition.node
    raise LookupError(f"{place.name} of {place.module} is not a call that can be read")


def _allowed(annotation: ast.expr, module: str, description: str) -> Iterator[Described]:
    match annotation:
        case ast.Constant(str(text)):
            yield from _allowed(ast.parse(text, mode="eval").body, module, description)
        case ast.BinOp(left, _, right):
            yield from _allowed(left, module, description)
            yield from _allowed(right, module, description)
        case ast.Subscript(ast.Name("Literal"), names):
            values = names.elts if isinstance(names, ast.Tuple) else [names]
            words = [str(ast.literal_eval(value)) for value in values]
            yield from (Described(word, of_word(word, description), "") for word in words)
        case ast.Subscript(kind, inner):
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            for member in members[:1] if isinstance(kind, ast.Name) and kind.id == "Annotated" else members:
                yield from _allowed(member, module, description)
        case ast.Name() | ast.Attribute():
            definition = _definition(_place(annotation, module))
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                yield from _section(definition.node, definition.module)
            elif definition is not None and isinstance(definition.node, ast.expr):
                yield from _allowed(definition.node, definition.module, description)


def _section(record: ast.ClassDef, module: str) -> Iterator[Described]:
    """Yield the choice that a class with a `name` defines."""
    for node in record.body:
        match node:
            case ast.AnnAssign(ast.Name("name"), ast.Subscript(ast.Name("Literal"), ast.Constant(name))):
                yield described(str(name), ast.get_docstring(record), ast.get_docstring(_tree(module)))


def described(name: str, own: str | None, module: str | None) -> Described:
    """Describe the choice of this name; `own` is the docstring of its class, `module` that of its module.

    >>> described("prox", "FedProx.", "Pull.\\n\\nSource: Li et al. (2020), equation 2; docs/algorithms.md section 3.")
    Described(name='prox', summary='FedProx.', source='Li et al. (2020), equation 2')
    """
    text = (own or "").strip()
    source = _SOURCE.search(text) or _SOURCE.search(module or "")
    return Described(name, text.partition("\n")[0], " ".join(source[1].split()) if source else "")


def of_word(word: str, description: str) -> str:
    """Return what a key's description says of one of the words that the key takes; all of it, if it says nothing.

    >>> of_word("uniform", 'A weight; "examples": their number; "uniform": the same for all.')
    'A weight: the same for all.'
    """
    about, *clauses = description.rstrip(".").split("; ")
    texts = [clause.partition(": ")[2] for clause in clauses if clause.startswith(f'"{word}": ')]
    return f"{about}: {texts[0]}." if texts else description


def _description(value: ast.expr | None) -> str:
    """Return the first sentence of a key's description."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value).partition(". ")[0].rstrip(".") + "."
    return ""


def _place(named: ast.expr, module: str) -> Named:
    """Return the place in which to look for a name, or for a name of an imported module."""
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
        return Named(_imported(module, named.value.id) or "", named.attr)
    return Named(module, named.id if isinstance(named, ast.Name) else "")


def _definition(place: Named) -> Definition | None:
    """Return the final definition of a name: a class, or an assigned expression; None if no source defines it."""
    for node in _tree(place.module).body:
        match node:
            case ast.ClassDef(name) if name == place.name:
                return Definition(place.module, node)
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value) if (
                name == place.name
            ):
                if isinstance(value, ast.Name | ast.Attribute):
                    return _definition(_place(value, place.module))
                return Definition(place.module, value)
            case ast.ImportFrom(str(home), names) if _is_near(home, place.module):
                for alias in names:
                    if (alias.asname or alias.name) == place.name:
                        return _definition(Named(home, alias.name))
    return None


def _imported(module: str, name: str) -> str | None:
    """Return the module to which a name of a module refers."""
    for node in _tree(module).body:
        match node:
            case ast.ImportFrom(str(home), names) if _is_near(home, module):
                for alias in names:
                    if (alias.asname or alias.name) == name:
                        return f"{home}.{alias.name}"
    return None


def _is_near(home: str, module: str) -> bool:
    """Whether to follow names of `home`: sections are in the same package, or in raysim."""
    return home.partition(".")[0] in ("raysim", module.partition(".")[0])


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    return ast.parse(file.read_text(encoding="utf-8") if file else "")


def _file(module: str) -> Path | None:
    """Find a module's source like an import, but without importing its packages."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for full in accumulate(module.split("."), "{}.{}".format):
        spec = next(filter(None, (finder.find_spec(full, path) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or ()
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
