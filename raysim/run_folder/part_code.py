"""Digests the code of a script's part, so that a run that goes on can tell that it was changed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType

_OTHERS = ("abc", "builtins", "dataclasses", "enum", "functools", "raysim", "torch", "typing")
"""Packages whose classes are not the script's."""


def digest(part: object) -> str | None:
    """Return the digest of the code of a function, of a class and its bases, or of an object's class.

    It is that of the instructions, constants and names: comments, docstrings and the place in the file do not count.
    Nor does what the code calls, or numbers that an object holds. Another version of Python has other instructions, so
    the digest begins with it.

    Returns:
        None where there is no code of the script's.
    """
    found = hashlib.blake2b(digest_size=16)
    functions = list(_functions(part))
    for function in functions:
        _add(found, function.__code__, function.__doc__)
        found.update(repr([each for each in function.__defaults__ or () if isinstance(each, _PLAIN)]).encode())
    return f"{_VERSION}:{found.hexdigest()}" if functions else None


def differs(one: str, other: str) -> bool:
    """Return whether two digests are of different code; False if that is not known.

    >>> differs("3.11:ab", "3.11:cd"), differs("3.11:ab", "3.12:cd")
    (True, False)
    """
    return one != other and one.partition(":")[0] == other.partition(":")[0]


_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _functions(part: object) -> Iterator[FunctionType]:
    """Yield a part's functions, in an order of their own."""
    if isinstance(part, functools.partial):
        yield from _functions(part.func)
    elif isinstance(part, MethodType):
        yield from _functions(part.__func__)
    elif isinstance(part, FunctionType):
        if not _is_others(part):
            yield inspect.unwrap(part)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _functions(each)
    else:
        for cls in inspect.getmro(part if isinstance(part, type) else type(part)):
            if _is_others(cls):
                continue
            for _, member in sorted(vars(cls).items()):
                held = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if isinstance(held, FunctionType):
                    yield held


def _is_others(defined: type | FunctionType) -> bool:
    # What a script made by exec has no module.
    return (defined.__module__ or "").partition(".")[0] in _OTHERS


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
