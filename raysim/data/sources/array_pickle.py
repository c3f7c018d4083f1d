"""Reads the pickles in which CIFAR is published: plain values, and arrays of bytes.

Python's unpickler is not used: on foreign bytes its opcodes can call functions and set the state of objects. A pickle
is a program for a machine with a stack; this one knows the opcodes of plain values, and of the one form in which NumPy
writes an array of bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from raysim.errors import DataError

MOST_BYTES = 1 << 30
"""Of a pickle; CIFAR's largest has 155 MB."""

MOST_DEPTH = 8
"""Of lists, tuples and dictionaries in one another, and of an array's axes; CIFAR's have 2."""

MOST_KEYS = 1000
"""Of a dictionary; CIFAR's have 5."""

_INT_BYTES = 8

_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs", "__builtin__")
_NAMES = ("ndarray", "dtype", "_reconstruct", "encode", "bytes")
_MARK = object()


class _RefusedError(Exception):
    """Why the pickle is not read; the text goes on behind a colon."""


@dataclass(frozen=True)
class _Name:
    """A function that the pickle names; it is never called."""

    name: str


@dataclass(frozen=True)
class _Bytes:
    """The dtype uint8, before and after its state was set."""


@dataclass(eq=False)
class _Array:
    """An array of bytes, of which the pickle gives shape, order and content later."""

    shape: tuple[int, ...] = (0,)
    columns_first: bool = False
    content: bytes = b""


def loads(content: bytes, where: str) -> Any:
    """Read dictionaries, lists, integers, texts and arrays of uint8; Python 2's texts become bytes, tuples lists.

    Raises:
        DataError: the pickle is truncated, too large or too deep, or has anything else in it; that is not called.
    """
    try:
        if len(content) > MOST_BYTES:
            raise _RefusedError(f"it has {len(content)} bytes, and at most {MOST_BYTES} are read")
        return _Plain(len(content)).of(_Machine(content).run())
    except (_RefusedError, ValueError, TypeError, KeyError, IndexError, struct.error) as error:
        raise DataError(f"{where}: expected a pickle of plain values and arrays only: {error}") from error


class _Machine:
    """Executes the opcodes of plain values.

    Every opcode takes at least one byte and makes at most one value, and all texts and bytes together are no larger
    than the pickle: so memory is bounded by its size.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._encoded_bytes = 0

    def run(self) -> Any:
        """Return the value that is left at the end."""
        while (opcode := self._take(1)) != b".":
            if opcode not in _OPCODES:
                raise _RefusedError(f"the opcode {opcode!r} at byte {self._at - 1} makes no plain value")
            _OPCODES[opcode](self)
        if len(self._stack) != 1:
            raise _RefusedError(f"{len(self._stack)} values are left at its end")
        return self._pop()

    def _take(self, num_bytes: int) -> bytes:
        piece = self._content[self._at : self._at + num_bytes]
        if num_bytes < 0 or len(piece) != num_bytes:
            raise _RefusedError("it is truncated")
        self._at += num_bytes
        return piece

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(value)

    def _line(self) -> str:
        end = self._content.find(b"\n", self._at, self._at + 100)
        if end < 0:
            raise _RefusedError("a line is truncated")
        return self._take(end + 1 - self._at)[:-1].decode("ascii")

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise _RefusedError("a value is missing")
        return self._stack.pop()

    def _popped(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _since_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                found = self._stack[place + 1 :]
                del self._stack[place:]
                return found
        raise _RefusedError("a mark is missing")

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise _RefusedError(f"expected a {kind.__name__} to fill")
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _header(self) -> None:
        if (version := self._number("<B")) not in (2, 3):
            raise _RefusedError(f"it has protocol {version}, and 2 and 3 are read")

    def _fill(self, pairs: list[Any]) -> None:
        target = self._top(dict)
        if len(pairs) % 2:
            raise _RefusedError("a dictionary's key has no value")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) not in (bytes, str, int):
                raise _RefusedError(f"a dictionary's key is a {type(key).__name__}")
            target[key] = value
        if len(target) > MOST_KEYS:
            raise _RefusedError(f"a dictionary has more than {MOST_KEYS} keys")

    def _extend(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def _long(self) -> int:
        if (num_bytes := self._number("<B")) > _INT_BYTES:
            raise _RefusedError(f"an integer has {num_bytes} bytes, and at most {_INT_BYTES} are read")
        return int.from_bytes(self._take(num_bytes), "little", signed=True)

    def _put(self, place: int) -> None:
        if not self._stack:
            raise _RefusedError("a value is missing")
        self._memo[place] = self._stack[-1]

    def _global(self) -> None:
        module, name = self._line(), self._line()
        if module not in _MODULES or name not in _NAMES:
            raise _RefusedError(f"it asks for {module}.{name}")
        self._push(_Name(name))

    def _reduce(self) -> None:
        function, given = self._popped(2)
        match function, given:
            case _Name("encode"), (str(text), "latin1" | b"latin1"):
                # One text could be encoded again and again.
                self._encoded_bytes += len(text)
                if self._encoded_bytes > len(self._content):
                    raise _RefusedError("its bytes are more than the pickle's")
                self._push(text.encode("latin1"))
            case _Name("bytes"), ():
                self._push(b"")
            case _Name("dtype"), ("u1" | b"u1", *_):
                self._push(_Bytes())
            case _Name("_reconstruct"), (_Name("ndarray"), (0,), _):
                self._push(_Array())
            case _:
                raise _RefusedError(
                    f"it calls {getattr(function, 'name', 'a value')} with other values than an array's"
                )

    def _build(self) -> None:
        state = self._pop()
        match self._stack[-1] if self._stack else None, state:
            case _Bytes(), (int(), "|" | b"|", None, None, None, *_):
                pass
            case _Array() as array, (int(), tuple(shape), _Bytes(), bool(columns_first), bytes(content)):
                if not 0 < len(shape) <= MOST_DEPTH or any(type(size) is not int or size < 0 for size in shape):
                    raise _RefusedError("an array's shape is none")
                if math.prod(shape) != len(content):
                    raise _RefusedError(f"an array of shape {shape} has {len(content)} bytes")
                array.shape, array.columns_first, array.content = shape, columns_first, content
            case _:
                raise _RefusedError("it sets the state of another value than an array of bytes")


_OPCODES: Mapping[bytes, Callable[[_Machine], None]] = MappingProxyType(
    {
        b"\x80": lambda m: m._header(),
        b"(": lambda m: m._push(_MARK),
        b"N": lambda m: m._push(None),
        b"\x88": lambda m: m._push(True),
        b"\x89": lambda m: m._push(False),
        b"I": lambda m: m._push(int(m._line())),
        b"J": lambda m: m._push(m._number("<i")),
        b"K": lambda m: m._push(m._number("<B")),
        b"M": lambda m: m._push(m._number("<H")),
        b"\x8a": lambda m: m._push(m._long()),
        b"U": lambda m: m._push(m._take(m._number("<B"))),
        b"T": lambda m: m._push(m._take(m._number("<i"))),
        b"C": lambda m: m._push(m._take(m._number("<B"))),
        b"B": lambda m: m._push(m._take(m._number("<I"))),
        b"X": lambda m: m._push(m._take(m._number("<I")).decode("utf-8")),
        b"}": lambda m: m._push({}),
        b"]": lambda m: m._push([]),
        b")": lambda m: m._push(()),
        b"t": lambda m: m._push(tuple(m._since_mark())),
        b"l": lambda m: m._push(m._since_mark()),
        b"\x85": lambda m: m._push(tuple(m._popped(1))),
        b"\x86": lambda m: m._push(tuple(m._popped(2))),
        b"\x87": lambda m: m._push(tuple(m._popped(3))),
        b"a": lambda m: m._extend(m._popped(1)),
        b"e": lambda m: m._extend(m._since_mark()),
        b"s": lambda m: m._fill(m._popped(2)),
        b"u": lambda m: m._fill(m._since_mark()),
        b"q": lambda m: m._put(m._number("<B")),
        b"r": lambda m: m._put(m._number("<I")),
        b"p": lambda m: m._put(int(m._line())),
        b"h": lambda m: m._push(m._memo[m._number("<B")]),
        b"j": lambda m: m._push(m._memo[m._number("<I")]),
        b"g": lambda m: m._push(m._memo[int(m._line())]),
        b"c": lambda m: m._global(),
        b"R": lambda m: m._reduce(),
        b"b": lambda m: m._build(),
    }
)
"""Protocols 2 and 3, which NumPy and Python 2 wrote, but for floats, sets and objects."""


class _Plain:
    """Puts NumPy's arrays in place of those described.

    Args:
        most: values; a pickle of few bytes could hold one list many times, in another many times.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the plain value.

        Raises:
            _RefusedError: it has too many values, is too deep, holds itself, or is a function.
        """
        self._left -= 1
        if self._left < 0:
            raise _RefusedError("it has more values than bytes")
        if depth > MOST_DEPTH:
            raise _RefusedError(f"its values are more than {MOST_DEPTH} deep")
        match value:
            case _Array():
                content = np.frombuffer(value.content, np.uint8)
                return content.reshape(value.shape[::-1]).T if value.columns_first else content.reshape(value.shape)
            case dict():
                return {key: self.of(each, depth + 1) for key, each in value.items()}
            case list() | tuple():
                return [self.of(each, depth + 1) for each in value]
            case _Name() | _Bytes():
                raise _RefusedError("it has a function as a value")
        return value
