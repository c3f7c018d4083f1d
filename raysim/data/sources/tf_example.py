"""Parses tf.train.Example messages without TensorFlow.

Example {Features features = 1}; Features {map<string, Feature> feature = 1}; Feature is one of BytesList = 1,
FloatList = 2 (packed or not), Int64List = 3 (packed or not), each with its values in field 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3

Values = list[bytes] | list[float] | list[int]


def parse(message: bytes) -> dict[str, Values]:
    """Return the features by name.

    Raises:
        ValueError: not such a message; states the byte and the part.
    """
    features: dict[str, Values] = {}
    for number, content in _fields(message):
        if number != 1 or not isinstance(content, bytes):
            continue
        for entry_number, entry in _fields(content):
            if entry_number == 1 and isinstance(entry, bytes):
                pair = dict(_fields(entry))
                name, feature = pair.get(1), pair.get(2, b"")
                if not isinstance(name, bytes) or not isinstance(feature, bytes):
                    raise ValueError("a feature must have a name and a value")
                if (text := name.decode()) in features:
                    raise ValueError(f"it has the feature {text!r:.40} twice")
                features[text] = _values(feature)
    return features


def _values(feature: bytes) -> Values:
    for kind, content in _fields(feature):
        if not isinstance(content, bytes):
            break
        items = [value for number, value in _fields(content) if number == 1]
        if kind == _BYTES:
            return [item for item in items if isinstance(item, bytes)]
        if kind == _FLOATS:
            floats: list[float] = []
            for item in items:
                packed = item if isinstance(item, bytes) else struct.pack("<I", item)
                floats += struct.unpack(f"<{len(packed) // 4}f", packed)
            return floats
        if kind == _INTEGERS:
            integers: list[int] = []
            for item in items:
                integers += list(_varints(item)) if isinstance(item, bytes) else [_signed(item)]
            return integers
    return []


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (field number, content) in order; content is bytes for length-delimited fields, else an integer."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(message, place)
            yield number, value
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
        yield number, content if wire == _LENGTH else int.from_bytes(content, "little")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"a number breaks off at byte {place}")


def _varints(packed: bytes) -> Iterator[int]:
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
