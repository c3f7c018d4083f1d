"""HDF5 files are read in a process of its own, so that nothing in them can hold this one up, or end it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from raysim.data.sources import hdf5
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError
from tests.support import tff_files

h5py = pytest.importorskip("h5py")


def read(path: Path, *columns: str) -> list[hdf5.ClientColumns]:
    return list(hdf5.clients(SourceFile(path), columns))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    columns = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "t": np.array([b"ab", b""], object)}
    return tff_files.hdf5(tmp_path / "good.h5", {"a": columns, "b\n": columns})


def test_columns_arrive_as_they_are(good: Path) -> None:
    assert hdf5.ids(SourceFile(good)) == ["a", "b\n"]
    found = read(good, "x", "t")
    assert [each.client for each in found] == ["a", "b\n"]
    for each in found:
        assert each.columns["x"].dtype == np.float32
        assert each.columns["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert each.columns["t"].tolist() == [b"ab", b""]
        each.columns["x"] += 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("while True: pass", "worked on a client of it for 1 s without an end"),
        ("import os; os.kill(os.getpid(), 11)", "crashed on it .SIGSEGV."),
        ("import os; os._exit(3)", "crashed on it .exit code 3."),
    ],
)
def test_a_library_that_fails_is_an_error(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "h5py.py").write_text(f"def File(*_):\n    {fault}\n")
    monkeypatch.syspath_prepend(tmp_path / "library")
    monkeypatch.setattr(hdf5, "CPU_S", 1)
    with pytest.raises(DataError, match=rf"good\.h5: .*the HDF5 library {said}"):
        read(good, "x")


def test_a_column_without_end_does_not_take_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MEMORY_BYTES", 1 << 30)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("examples/a/x", shape=(1 << 31,), dtype="u1", chunks=(1 << 20,))
    with pytest.raises(DataError, match=r"large\.h5: expected the groups and columns"):
        read(tmp_path / "large.h5", "x")


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 20])
def test_a_column_is_refused_by_the_size_that_it_declares(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "COLUMN_BYTES", 1 << 16)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        rows = 10 if chunk == 1 << 20 else 1 << 20
        file.create_dataset("examples/a/x", (rows,), "u1", chunks=(chunk,), maxshape=(None,), compression="gzip")
    assert (tmp_path / "large.h5").stat().st_size < 1 << 14
    with pytest.raises(DataError, match="'x' unpacks to 1,048,576 bytes, and a client's column has at most 65,536"):
        read(tmp_path / "large.h5", "x")


def test_texts_of_many_rows_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "COLUMN_BYTES", 1 << 19)
    tff_files.hdf5(tmp_path / "texts.h5", {"a": {"t": np.array([b"t" * 500] * 2000, object)}})
    with pytest.raises(DataError, match="'t' has texts of more than 524,288 bytes"):
        read(tmp_path / "texts.h5", "t")


def test_texts_that_were_never_written_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without letters takes no byte of the file, and a row of words where it is read."""
    monkeypatch.setattr(hdf5, "COLUMN_BYTES", 1 << 16)
    tff_files.hdf5(tmp_path / "texts.h5", {"a": {"t": np.array([b""] * 513, object)}})
    with pytest.raises(DataError, match="'t' unpacks to 65,664 bytes, and a client's column has at most 65,536"):
        read(tmp_path / "texts.h5", "t")


@pytest.mark.parametrize("chunks", [None, (2,)])
@pytest.mark.parametrize("kind", ["u1", "text"])
def test_rows_that_were_never_written_are_no_zeros(chunks: tuple[int] | None, kind: str, tmp_path: Path) -> None:
    dtype = h5py.string_dtype() if kind == "text" else kind
    with h5py.File(tmp_path / "begun.h5", "w") as file:
        column = file.create_dataset("examples/a/x", (5,), dtype, chunks=chunks)
        if chunks:
            column[:4] = b"a" if kind == "text" else 1
    with pytest.raises(DataError, match=r"begun\.h5: .*'x' has rows that were never written"):
        read(tmp_path / "begun.h5", "x")
    with h5py.File(tmp_path / "begun.h5", "r+") as file:
        file["examples/a/x"][:] = b"a" if kind == "text" else 1
    (found,) = read(tmp_path / "begun.h5", "x")
    assert found.columns["x"].tolist() == [b"a" if kind == "text" else 1] * 5


def test_a_column_has_one_client(good: Path) -> None:
    with h5py.File(good, "r+") as file:
        file["examples/c"] = file["examples/a"]
    with pytest.raises(DataError, match=r"good\.h5: .*client 'c' has the column 'x' of another one"):
        read(good, "x")


def test_an_error_lists_few_of_many_names(tmp_path: Path) -> None:
    for name in ("examples/a", "others"):
        with h5py.File(tmp_path / "many.h5", "w") as file:
            for number in range(1000):
                file.create_group(f"{name}/column{number}" if name == "examples/a" else f"{name}{number}")
        with pytest.raises(DataError, match=r"many\.h5.*found \[.* and more") as refused:
            read(tmp_path / "many.h5", "x")
        assert len(str(refused.value)) < 1000


def test_a_column_without_values_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "none.h5", "w") as file:
        file["examples/a/x"] = h5py.Empty("u1")
    with pytest.raises(DataError, match=r"none\.h5: .*'x' has no values"):
        read(tmp_path / "none.h5", "x")


@pytest.mark.parametrize("value", [np.float32(1), "a text"], ids=["number", "text"])
def test_a_single_value_is_no_column(value: object, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "single.h5", "w") as file:
        file["examples/a/x"] = value
    with pytest.raises(DataError, match=r"expected a row for each example in 'x', found a single value"):
        read(tmp_path / "single.h5", "x")


@pytest.mark.parametrize("columns", [(), ("x",)], ids=["ids", "columns"])
def test_a_client_whose_name_is_no_text_is_named(columns: tuple[str, ...], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "bytes.h5", "w") as file:
        file.create_group("examples").create_group(b"\xff\xfe")["x"] = [1]
    with pytest.raises(DataError, match=r"bytes\.h5: .*b'\\xff\\xfe' is a name, and expected is text in UTF-8"):
        read(tmp_path / "bytes.h5", *columns)


def test_a_group_is_no_column_and_a_column_no_client(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_dataset("examples/a/t/name", data=[1])
    with pytest.raises(DataError, match="expected 't' to be a dataset, found a group"):
        read(tmp_path / "group.h5", "t")
    with h5py.File(tmp_path / "client.h5", "w") as file:
        file.create_dataset("examples/a", data=[1])
    with pytest.raises(DataError, match="expected 'a' to be a group, found a dataset"):
        hdf5.ids(SourceFile(tmp_path / "client.h5"))


def test_a_name_is_no_path(good: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "path.h5", "w") as file:
        file.create_dataset("examples/there:x/x", data=[1])
        file["examples/there"] = h5py.ExternalLink(str(good), "examples/a")
    content = (tmp_path / "path.h5").read_bytes()
    # A name that the library would not write, and that it takes for a path.
    (tmp_path / "path.h5").write_bytes(content.replace(b"there:x", b"there/x"))
    with pytest.raises(DataError, match="leads elsewhere"):
        hdf5.ids(SourceFile(tmp_path / "path.h5"))


def test_texts_arrive_in_the_order_of_their_rows(tmp_path: Path) -> None:
    texts = [str(number).encode() for number in range(2500)]
    tff_files.hdf5(tmp_path / "texts.h5", {"a": {"t": np.array(texts, object)}})
    with h5py.File(tmp_path / "texts.h5", "a") as file:
        file.create_dataset("examples/b/t", (0,), dtype=h5py.string_dtype())
        file.create_dataset("examples/c/t", (2, 1), dtype=h5py.string_dtype())[:] = [["one"], ["two"]]
    found = read(tmp_path / "texts.h5", "t")
    assert [each.columns["t"].tolist() for each in found] == [texts, [], [[b"one"], [b"two"]]]


def test_a_file_names_no_other_file(good: Path, tmp_path: Path) -> None:
    """A member, or the bytes of a column, may be said to lie in any file of this machine."""
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["examples/client"] = h5py.ExternalLink(str(good), "examples/a")
    with h5py.File(tmp_path / "bytes.h5", "w") as file:
        file.create_dataset("examples/a/x", shape=(8,), dtype="u1", external=[(str(tmp_path / "secret"), 0, 8)])
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(shape=(2, 3), dtype="f4")
        layout[:] = h5py.VirtualSource(str(good), "examples/a/x", shape=(2, 3))
        file.create_virtual_dataset("examples/a/x", layout)
    for name in ("links", "bytes", "virtual"):
        with pytest.raises(DataError, match=rf"{name}\.h5: .* leads elsewhere"):
            read(tmp_path / f"{name}.h5", "x")


def test_what_is_neither_number_nor_text_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        lists = file.create_dataset("examples/a/x", (2,), dtype=h5py.vlen_dtype("i4"))
        lists[0] = [1, 2]
    with pytest.raises(DataError, match=r"odd\.h5: .*'x' holds neither numbers nor texts"):
        read(tmp_path / "odd.h5", "x")


def test_a_reader_that_stops_early_leaves_no_process(good: Path) -> None:
    before = set(psutil.Process().children())
    with closing(hdf5.clients(SourceFile(good), ["x"])) as begun:
        next(begun)
        (reader,) = set(psutil.Process().children()) - before
        # As one that the library holds up: it does not end by itself.
        reader.suspend()
    assert not reader.is_running()
