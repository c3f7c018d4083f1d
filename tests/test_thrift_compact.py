"""Structures that no writer of Parquet writes are refused before they fill the memory or the stack."""

from __future__ import annotations

import pytest

from raysim.storage import thrift_compact
from raysim.storage.thrift_compact import CompactReader

STRUCT_IN_1, LIST_IN_1, LIST_OF_STRUCTS, LIST_OF_LISTS = b"\x1c", b"\x19", 0x0C, 0x09


def list_of(kind: int, length: int) -> bytes:
    return bytes([0xF0 | kind, length])


def test_lists_in_lists_are_refused_below_16() -> None:
    with pytest.raises(ValueError, match="too deep"):
        CompactReader(LIST_IN_1 + bytes([0x10 | LIST_OF_LISTS]) * 100_000).struct()


def test_lists_and_structures_in_one_another_are_read() -> None:
    content = LIST_IN_1 + list_of(LIST_OF_STRUCTS, 2) + STRUCT_IN_1 + b"\0\0" + b"\0" + b"\0"
    assert CompactReader(content).struct() == {1: [{1: {}}, {}]}


def test_more_structures_than_a_file_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones take a byte each, in a list, or two as a field."""
    monkeypatch.setattr(thrift_compact, "MOST_STRUCTS", 8)
    assert CompactReader(LIST_IN_1 + list_of(LIST_OF_STRUCTS, 7) + bytes(8)).struct() == {1: [{}] * 7}
    for content in (LIST_IN_1 + list_of(LIST_OF_STRUCTS, 8) + bytes(9), (STRUCT_IN_1 + b"\0") * 8 + b"\0"):
        with pytest.raises(ValueError, match="more than 8 structures"):
            CompactReader(content).struct()
