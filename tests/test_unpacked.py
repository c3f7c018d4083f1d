"""Tables that unpack to far more than they take on the disk are refused before it; all files here are small."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.data.prepare import prepare
from raysim.data.section import Table
from raysim.errors import DataError
from raysim.storage import arrow_file, parquet, unpacked

FREE = 2 << 20
TEXT = "a" * 1000


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "free_memory", lambda: FREE)
    monkeypatch.setattr(unpacked, "ALWAYS_BYTES", 1 << 16)


def arrow(made: pa.Table, path: Path, compression: str | None = "zstd") -> Path:
    with pa.ipc.new_file(str(path), made.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as sink:
        sink.write_table(made)
    return path


EVERY_KIND: dict[str, Any] = {
    "text": ["x", "y", None],
    "texts": [["p"], ["q"], None],
    "struct": [{"k": "u"}, {"k": "v"}, None],
    "map": pa.array([[("k", "v")], [], None], pa.map_(pa.string(), pa.string())),
    "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
    "coded": pa.array(["a", "b", "a"]).dictionary_encode(),
    "decimal": pa.array([1, 2, 3], pa.decimal128(10, 2)),
    "nothing": pa.nulls(3),
}


def test_tables_of_all_kinds_of_columns_are_read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pa.table(EVERY_KIND)
    monkeypatch.setattr(unpacked, "ALWAYS_BYTES", 0)
    pq.write_table(made, tmp_path / "t.parquet")
    assert parquet.read(tmp_path / "t.parquet", DataError).equals(made)
    for compression in (None, "lz4", "zstd"):
        with arrow_file.opened(arrow(made, tmp_path / "t.arrow", compression), DataError) as reader:
            assert reader.read_all().equals(made)


BOMBS: dict[str, dict[str, Any]] = {
    "equal numbers": {"x": np.zeros(300_000)},
    "equal texts": {"x": [TEXT] * 2500},
    "equal texts in lists": {"x": [[TEXT]] * 2500},
    "no texts": {"x": pa.nulls(500_000, pa.string())},
    "empty lists": {"x": pa.array([[]] * 300_000, pa.list_(pa.int8()))},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_parquet_file_that_unpacks_to_more_than_is_free_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(BOMBS[name]), path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *given: pytest.fail("was unpacked"))
    with pytest.raises(DataError, match=r"t\.parquet unpacks to .* MB, for which .* MB of memory are needed"):
        parquet.read(path, DataError)


def test_texts_that_share_their_beginnings_are_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": [TEXT] * 9}),
        tmp_path / "t.parquet",
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY"},
    )
    with pytest.raises(DataError, match="the column 'x' has the encoding DELTA_BYTE_ARRAY"):
        parquet.read(tmp_path / "t.parquet", DataError)


def _number(value: int, length: int = 0) -> bytes:
    """A number as a footer has it, filled up to a length."""
    digits, value = list[int](), 2 * value
    while value > 127 or len(digits) + 1 < length:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def forge(path: Path, true: int, said: int) -> None:
    """Let the footer say another number, wherever it says this one."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<i", content, len(content) - 8)
    begin = len(content) - 8 - length
    assert _number(true) in content[begin:]
    content[begin:] = content[begin:].replace(_number(true), _number(said, len(_number(true))))
    path.write_bytes(content)


def test_an_encoding_is_that_of_the_pages_whatever_the_footer_says(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    encoding = {"x": "DELTA_BYTE_ARRAY"}
    pq.write_table(pa.table({"x": [TEXT] * 9}), path, use_dictionary=False, column_encoding=encoding)
    content = path.read_bytes()
    # The list of RLE and DELTA_BYTE_ARRAY, in Thrift.
    path.write_bytes(content.replace(b"\x25\x06\x0e", b"\x25\x06\x00"))
    assert pq.read_metadata(path).row_group(0).column(0).encodings == ("RLE", "PLAIN")
    with pytest.raises(DataError, match="the column 'x' has the encoding DELTA_BYTE_ARRAY"):
        parquet.read(path, DataError)


def test_texts_are_as_long_as_their_pages_whatever_the_footer_says(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [TEXT] * 2500}), path, use_dictionary=False, compression="zstd")
    forge(path, pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size, 9)
    with pytest.raises(DataError, match=r"t\.parquet unpacks to 2\.51 MB"):
        parquet.read(path, DataError)


def test_a_column_has_the_values_of_its_pages_whatever_the_footer_says(tmp_path: Path) -> None:
    """A list of one row may have any number of them."""
    path = tmp_path / "t.parquet"
    for said, why in ((1, "a page has more than its column"), (301, "of a column have 300 values, and 301 are said")):
        pq.write_table(pa.table({"x": [list(range(300))]}), path, use_dictionary=False)
        forge(path, 300, said)
        assert pq.read_metadata(path).row_group(0).column(0).num_values == said
        with pytest.raises(DataError, match=rf"t\.parquet is damaged: .*{why}"):
            parquet.read(path, DataError)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_pages_of_all_kinds_are_read_as_written(version: str, compression: str, tmp_path: Path) -> None:
    """With dictionaries and without, many small ones, with statistics of long texts."""
    made = pa.table({"text": [f"{number} {TEXT}" for number in range(60)], "number": range(60), "none": pa.nulls(60)})
    for dictionary in (True, False):
        path = tmp_path / f"{dictionary}.parquet"
        pq.write_table(
            made,
            path,
            row_group_size=25,
            use_dictionary=dictionary,
            compression=compression,
            data_page_version=version,
            data_page_size=100,
            write_batch_size=10,
        )
        assert parquet.read(path, DataError).equals(made)


def test_a_parquet_file_that_was_cut_off_or_changed_is_an_error_or_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": ["a", "b"], "y": [[1], [2, 3]]}), path, write_page_checksum=True)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        with suppress(DataError):
            parquet.read(path, DataError)
    for length in range(0, len(content), 25):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"t\.parquet is damaged: expected a table in Parquet"):
            parquet.read(path, DataError)


def _longer(content: bytearray) -> None:
    """Let a buffer say that it unpacks to far more."""
    place = content.index((2_400_000).to_bytes(8, "little"))
    content[place : place + 8] = (1 << 60).to_bytes(8, "little")


def _whole(content: bytearray) -> None:
    pass


@pytest.mark.parametrize("change", [_longer, _whole])
def test_compressed_buffers_that_unpack_to_more_than_is_free_are_refused(
    change: Callable[[bytearray], None], tmp_path: Path
) -> None:
    path = arrow(pa.table({"x": np.zeros(300_000)}), tmp_path / "train.arrow")
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    section = Table.model_validate({"root": str(tmp_path), "train": "train.arrow", "client": "x"})
    with pytest.raises(DataError, match=r"train\.arrow unpacks to .* of memory are needed"):
        prepare(section, seed=0)


def test_a_batch_that_is_named_many_times_counts_as_often(tmp_path: Path) -> None:
    made = pa.table({"x": np.arange(10_000)})
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(str(path), made.schema) as sink:
        for _ in range(50):
            sink.write_table(made.slice(0, 1))
        sink.write_table(made)
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<i", content, len(content) - 10)
    form, begin = "<qi4xq", len(content) - 10 - length
    footer = arrow_file._Flat.root(memoryview(bytes(content[begin:-10])))
    blocks = [struct.pack(form, *block) for block in footer.structs(arrow_file._FOOTER_BATCHES, form)]
    # Each block in the footer becomes that of the large batch.
    place = content.index(b"".join(blocks), begin)
    content[place : place + len(b"".join(blocks))] = blocks[-1] * len(blocks)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.arrow unpacks to 4.08 MB"):
        arrow_file.opened(path, DataError)


def test_codes_that_become_more_values_than_are_free_are_refused(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), pa.array([TEXT]))
    arrow(pa.table({"client": codes, "x": [0.0] * 5_000, "y": [0] * 5_000}), tmp_path / "train.arrow", None)
    section = Table.model_validate({"root": str(tmp_path), "train": "train.arrow"})
    with pytest.raises(DataError, match=r"train\.arrow unpacks to 5.04 MB"):
        prepare(section, seed=0)


def test_runs_of_values_are_refused(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays([10**9], [0.5])
    arrow(pa.table({"client": pa.nulls(10**9), "x": runs, "y": runs}), tmp_path / "train.arrow")
    with pytest.raises(DataError, match=r"column 'x': expected a value in each row, found run_end_encoded"):
        prepare(Table.model_validate({"root": str(tmp_path), "train": "train.arrow"}), seed=0)


def test_an_arrow_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    path = arrow(pa.table({"x": [1, 2]}), tmp_path / "t.arrow")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"t\.arrow is damaged: expected an Arrow file"):
            arrow_file.opened(path, DataError)
