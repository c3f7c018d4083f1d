"""EMNIST: the same writers from three kinds of files, and NIST's idx files without writers."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Emnist, EmnistIdx
from raysim.data.sources import tff_sqlite
from raysim.errors import DataError
from tests.support.tff_files import field, hdf5, image, sqlite, varint

# Writer -> (grey value, label) of each image.
TRAIN = {"f0000_14": [(255, 0), (7, 61)], "f0001_41": [(100, 5)]}
TEST = {"f0000_14": [(3, 36)], "f0001_41": [(9, 9)]}
Writers = dict[str, list[tuple[int, int]]]


def as_hdf5(folder: Path, stem: str = "fed_emnist") -> None:
    for side, writers in (("train", TRAIN), ("test", TEST)):
        columns = {
            writer: {"pixels": np.stack([image(v) for v, _ in images]), "label": np.array([y for _, y in images])}
            for writer, images in writers.items()
        }
        hdf5(folder / f"{stem}_{side}.h5", columns)


def as_sqlite(folder: Path) -> None:
    def examples(writers: Writers) -> dict[str, list[dict[str, Any]]]:
        return {
            writer: [{"pixels": image(value).reshape(-1).tolist(), "label": [label]} for value, label in images]
            for writer, images in writers.items()
        }

    sqlite(folder / "emnist_all.sqlite", {"train": examples(TRAIN), "test": examples(TEST)})


def as_leaf(folder: Path) -> None:
    for side, writers in (("train", TRAIN), ("test", TEST)):
        (folder / "data" / side).mkdir(parents=True)
        for number, (writer, images) in enumerate(writers.items()):
            data = {"x": [image(v).reshape(-1).tolist() for v, _ in images], "y": [label for _, label in images]}
            content = {"users": [writer], "num_samples": [len(images)], "user_data": {writer: data}}
            (folder / "data" / side / f"all_data_{number}.json").write_text(json.dumps(content))


FORMS: dict[str, Callable[[Path], None]] = {"hdf5": as_hdf5, "sqlite": as_sqlite, "leaf": as_leaf}


def emnist(folder: Path, form: str, **keys: Any) -> FederatedDataset:
    keys = {"root": str(folder), "form": "leaf" if form == "leaf" else "tff", **keys}
    return prepare(Emnist.model_validate(keys), seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_writers(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path)
    data = emnist(tmp_path, form)
    assert (data.x.shape, data.x.dtype, data.x.scale, data.num_classes) == ((1, 28, 28), "uint8", 1 / 255, 62)
    for name, writers in (("train", TRAIN), ("test", TEST)):
        split = data.split(name)
        for position, (writer, images) in enumerate(writers.items()):
            x, y = split.client(position)
            assert split.id_of(position) == writer
            assert y.tolist() == [label for _, label in images]
            assert [set(pixels.reshape(-1).tolist()) for pixels in x] == [{value} for value, _ in images]


@pytest.mark.parametrize("form", FORMS)
def test_only_digits(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path)
    if form == "hdf5":
        as_hdf5(tmp_path, "fed_emnist_digitsonly")
    data = emnist(tmp_path, form, digits=True)
    assert data.num_classes == 10
    assert [data.train.client(position)[1].tolist() for position in range(2)] == [[0], [5]]


def test_writers_can_be_few_have_many_images_and_share_a_test_client(tmp_path: Path) -> None:
    as_leaf(tmp_path)
    data = emnist(tmp_path, "leaf", clients=1)
    assert len(data.train) == len(data.split("test")) == 1
    assert data.train.id_of(0) == data.split("test").id_of(0)
    assert [emnist(tmp_path, "leaf", min_examples=2).train.id_of(0)] == ["f0000_14"]
    assert emnist(tmp_path, "leaf", max_examples=1).train.sizes().tolist() == [1, 1]
    pooled = emnist(tmp_path, "leaf", test_clients="pooled").split("test")
    assert (pooled.id_of(0), pooled.sizes().tolist()) == ("test", [2])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "size": (
        {"pixels": np.zeros((1, 27, 28), np.float32), "label": [0]},
        "expected images of 28 x .*27 x 28",
    ),
    "range": ({"pixels": image(255)[None] * 255, "label": [0]}, r"expected values in 0\.\.1, found 255"),
    "between bytes": ({"pixels": image(1)[None] / 2, "label": [0]}, "expected whole multiples of 1/255, found 0.0019"),
    "label": ({"pixels": image(0)[None], "label": [62]}, r"expected labels in 0\.\.61, found 62"),
    "part of a label": (
        {"pixels": image(0)[None], "label": np.array([1.5])},
        r"expected whole numbers as labels, found 1\.5",
    ),
    "label above int64": (
        {"pixels": image(0)[None], "label": np.array([2**63 + 1], np.uint64)},
        r"expected labels in 0\.\.61, found 9223372036854775809",
    ),
    "complex": ({"pixels": image(0)[None] * 1j, "label": [0]}, "expected numbers as pixels, found complex64"),
    "lengths": ({"pixels": image(0)[None], "label": [0, 1]}, "expected columns of one length"),
    "column": ({"pixels": image(0)[None]}, r"expected columns \['pixels', 'label'\], found \['pixels'\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_client_is_named(tmp_path: Path, case: str) -> None:
    columns, problem = WRONG[case]
    for side in ("train", "test"):
        hdf5(tmp_path / f"fed_emnist_{side}.h5", {"f1": columns})
    with pytest.raises(DataError, match=rf"fed_emnist_train\.h5, client 'f1': {problem}"):
        emnist(tmp_path, "hdf5")


def test_what_an_sqlite_file_says_of_itself_is_compared(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        database.execute("DELETE FROM examples WHERE rowid = 1")
    with pytest.raises(DataError, match=r"of split 'train': expected \d examples, as client_metadata says, found \d"):
        emnist(tmp_path, "sqlite")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE client_metadata SET client_id = CAST(client_id AS BLOB)",
            "expected a text as client_id, found b'f0000",
        ),
        ("UPDATE examples SET client_id = x'01' WHERE rowid = 1", r"expected a text as client_id, found b'\\x01'"),
        (
            "UPDATE examples SET split_name = x'01' WHERE rowid = 1",
            r"texts as examples.split_name, found b'\\x01'",
        ),
        ("UPDATE client_metadata SET split_name = NULL", "expected texts as client_metadata.split_name, found None"),
    ],
)
def test_other_values_than_texts_are_no_names_in_an_sqlite_file(tmp_path: Path, change: str, said: str) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        database.execute(change)
    with pytest.raises(DataError, match=said):
        emnist(tmp_path, "sqlite")


def test_writers_whose_names_differ_in_case_are_not_one(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        for name, others in (
            ("examples", "serialized_example_proto BLOB"),
            ("client_metadata", "num_examples INTEGER"),
        ):
            column = others.split()[0]
            database.execute(f"ALTER TABLE {name} RENAME TO old")
            text = "TEXT COLLATE NOCASE"
            database.execute(f"CREATE TABLE {name} (split_name {text}, client_id {text}, {others})")
            database.execute(
                f"INSERT INTO {name} SELECT split_name, replace(client_id, 'f0001_41', 'F0000_14'), {column} FROM old"
            )
            database.execute("DROP TABLE old")
    data = emnist(tmp_path, "sqlite")
    assert [data.train.id_of(position) for position in range(2)] == ["F0000_14", "f0000_14"]
    assert data.train.sizes().tolist() == [1, 2]


@pytest.mark.parametrize("name", ["examples", "client_metadata"])
def test_a_view_of_an_sqlite_file_is_not_asked(tmp_path: Path, name: str) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        database.execute(f"ALTER TABLE {name} RENAME TO hidden")
        database.execute(
            f"CREATE VIEW {name} AS WITH RECURSIVE each(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM each) "
            "SELECT 'train' AS split_name, 'f' || n AS client_id, 1 AS num_examples, n AS rowid FROM each"
        )
    with pytest.raises(DataError, match=rf"expected a table {name}, found a view"):
        emnist(tmp_path, "sqlite")


def test_a_generated_column_of_an_sqlite_file_is_not_read(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        database.execute("ALTER TABLE examples RENAME COLUMN serialized_example_proto TO hidden")
        database.execute(
            "ALTER TABLE examples ADD COLUMN serialized_example_proto BLOB GENERATED ALWAYS AS (zeroblob(900000000))"
        )
    with pytest.raises(DataError, match=r"examples\.serialized_example_proto is generated"):
        emnist(tmp_path, "sqlite")


def test_work_of_sqlite_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_sqlite(tmp_path)
    monkeypatch.setattr(tff_sqlite, "_STEPS_BETWEEN", 1)
    monkeypatch.setattr(tff_sqlite, "_STEPS_AT_LEAST", 10)
    monkeypatch.setattr(tff_sqlite, "_STEPS_A_BYTE", 0)
    with pytest.raises(DataError, match="is damaged: its tables have more rows than a file of its size"):
        emnist(tmp_path, "sqlite")


def test_an_sqlite_file_with_a_log_beside_it_is_refused(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("DELETE FROM examples")
        database.commit()
        with pytest.raises(DataError, match=r"has a log beside it, .*-wal, whose rows are not in the file yet"):
            emnist(tmp_path, "sqlite")


def test_nothing_is_written_beside_an_sqlite_file(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database:
        database.execute("PRAGMA journal_mode = WAL")
    emnist(tmp_path, "sqlite")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("emnist")] == ["emnist_all.sqlite"]


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5 is missing.*published at https://storage\.googleapis"):
        emnist(tmp_path, "hdf5")
    as_hdf5(tmp_path)
    train = tmp_path / "fed_emnist_train.h5"
    train.write_bytes(train.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5: expected a whole HDF5 file"):
        emnist(tmp_path, "hdf5")
    (tmp_path / "emnist_all.sqlite").write_bytes(b"no database")
    with pytest.raises(DataError, match=r"emnist_all\.sqlite: expected an SQLite file with the tables"):
        emnist(tmp_path, "sqlite")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_samples": [3]}, "user 'u': expected 3 samples, found 1 x and 1 y"),
        ({"num_samples": [1, 2]}, "expected as many num_samples as users, found 2 and 1"),
        ({"user_data": {}}, "user 'u' is in users, but not in user_data"),
        ({"user_data": {"u": {"x": [[0.0]]}}}, "user 'u': expected 1 samples, found 1 x and 0 y"),
        ({"users": None}, "expected lists users and num_samples, and user_data by user"),
    ],
)
def test_a_wrong_json_file_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    as_leaf(tmp_path)
    content = {"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[0.0] * 784], "y": [0]}}} | change
    (tmp_path / "data" / "train" / "all_data_0.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"all_data_0\.json.*{problem}"):
        emnist(tmp_path, "leaf")


def test_half_a_json_file_is_named(tmp_path: Path) -> None:
    as_leaf(tmp_path)
    file = tmp_path / "data" / "test" / "all_data_0.json"
    file.write_text(file.read_text()[:100])
    with pytest.raises(DataError, match=r"all_data_0\.json: expected a whole json file"):
        emnist(tmp_path, "leaf")


def idx_files(folder: Path, first: int, last: int) -> None:
    for side in ("train", "test"):
        images = np.zeros((2, 28, 28), np.uint8)
        images[:, 1, 2] = 9
        for kind, values in (("images-idx3", images), ("labels-idx1", np.array([first, last], np.uint8))):
            header = struct.pack(f">{1 + values.ndim}I", 2048 + values.ndim, *values.shape)
            path = folder / f"emnist-{'letters' if first else 'balanced'}-{side}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + values.tobytes(), mtime=0))


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47)])
def test_idx_images_are_upright_and_labels_begin_at_0(tmp_path: Path, split: Any, first: int, classes: int) -> None:
    idx_files(tmp_path, first, first + classes - 1)
    data = prepare(EmnistIdx(clients=1, root=str(tmp_path), split=split), seed=0)
    x, y = data.train.client(0)
    assert data.num_classes == classes
    assert y.tolist() == [0, classes - 1]
    assert np.argwhere(x[0, 0]).tolist() == [[2, 1]]


def test_a_label_outside_the_split_is_named(tmp_path: Path) -> None:
    idx_files(tmp_path, 1, 27)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz: expected labels in 1\.\.26, found 1 to 27"):
        prepare(EmnistIdx(clients=1, root=str(tmp_path), split="letters"), seed=0)


@pytest.mark.parametrize("label", ["a", 1.5, None, 62])
def test_a_label_of_leafs_that_is_none_is_named(tmp_path: Path, label: object) -> None:
    as_leaf(tmp_path)
    file = tmp_path / "data" / "train" / "all_data_1.json"
    content = json.loads(file.read_text())
    content["user_data"]["f0001_41"]["y"] = [label]
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"all_data_1\.json, user 'f0001_41': expected whole numbers in 0\.\.61"):
        emnist(tmp_path, "leaf")


@pytest.mark.parametrize("form", FORMS)
def test_a_test_split_without_an_image_is_not_left_out(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TEST", {})
    FORMS[form](tmp_path)
    if form == "leaf":
        (tmp_path / "data" / "test" / "none.json").write_text('{"users": [], "num_samples": [], "user_data": {}}')
    with pytest.raises(DataError, match="holds no test client with an example: a file is empty, or cut off"):
        emnist(tmp_path, form)


@pytest.mark.parametrize("split", ["Train", "train ", "validation", "a", "z", "tf"])
@pytest.mark.parametrize("table", ["examples", "client_metadata"])
def test_rows_of_a_split_that_nothing_reads_are_named(tmp_path: Path, split: str, table: str) -> None:
    as_sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        values = "(?, 'w', x'')" if table == "examples" else "('w', ?, 1)"
        database.execute(f"INSERT INTO {table} VALUES {values}", (split,))
    with pytest.raises(DataError, match=rf"sqlite: expected the splits train, test in {table}, found {split!r}"):
        emnist(tmp_path, "sqlite")


def test_texts_are_no_pixels(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    texts = field(1, b"pixels") + field(2, field(1, b"".join(field(1, b"0.0") for _ in range(784))))
    label = field(1, b"label") + field(2, field(3, field(1, varint(3))))
    with closing(sqlite3.connect(tmp_path / "emnist_all.sqlite")) as database, database:
        written = field(1, field(1, texts) + field(1, label))
        database.execute("INSERT INTO examples VALUES ('train', 'w', ?)", (written,))
        database.execute("INSERT INTO client_metadata VALUES ('w', 'train', 1)")
    with pytest.raises(DataError, match="client 'w': expected numbers as pixels"):
        emnist(tmp_path, "sqlite")
