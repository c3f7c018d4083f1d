"""Sealed files: whatever bit is flipped, the file is refused; what stands in it does not matter."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import DataError, RunFolderError
from raysim.run_folder import sealed_record
from raysim.storage import parquet, sealed, sealed_parquet

TEXTS = st.lists(st.binary(max_size=20) | st.sampled_from([sealed.BLANK.encode(), sealed.MARK.encode()]), max_size=4)


def write(file: Path, content: bytes, last: bool = False) -> bytes:
    sealed.write(file, content, last)
    return file.read_bytes()


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_the_checksum_is_that_of_the_file_with_zeros_in_its_place(tmp_path: Path) -> None:
    content = b'{"checksum": "raysim-crc32:00000000", "x": 1}'
    found = write(tmp_path / "file", content)
    assert found == content.replace(b"00000000", f"{zlib.crc32(content):08x}".encode())
    assert write(tmp_path / "file", found) == found, "what is read can be written again"


@given(around=TEXTS, last=st.booleans(), data=st.data())
def test_any_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, around: list[bytes], last: bool, data: st.DataObject
) -> None:
    mark = sealed.BLANK.encode()
    file = tmp_path_factory.getbasetemp() / "sealed"
    # Texts that hold a mark are on the side where it does not count.
    content = write(file, b"".join([*around, mark] if last else [mark, *around]), last)
    assert sealed.flaw(content, last) is None
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    assert sealed.flaw(flipped(content, bit), last) is not None


def test_a_file_is_refused_with_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = write(file, b"a" + sealed.BLANK.encode() + b"b")
    sealed.check(file, RunFolderError, "Do that.")
    for damaged, why in (
        (flipped(content, 0), r"file is damaged: its content has the checksum \w{8}, but it says '\w{8}'\. Do that\.$"),
        (content[:5], r"file is damaged, or an earlier raysim .* wrote it: it has no checksum\. Do that\.$"),
        (content[:-4], "it has no checksum"),
        (b"", "it has no checksum"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=why):
            sealed.check(file, DataError, "Do that.")
    for odd in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunFolderError, match=r"cannot be read: .*Do that\."):
            sealed.check(odd, RunFolderError, "Do that.")


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunFolderError, match="no checksum"):
        sealed.check(tmp_path / "pipe", RunFolderError, "Remove it.")


ROWS = pa.table({"client": [f"raysim-crc32:0000000{i}" for i in range(4)], "loss": [0.1, None, float("nan"), 4.0]})


def test_a_table_comes_back_as_it_was_and_other_programs_read_it(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    sealed_parquet.write(ROWS, file)
    sealed.check(file, RunFolderError, "", last=True)
    found = parquet.read(file, RunFolderError)
    assert found.schema.equals(ROWS.schema, check_metadata=True)
    assert str(found) == str(ROWS) == str(pq.read_table(file))


def test_every_byte_of_a_table_counts(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    sealed_parquet.write(ROWS, file)
    content = file.read_bytes()
    for at in range(len(content)):
        assert sealed.flaw(flipped(content, 8 * at + at % 8), last=True) is not None, at


def test_the_pages_of_a_table_have_checksums_for_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    sealed_parquet.write(pa.table({"x": [1.5, 2.5]}), file)
    content = file.read_bytes()
    value = content.index((0x3FF8).to_bytes(2, "little"))
    file.write_bytes(flipped(content, 8 * value))
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(file, page_checksum_verification=True)
    with pytest.raises(RunFolderError, match="CRC"):
        parquet.read(file, RunFolderError)


def test_the_checksum_does_not_depend_on_the_pieces_it_is_computed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write(tmp_path / "whole", b"a" * 100 + sealed.BLANK.encode() + b"b" * 100)
    monkeypatch.setattr(sealed, "_PIECE_BYTES", 7)
    assert write(tmp_path / "pieces", content) == content
    assert sealed.flaw(content) is None


def test_a_record_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "experiment.json"
    write(file, b"{" + sealed.BLANK.encode())
    os.truncate(file, 1 << 40)
    with pytest.raises(
        RunFolderError, match=r"experiment\.json is damaged: expected at most 67,108,864 bytes, found 1,0"
    ):
        sealed_record.check_sealed(file)


def test_a_mark_is_looked_for_near_the_files_end_only(tmp_path: Path) -> None:
    for last in (False, True):
        file = tmp_path / f"rows-{last}"
        file.write_bytes(b"x")
        os.truncate(file, 1 << 40)
        with pytest.raises(DataError, match="has no checksum"):
            sealed.check(file, DataError, "", last)
