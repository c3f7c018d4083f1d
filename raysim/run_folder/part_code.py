"""Digests the code of a script's part, so that a run that goes on can tell that it was changed."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import os
import platform
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeGuard

_OTHERS = ("abc", "builtins", "dataclasses", "enum", "functools", "raysim", "torch", "typing")
"""Packages whose classes are not the script's."""


NO_CODE = ("dataset", "params")
"""Keywords of what a script passes that is none."""


Constant = bool | int | float | complex | str | bytes | tuple[Any, ...] | None
"""A number, a text, bytes, None, or a tuple of such: what cannot be changed in place."""


_DEVICES = ("cpu", "cuda", "hpu", "meta", "mps", "npu", "xla", "xpu")


class FunctionCode(NamedTuple):
    """A function as a process has it: the digest of its code, and the constants that it reads by name, told."""

    digest: str
    constants: Mapping[str, str]


def digest(part: object) -> str | None:
    """Return the digest of the code of a function, of a class and its bases, or of an object's class.

    It is that of the instructions, constants and names: comments, docstrings and the place in the file do not count.
    Functions and classes of scripts count that the code reads by their name alone, from where it was defined, and so do
    numbers, texts and tuples of them, unless the code sets them. What it reads as an attribute does not count (of
    another module, of an object), nor what is in lists and dictionaries. Of a functools.partial its arguments
    count likewise, and so do attributes of a part that is an object, or a method of one, unless its methods set them
    once it is made. Another version of Python has other instructions, so the digest begins with it.

    Returns:
        None where there is no code of the script's.
    """
    found = hashlib.blake2b(digest_size=16)
    own = _with_read([*functions(part), *_functions_preset(part)])
    partials = list[object]()
    for function in own:
        _add_function(found, function)
        read = _read(function)
        found.update(repr([item for item in read.items() if _is_plain(item[1])]).encode())
        partials.extend(value for value in read.values() if isinstance(value, functools.partial))
    for held in _held([part, *partials]):
        found.update(repr(held).encode())
    return f"{_VERSION}:{found.hexdigest()}" if own else None


def has_code_of_script(part: object) -> bool:
    """Whether a part has a function that is of no installed package."""
    return any(not each.__code__.co_filename.startswith(_INSTALLED) for each in functions(part))


def of_scripts(part: object) -> list[FunctionType]:
    """Return a part's functions, and those that they read by name, also of a module, each once; none of packages."""
    found: dict[int, FunctionType] = {}
    own = list(functions(part))
    for function in own:
        if id(function) not in found and not function.__code__.co_filename.startswith(_INSTALLED):
            found[id(function)] = function
            values = (value for value in reached(function).values() if not isinstance(value, list))
            # The loop goes through these too.
            own.extend(each for value in values for each in functions(value))
    return list(found.values())


def calls_hash(part: object) -> bool:
    """Whether a part's code calls Python's `hash`, which gives a text another number in every process.

    An object's own `__hash__` is for dictionaries.
    """
    return any(
        "hash" in _names(each.__code__)[0] and "hash" not in {*each.__globals__, *each.__code__.co_freevars}
        for each in of_scripts(part)
        if each.__name__ != "__hash__"
    )


def reached(function: FunctionType) -> Mapping[str, object]:
    """Return what a function reads by name, and as an attribute of a module of the script's, by the name there."""
    found = dict(_read(function))
    for name, module in modules_read(function).items():
        attributes = _all_names(function.__code__) & vars(module).keys()
        found |= {f"{name}.{each}": vars(module)[each] for each in sorted(attributes)}
    return found


def modules_read(function: FunctionType) -> Mapping[str, ModuleType]:
    """Return the modules of the script's that a function reads by name."""
    return {name: value for name, value in _read(function).items() if _is_module_of_script(value)}


def _is_module_of_script(value: object) -> TypeGuard[ModuleType]:
    if not isinstance(value, ModuleType) or value.__name__.partition(".")[0] in _OTHERS:
        return False
    file = getattr(value, "__file__", None)
    return isinstance(file, str) and not file.startswith(_INSTALLED)


def _all_names(code: CodeType) -> set[str]:
    inner = (_all_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def digest_of_code(function: FunctionType) -> str:
    """Return the digest of a function's code and defaults alone; see `digest`."""
    found = hashlib.blake2b(digest_size=16)
    _add_function(found, function)
    return found.hexdigest()


def constants_read(function: FunctionType) -> Mapping[str, Constant]:
    """Return the constants that a function reads, by name; those of a table or a namespace by its name and theirs, and
    a list of them as "name[:]".

    Texts that may be paths, that name a device or the machine, or that the environment has, are left out: another
    process has others.
    """
    found: dict[str, Constant] = {}
    for name, value in reached(function).items():
        if _is_constant(value):
            found[name] = value
        elif isinstance(value, list) and _is_constant(tuple(value)):
            found[f"{name}[:]"] = tuple(value)
        elif isinstance(value, dict):
            found |= {f"{name}[{key!r}]": each for key, each in value.items() if _is_constant(each)}
        elif isinstance(value, Namespace | SimpleNamespace):
            found |= {f"{name}.{key}": each for key, each in vars(value).items() if _is_constant(each)}
    return {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith("__")}


def _is_constant(value: object) -> TypeGuard[Constant]:
    """Whether nobody can change the value in place, and it should be the same on every machine."""
    if isinstance(value, str):
        return not set("/\\") & set(value) and value.partition(":")[0] not in _DEVICES and value not in _of_machine()
    return _is_plain(value) and not (isinstance(value, tuple) and not all(map(_is_constant, value)))


def classes(part: object, own: Iterable[FunctionType]) -> list[type]:
    """Return the classes of a part, and those that its functions read by name, with their bases; none of packages."""
    held = [part, *(value for function in own for value in reached(function).values())]
    kinds = [kind for value in held for kind in _kinds(value)]
    bases = dict.fromkeys(cls for kind in kinds for cls in inspect.getmro(kind))
    return [cls for cls in bases if not _is_others(cls) and _is_module_of_script(sys.modules.get(cls.__module__))]


def _kinds(value: object) -> Iterator[type]:
    if isinstance(value, functools.partial):
        yield from _kinds(value.func)
    elif isinstance(value, MethodType):
        yield from _kinds(value.__self__)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _kinds(each)
    elif not isinstance(value, FunctionType):
        yield value if isinstance(value, type) else type(value)


@functools.cache
def _of_machine() -> frozenset[str]:
    """Names and settings of this process's machine; once, because a tuple may have many texts."""
    return frozenset((platform.node(), *os.environ.values()))


def class_constants(cls: type) -> Mapping[str, Constant]:
    """Return the constants that a class has as attributes; see `constants_read`."""
    return {name: value for name, value in vars(cls).items() if _is_constant(value) and not name.startswith("__")}


CHANGING_LISTS = (".append", ".clear", ".extend", ".insert", ".pop", ".remove", ".reverse", ".sort")
"""Methods that change a list."""


def set_in_module(module: ModuleType) -> set[str]:
    """Return what functions of a module set, such as counters: names, attributes, and "[" for entries of tables and
    lists; and the methods of `CHANGING_LISTS` that they call."""
    found = set[str]()
    for value in list(vars(module).values()):
        for each in functions(value) if isinstance(value, FunctionType | type) else ():
            if each.__globals__ is vars(module):
                found |= _names(each.__code__)[1] | _parts_set(each.__code__)
    return found


def _parts_set(code: CodeType) -> set[str]:
    kinds = {"STORE_ATTR": "{}", "STORE_SUBSCR": "[", "DELETE_SUBSCR": "["}
    instructions = list(dis.get_instructions(code))
    found = {kinds[e.opname].format(e.argval) for e in instructions if e.opname in kinds}
    calls = {e.argval for e in instructions if e.opname in ("LOAD_METHOD", "LOAD_ATTR")}
    found |= {method for method in CHANGING_LISTS if method.removeprefix(".") in calls}
    return found.union(*(_parts_set(each) for each in code.co_consts if isinstance(each, CodeType)))


def differs(one: str, other: str) -> bool:
    """Return whether two digests are of different code; False if that is not known, as before ":" they differ.

    >>> differs("3.11:ab", "3.11:cd"), differs("3.11:ab", "3.12:cd")
    (True, False)
    """
    return one != other and one.partition(":")[0] == other.partition(":")[0]


def other_code(codes: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Return the keywords of parts that two runs have, and whose code is another.

    >>> other_code({"loss": "3.11:ab", "model": "3.11:cd"}, {"loss": "3.11:ef", "model": "3.11:cd"})
    ['loss']
    """
    return [keyword for keyword, one in codes.items() if differs(one, others.get(keyword, one))]


def digits(digest: str) -> str:
    """Return the first digits of a digest, which tell code apart for people."""
    return digest.rpartition(":")[2][:_DIGITS]


_DIGITS = 8

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}/4"
"""Python's version, and which things a digest is of: after a change there, one is not compared with those before."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def functions(part: object) -> Iterator[FunctionType]:
    """Yield a part's functions, in an order of their own."""
    if isinstance(part, functools.partial):
        yield from functions(part.func)
    elif isinstance(part, MethodType):
        yield from functions(part.__func__)
    elif isinstance(part, FunctionType):
        if not _is_others(part):
            yield inspect.unwrap(part)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from functions(each)
    else:
        for cls in inspect.getmro(part if isinstance(part, type) else type(part)):
            if _is_others(cls):
                continue
            for _, member in sorted(vars(cls).items()):
                held = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if isinstance(held, FunctionType):
                    yield held


def _held(part: object) -> Iterator[list[object]]:
    """Yield the constants that a part holds: what each functools.partial presets, and attributes of each object."""
    if isinstance(part, list | tuple):
        for each in part:
            yield from _held(each)
    elif isinstance(part, functools.partial):
        named = sorted(part.keywords.items())
        # What it wraps may be an object, and is no other partial: functools makes one of both.
        yield [each for each in (*part.args, *named) if _is_plain(each)]
        yield from _held(part.func)
    elif isinstance(part, MethodType):
        yield from _held(part.__self__)
    elif not isinstance(part, FunctionType | type) and has_code_of_script(part):
        # A class that is passed, and an object of it that has none, are the same part.
        yield from filter(None, [_attributes(part)])


def _attributes(part: object) -> list[object]:
    """Return names and values of an object's constants; a counter, for one, is none."""
    changing = {"training"}.union(
        *(_parts_set(each.__code__) for each in functions(part) if each.__name__ not in _MAKING)
    )
    held: Mapping[str, object] = getattr(part, "__dict__", {})
    return [(name, value) for name, value in sorted(held.items()) if _is_plain(value) and name not in changing]


_MAKING = ("__init__", "__new__", "__post_init__")
"""Methods in which an object sets its attributes as it is made."""


def _functions_preset(part: object) -> Iterator[FunctionType]:
    """Yield the functions of scripts among what each functools.partial of a part presets."""
    if isinstance(part, list | tuple):
        for each in part:
            yield from _functions_preset(each)
    elif isinstance(part, functools.partial):
        for each in (*part.args, *(value for _, value in sorted(part.keywords.items()))):
            if isinstance(each, FunctionType) and has_code_of_script(each):
                yield from functions(each)


_INSTALLED = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _with_read(own: list[FunctionType]) -> list[FunctionType]:
    """Return functions with those of scripts that they read, and that these read, each once."""
    found: dict[int, FunctionType] = {}
    for function in own:
        if id(function) not in found:
            found[id(function)] = function
            values = (value for value in _read(function).values() if not isinstance(value, list))
            read = (each for value in values for each in functions(value))
            # The loop goes through these too.
            own.extend(each for each in read if not each.__code__.co_filename.startswith(_INSTALLED))
    return list(found.values())


def _read(function: FunctionType) -> Mapping[str, object]:
    """Return what a function reads by name from where it was defined, in order; nothing that it sets there."""
    read, written = _names(function.__code__)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = {**function.__globals__, **{name: content for name, cell in cells for content in _contents(cell)}}
    return {name: known[name] for name in sorted(read - written) if name in known}


def variables(function: FunctionType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names that a function reads from where it was defined, each with a function that returns its value.

    It raises KeyError or ValueError where there is none.
    """
    read, _ = _names(function.__code__)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(read):
        if (cell := cells.get(name)) is not None:
            yield name, functools.partial(getattr, cell, "cell_contents")
        elif name in function.__globals__:
            yield name, functools.partial(function.__globals__.__getitem__, name)


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names that code reads, and those that it sets, outside of itself."""
    read, written = set(code.co_freevars), set[str]()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(each.argval)
        elif each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"):
            written.add(each.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_read, inner_written = _names(constant)
            read |= inner_read - set(code.co_cellvars)
            written |= inner_written - set(code.co_cellvars)
    return read, written - set(code.co_cellvars)


def _contents(cell: CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        # It is set later.
        return ()


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _is_others(defined: type | FunctionType) -> bool:
    # What a script made by exec has no module.
    return (defined.__module__ or "").partition(".")[0] in _OTHERS


def _add_function(found: hashlib.blake2b, function: FunctionType) -> None:
    _add(found, function.__code__, function.__doc__)
    found.update(repr([each for each in function.__defaults__ or () if _is_plain(each)]).encode())
    named = sorted((function.__kwdefaults__ or {}).items())
    found.update(repr([each for each in named if _is_plain(each)]).encode())


def _add(found: hashlib.blake2b, code: CodeType, doc: str | None) -> None:
    found.update(code.co_code)
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for place, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            # Its docstring, if it has one, is its first constant, and its flags do not say so.
            _add(found, constant, None)
        elif isinstance(constant, frozenset):
            found.update(repr(sorted(map(repr, constant))).encode())
        elif place or constant != doc:
            found.update(repr(constant).encode())
