"""Parses tf.train.Example messages without TensorFlow.

Example {Features features = 1}; Features {map<string, Feature> feature = 1}; Feature is one of BytesList = 1,
FloatList = 2 (packed or not), Int64List = 3 (packed or not), each with its values in field 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3

_LARGEST = (1 << 64) - 1
_MOST_SHIFT = 70
"""A number of 64 bits takes ten bytes, seven bits in each."""

Values = list[bytes] | list[float] | list[int]


_Field = tuple[int, int, Any]
"""Number, wire type, and content: bytes for length-delimited fields, else an integer."""


def parse(message: bytes) -> dict[str, Values]:
    """Return the features by name.

    Raises:
        ValueError: not such a message, or one that has something twice, or in another form; states the byte or the
            part. What other fields hold is of later versions, and not read.
    """
    features: dict[str, Values] = {}
    for number, wire, inner in _fields(message):
        if number != 1 or wire != _LENGTH:
            continue
        for entry_number, entry_wire, entry in _fields(inner):
            if entry_number == 1 and entry_wire == _LENGTH:
                name, feature = _pair(entry)
                if name in features:
                    raise ValueError(f"it has the feature {name!r:.40} twice")
                features[name] = _values(feature)
    return features


def _pair(entry: bytes) -> tuple[str, bytes]:
    found: dict[int, bytes] = {}
    for number, wire, content in _fields(entry):
        if number in (1, 2):
            if wire != _LENGTH or number in found:
                raise ValueError("a feature must have one name and one value")
            found[number] = content
    if 1 not in found:
        raise ValueError("a feature must have a name and a value")
    return found[1].decode(), found.get(2, b"")


def _values(feature: bytes) -> Values:
    kinds = [field for field in _fields(feature) if field[0] in (_BYTES, _FLOATS, _INTEGERS)]
    if not kinds:
        return []
    kind, kind_wire, content = kinds[0]
    if len(kinds) > 1 or kind_wire != _LENGTH:
        raise ValueError("a feature must have one list of values")
    texts: list[bytes] = []
    floats: list[float] = []
    integers: list[int] = []
    for number, wire, value in _fields(content):
        if number != 1:
            continue
        if kind == _BYTES and wire == _LENGTH:
            texts.append(value)
        elif kind == _FLOATS and wire in (_LENGTH, _FOUR_BYTES):
            packed = value if wire == _LENGTH else struct.pack("<I", value)
            floats += struct.unpack(f"<{len(packed) // 4}f", packed)
        elif kind == _INTEGERS and wire in (_LENGTH, _VARINT):
            integers += _varints(value) if wire == _LENGTH else [_signed(value)]
        else:
            raise ValueError(f"a list of kind {kind} has a value of wire type {wire}")
    return texts if kind == _BYTES else floats if kind == _FLOATS else integers


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields in order."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(message, place)
            yield number, wire, value
            continue
        if wire == _LENGTH:
            length, place = _varint(message, place)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"unknown wire type {wire} before byte {place}")
        content = message[place : place + length]
        if len(content) != length:
            raise ValueError(f"expected {length} bytes at byte {place}, found {len(content)}")
        place += length
        yield number, wire, content if wire == _LENGTH else int.from_bytes(content, "little")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _LARGEST:
                break
            return value, place
        shift += 7
        if shift >= _MOST_SHIFT:
            break
    else:
        raise ValueError(f"a number breaks off at byte {place}")
    raise ValueError(f"a number before byte {place} has more than 64 bits")


def _varints(packed: bytes) -> Iterator[int]:
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
