"""Reads structures of Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

Only what writers of Parquet write is taken: each field once, in the order of their numbers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

MOST_DEPTH = 16
"""Of structures and lists in one another."""

MOST_STRUCTS = 1_000_000
"""Of what is read at once: each becomes hundreds of bytes. A footer has several for each column of each row group."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE = frozenset({_I16, _I32, _I64})
_BYTES = MappingProxyType({_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8})
"""Of values of a fixed size; truth values have one in a list only."""

Struct = dict[int, Any]
"""Values by the numbers of their fields: whole numbers, structures, and lists of structures. Others are left out."""


class CutOffError(ValueError):
    """The content ends within a structure."""


class CompactReader:
    """Reads what lies at the beginning of some bytes; `place` is behind what was read."""

    def __init__(self, content: bytes) -> None:
        self._content, self.place, self._structs = content, 0, 0

    def struct(self, depth: int = 0) -> Struct:
        """Read a structure.

        Raises:
            CutOffError: it does not end in the content.
            ValueError: it is none.
        """
        self._structs += 1
        if self._structs > MOST_STRUCTS:
            raise ValueError(f"there are more than {MOST_STRUCTS:,} structures")
        found: Struct = {}
        number = 0
        while byte := self._byte():
            step, kind = byte >> 4, byte & 15
            before, number = number, number + step if step else self._number()
            if number <= before:
                raise ValueError("the fields of a structure are out of order")
            if kind in _WHOLE:
                found[number] = self._number()
            # The type of a truth value is its value.
            elif kind not in (_TRUE, _FALSE) and (value := self._value(kind, depth + 1)) is not None:
                found[number] = value
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise ValueError("structures are too deep")
        if kind == _BINARY:
            size = self._varint()
            self.place += size
        elif kind == _STRUCT:
            return self.struct(depth)
        elif kind == _LIST:
            return self._list(depth)
        elif kind in _WHOLE:
            self._varint()
        elif kind in _BYTES:
            self.place += _BYTES[kind]
        else:
            raise ValueError(f"a value is of the type {kind}")
        return None

    def _list(self, depth: int) -> list[Struct] | None:
        byte = self._byte()
        length, kind = byte >> 4, byte & 15
        if length == 15:
            length = self._varint()
        # Each value takes a byte at least.
        if self.place + length > len(self._content):
            raise CutOffError("a list is cut off")
        values = [self._value(kind, depth + 1) for _ in range(length)]
        return values if kind == _STRUCT else None

    def _byte(self) -> int:
        try:
            byte = self._content[self.place]
        except IndexError:
            raise CutOffError("a structure is cut off") from None
        self.place += 1
        return byte

    def _varint(self) -> int:
        byte = self._byte()
        if byte < 128:
            return byte
        found = byte & 127
        for shift in range(7, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("a number has more than 64 bits")

    def _number(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)


def count(struct: Struct, number: int, default: int | None = None) -> int:
    """Return the whole number in a field, not below 0; `default`: where there is none."""
    found = struct.get(number, default)
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"field {number} of a structure is {found!r:.40}, and no number from 0")
    return found


def part(struct: Struct, number: int) -> Struct:
    """Return the structure in a field."""
    found = struct.get(number)
    if not isinstance(found, dict):
        raise ValueError(f"field {number} of a structure is no structure")
    return found


def parts(struct: Struct, number: int) -> list[Struct]:
    """Return the list of structures in a field."""
    found = struct.get(number)
    if not isinstance(found, list):
        raise ValueError(f"field {number} of a structure is no list of structures")
    return found
