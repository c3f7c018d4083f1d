"""Tables of one's own, LEAF's numbers, and landmarks: from a client column, json and images to clients."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim import rounds
from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Gld, Leaf, Table
from raysim.data.sources import leaf_json
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError, ExperimentError, ModelError
from raysim.experiment.experiment import Experiment
from raysim.experiment.experiment_file import load

ROWS: dict[str, Any] = {"user": ["b", "a", "b"], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 2]}


def table(folder: Path, columns: dict[str, Any], name: str = "train.parquet", **keys: Any) -> FederatedDataset:
    made = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if name.endswith(".parquet"):
        pq.write_table(made, folder / name)
    else:
        with pa.ipc.new_file(folder / name, made.schema) as sink:
            sink.write_table(made)
    return prepare(Table.model_validate({"root": str(folder), "train": name, "client": "user", **keys}), seed=0)


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
def test_every_value_of_the_client_column_is_a_client(tmp_path: Path, name: str) -> None:
    data = table(tmp_path, ROWS, name)
    assert [data.train.id_of(position) for position in range(2)] == ["a", "b"]
    x, y = data.train.client(1)
    assert (x.tolist(), y.tolist(), data.num_classes) == ([[1.0, 2.0], [5.0, 6.0]], [0, 2], 3)


def test_ids_that_end_in_other_numbers_of_nuls_are_different_clients(tmp_path: Path) -> None:
    data = table(tmp_path, {"user": ["a", "a\0", "a\0\0", "a"], "x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    assert [data.train.id_of(position) for position in range(3)] == ["a", "a\0", "a\0\0"]
    assert data.train.sizes().tolist() == [2, 1, 1]


def test_a_long_id_costs_memory_once(tmp_path: Path) -> None:
    users = ["a" * 100_000, *("b" for _ in range(1000))]
    tracemalloc.start()
    try:
        table(tmp_path, {"user": users, "x": [1.0] * 1001, "y": [0] * 1001})
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # In every row it would take 400 MB.
    assert most_bytes < 150_000_000


def test_columns_side_by_side_other_shapes_and_real_targets(tmp_path: Path) -> None:
    columns = {"user": [3, 3], "a": [1, 2], "b": [0.5, 0.25], "y": [0.1, 0.2]}
    data = table(tmp_path, columns, x=["a", "b"])
    assert data.train.client(0)[0].tolist() == [[1.0, 0.5], [2.0, 0.25]]
    assert (data.num_classes, data.train.id_of(0)) == (None, "3")
    # Where no number can change, nothing is compared: halves warned of an overflow.
    halves = {**columns, "b": pa.array(np.array([0.5, 0.25], np.float16))}
    assert table(tmp_path, halves, x=["a", "b"]).train.client(0)[0].tolist() == [[1.0, 0.5], [2.0, 0.25]]
    assert table(tmp_path, ROWS, shape=[1, 2]).x.shape == (1, 2)
    assert table(tmp_path, ROWS, shape=[1, 2]).train.client(0)[0].shape == (1, 1, 2)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (["a", "y"], "y = 'y' is among the columns of x: a model would read the target from its input"),
        (["a", "b", "a"], "x must name each column once, but names 'a' several times"),
    ],
)
def test_columns_that_are_named_twice_are_refused(x: list[str], said: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(f"data: {said}")):
        Experiment.model_validate({"name": "own", "rounds": 1, "data": {"name": "arrow", "train": "t.parquet", "x": x}})


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_without_rows_is_named(tmp_path: Path, split: str, ending: str) -> None:
    made = pa.table(ROWS)
    with pa.ipc.new_file(tmp_path / "none.arrow", made.schema) as sink:
        sink.write_table(made.slice(0, 0))
    pq.write_table(made.slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=rf"none\.{ending}: expected rows, found none"):
        table(tmp_path, made, f"train.{ending}", **{split: f"none.{ending}"})


@pytest.mark.parametrize("name", ["user", "x", "y"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, name: str) -> None:
    made = pa.table([*ROWS.values(), ROWS[name]], names=[*ROWS, name])
    with pytest.raises(DataError, match=rf"train\.arrow: expected one column '{name}', found 2"):
        table(tmp_path, made, "train.arrow")


def test_categories_are_read_as_their_values(tmp_path: Path) -> None:
    made = pa.table(ROWS)
    coded = made.set_column(0, "user", made["user"].dictionary_encode())
    for name in ("train.parquet", "train.arrow"):
        data = table(tmp_path, coded, name)
        assert [data.train.id_of(position) for position in range(2)] == ["a", "b"]


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 18, reason="pyarrow before 18 converts no views of strings")
def test_views_of_strings_are_read_as_strings(tmp_path: Path) -> None:
    made = pa.table(ROWS)
    seen = made.set_column(0, "user", made["user"].cast(pa.string_view()))
    assert table(tmp_path, seen, "train.arrow").train.id_of(0) == "a"


@pytest.mark.parametrize("label", [2**24 + 1, 2**63])
def test_a_number_that_is_no_label_is_named(label: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"train\.parquet, column 'y': .* at most 16777216, but one is {label}$"):
        table(tmp_path, {**ROWS, "y": pa.array([0, 1, label], pa.uint64())})


def test_labels_of_a_table_that_begin_at_1_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table(tmp_path, {**ROWS, "y": [1, 2, 3]})
    assert "labels go from 1 to 3, and classes are counted from 0" in caplog.text
    caplog.clear()
    table(tmp_path, {**ROWS, "y": [1, 2, 2]}, classes=5)
    assert not caplog.records


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_of_a_table_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'x': expected finite numbers, but 1 is not: .* at value 3"):
        table(tmp_path, {**ROWS, "x": [[1.0, 2.0], [3.0, value], [5.0, 6.0]]})
    with pytest.raises(DataError, match=r"column 'y': expected finite numbers"):
        table(tmp_path, {**ROWS, "y": [0.5, 1.5, value]})


def test_what_float32_cannot_hold_in_several_columns_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = {"user": ["a", "a"], "a": [2**24 + 1, 2**53 + 1], "b": [0.5, 1.0], "y": [0, 1]}
    table(tmp_path, columns, x=["a", "b"])
    assert "column 'a': 2 whole numbers are not exact as float32" in caplog.text
    with pytest.raises(DataError, match="column 'b', as float32: expected finite numbers"):
        table(tmp_path, {**columns, "b": [1e300, 1.0]}, x=["a", "b"])


def test_a_column_that_is_nothing_as_float32_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = {"user": ["a", "a"], "a": [1e-60, 0.0], "b": [1e-60, 1.0], "c": [0.0, 0.0], "y": [0, 1]}
    table(tmp_path, columns, x=["a", "b", "c"])
    said = [record.getMessage() for record in caplog.records if "all numbers are 0 as float32" in record.getMessage()]
    assert len(said) == 1
    assert "column 'a'" in said[0]


def test_what_float32_cannot_hold_of_a_column_of_float64_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"user": ["a", "a"], "a": [1.7, 0.1], "b": [2.0**24 + 1, 1.0]}
    table(tmp_path, columns, x=["b"], y="a")
    assert "column 'b': 1 whole numbers are not exact as float32" in caplog.text
    caplog.clear()
    table(tmp_path, columns, x=["a"], y="b")
    assert "column 'b': 1 whole numbers are not exact as float32" in caplog.text
    caplog.clear()
    table(tmp_path, {**columns, "b": [2.0**25, 0.1]}, x=["a"], y="b")
    assert not caplog.records
    with pytest.raises(DataError, match="column 'b', as float32: expected finite numbers"):
        table(tmp_path, {**columns, "b": [1e300, 1.0]}, x=["b"], y="a")


def test_what_float32_cannot_hold_of_scaled_whole_numbers_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"user": ["a", "a"], "a": [[2**24 + 1], [2**30]], "y": [0, 1]}
    table(tmp_path, columns, x=["a"])
    assert not caplog.records
    table(tmp_path, columns, x=["a"], scale=1e-6)
    assert "column 'a': 1 whole numbers are not exact as float32, which data.scale multiplies" in caplog.text


@pytest.mark.parametrize("values", [[[1.0], [2.0]], [{"a": 1}, {"a": 2}]], ids=["lists", "structs"])
def test_codes_of_what_is_no_number_are_named(tmp_path: Path, values: list[Any]) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(values))
    with pytest.raises(DataError, match=r"train\.arrow, column 'x': expected a value in each row, found dictionary<"):
        table(tmp_path, pa.table(ROWS | {"x": coded}), "train.arrow")


def test_lists_beside_another_column_are_named(tmp_path: Path) -> None:
    columns = {"user": ["a", "b"], "a": [1.0, 2.0], "b": [[0.5, 1.5], [0.25, 2.5]], "y": [0, 1]}
    with pytest.raises(DataError, match=r"train\.parquet, column 'b': expected a number in each row, .* lists of 2"):
        table(tmp_path, columns, x=["a", "b"])
    with pytest.raises(DataError, match=r"column 'b': expected a number in each row"):
        table(tmp_path, {**columns, "c": columns["b"]}, x=["b", "c"])


def test_an_own_table_is_divided_like_any_source(tmp_path: Path) -> None:
    data = table(tmp_path, ROWS, partition={"name": "iid"}, clients=3)
    assert data.train.sizes().tolist() == [1, 1, 1]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "null client": ({"user": ["a", None, "b"]}, "every row must say whose it is, but 1 are null, the first in row 1"),
    "float client": ({"user": [0.5, 1.5, 2.5]}, "expected texts or integers, found double"),
    "null in x": ({"x": [[1.0, None], [3.0, 4.0], [5.0, 6.0]]}, "expected no nulls, found 1, the first at value 1"),
    "ragged x": ({"x": [[1.0], [3.0, 4.0], [5.0, 6.0]]}, r"expected lists of one length, found \[1, 2\]"),
    "text in y": ({"y": ["a", "b", "c"]}, "expected numbers or lists of them, found string: np.unique.* of texts"),
    "text in x": ({"x": ["a", "b", "c"]}, "column 'x'.* found string: texts in x are made numbers first"),
    "dates": ({"y": pa.array([1, 2, 3], pa.date32())}, "found date32.*: dates, times, decimals and the like are made"),
    "decimals": ({"x": pa.array([1, 2, 3]).cast(pa.decimal128(20))}, "found decimal128.*: dates, times, decimals"),
    "lists of lists": ({"x": [[[1.0]], [[2.0]], [[3.0]]]}, "found list<.*: write one list of numbers in each row"),
    "empty lists": ({"x": pa.array([[], [], []], pa.list_(pa.float64()))}, "found list<.*: the lists are empty"),
    "negative label": ({"y": [0, -1, 2]}, "expected labels of at least 0, found -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_named(tmp_path: Path, case: str) -> None:
    change, problem = WRONG[case]
    with pytest.raises(DataError, match=rf"train\.parquet.*{problem}"):
        table(tmp_path, ROWS | change)


def test_classes_of_real_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data.classes = 3 .* 'y' is of float64, .* regression: class labels are integers"
    ):
        table(tmp_path, ROWS | {"y": [0.0, 1.0, 2.0]}, classes=3)


def test_a_table_in_the_place_of_a_source_or_a_dataset_is_answered_by_the_source(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("client,x,y\n0,1,0\n")
    way = r"data.name = 'arrow' and data.train = .*pyarrow.csv.read_csv\(file\)"
    for data in (str(file), {"name": "train.csv"}, {"name": "csv"}, {"name": "parquet"}):
        with pytest.raises(ExperimentError, match=rf"^data.name must be a source, but got .*{way}"):
            Experiment.model_validate({"data": data, "cohort": {"size": 1}})
    with pytest.raises(ExperimentError, match=rf"train.csv is a table of data, not an experiment: .*{way}"):
        load(file)
    with pytest.raises(DataError, match=rf"train.csv is a file, and .* DatasetWriter wrote: .*{way}"):
        FederatedDataset.open(file)
    with pytest.raises(DataError, match=r"expected a whole .parquet.* \(pyarrow.parquet.write_table\(pyarrow.csv"):
        prepare(Table(root=str(tmp_path), train="train.csv"), seed=0)


def test_missing_columns_files_and_unlike_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the column 'label', found user, x, y"):
        table(tmp_path, ROWS, y="label")
    with pytest.raises(DataError, match=r"column 'z', found user, x, y; data.client, x and y name the columns"):
        table(tmp_path, ROWS, x=["z"])
    with pytest.raises(DataError, match=r"column 'lable', found user, x, label \(did you mean 'label'\?\)"):
        table(tmp_path, {"user": ["a"], "x": [[1.0]], "label": [0]}, y="lable")
    with pytest.raises(DataError, match=r"column 'usr', found user, x, y \(did you mean 'user'\?\)"):
        table(tmp_path, ROWS, client="usr")
    with pytest.raises(DataError, match=r"column 'y', found user, x, c0, .*, c47, \.\.\.; data"):
        table(tmp_path, {"user": ["a"], "x": [1.0], **{f"c{i}": [0] for i in range(99)}})
    with pytest.raises(DataError, match=r"trian\.parquet is missing \(did you mean 'train.parquet'\?\): data.train"):
        prepare(Table(root=str(tmp_path), train="trian.parquet"), seed=0)
    with pytest.raises(DataError, match=r"other\.parquet is missing: data.train"):
        prepare(Table(root=str(tmp_path), train="other.parquet"), seed=0)
    (tmp_path / "train.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"trian\.parquet is missing \(did you mean 'train.parquet'\?\)"):
        prepare(Table(root=str(tmp_path), train="trian.parquet"), seed=0)
    with pytest.raises(DataError, match=r"train\.npz holds arrays, .*from_clients\(.*\.write_table\("):
        prepare(Table(root=str(tmp_path), train="train.npz"), seed=0)
    with pytest.raises(DataError, match=r"test\.parquet is missing"):
        table(tmp_path, ROWS, test="test.parquet")
    pq.write_table(pa.table(ROWS | {"x": [[1.0], [2.0], [3.0]]}), tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: expected x as in the training table, float64\[2\], found"):
        table(tmp_path, ROWS, test="test.parquet")
    (tmp_path / "half.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:100])
    with pytest.raises(DataError, match=r"half\.parquet is damaged: expected a table in Parquet"):
        prepare(Table(root=str(tmp_path), train="half.parquet"), seed=0)
    (tmp_path / "train.csv").write_text("user,x,y\na,1,0\n")
    with pytest.raises(DataError, match=r"train\.csv: expected a whole \.parquet, .* makes one of a CSV file"):
        prepare(Table(root=str(tmp_path), train="train.csv"), seed=0)
    with pytest.raises(DataError, match=r"data\.shape = \(3,\) must have as many values as x, 2"):
        table(tmp_path, ROWS, shape=[3])


def test_arrays_become_a_table_as_the_message_says(tmp_path: Path) -> None:
    from raysim.data.field import OF_ARRAYS

    call = OF_ARRAYS[OF_ARRAYS.index("pyarrow.parquet.write_table") : OF_ARRAYS.index(" makes a table")]
    x, file = np.arange(12.0).reshape(3, 2, 2), tmp_path / "train.parquet"
    eval(call, {"pyarrow": pa, "ids": ["a", "b", "a"], "x": x, "y": np.array([0, 1, 1]), "file": file})
    data = prepare(Table(root=str(tmp_path), train=file.name, shape=(2, 2)), seed=0)
    assert data.train.client(0)[0].tolist() == x[[0, 2]].tolist()
    way = OF_ARRAYS[: OF_ARRAYS.index(", takes them")].removeprefix("raysim.").split(", or ")
    assert way == ["FederatedDataset.from_clients({client: (x, y), ...})", "from_arrays((x, y), clients=100)"]
    assert len(FederatedDataset.from_arrays((np.zeros((200, 2)), np.zeros(200, int)), clients=100).train) == 100


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_an_example_that_is_a_number_alone_is_answered_by_the_shape(name: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"client": ["a", "a", "b", "b"], "x": [0.5, 1.0, -0.5, 2.0], "y": [0, 1, 0, 1]}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    exp = Experiment.model_validate(
        {
            "rounds": 1,
            "data": {"name": "arrow", "root": str(tmp_path), "train": "train.parquet"},
            "model": {"name": name},
            "cohort": {"size": 2},
        }
    )
    with pytest.raises(ModelError, match=rf"^{name} takes .* \(shape \(\)\): data\.shape = \[1\] makes a list of one"):
        list(rounds(exp, executor="local"))
    (only,) = rounds(exp.changed({"data.shape": [1]}), executor="local")
    assert only.metrics["clients"] == 2


def leaf(folder: Path, x: Any) -> Leaf:
    for side in ("train", "test"):
        (folder / side).mkdir()
        data = {"users": ["u", "v"], "num_samples": [1, len(x)], "user_data": {}}
        data["user_data"] = {"u": {"x": [[0.5, 1.0]], "y": [9.0]}, "v": {"x": x, "y": [1] * len(x)}}
        (folder / side / "my.json").write_text(json.dumps(data))
    return Leaf(root=str(folder))


def test_leafs_numbers(tmp_path: Path) -> None:
    data = prepare(leaf(tmp_path, [[2.0, 3.0], [2**25, 1e17 / 3]]), seed=0)
    assert data.train.client(1)[0].tolist() == [[2.0, 3.0], [2**25, float(np.float32(1e17 / 3))]]
    assert (data.train.client(0)[1].tolist(), data.num_classes, data.x.shape) == ([9], 10, (2,))


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        ([[1.0]], r"expected x of shape \(2,\) as the first user's, found \(1,\)"),
        ([[1.0], [1.0, 2.0]], "equally many"),
        ([["a", 1.0]], "expected numbers as x, found texts"),
        ([["1", "2"]], "expected numbers as x, found texts"),
        ([[True, False]], "expected numbers as x, found texts or truth values"),
        ([[1.0, 2.0], [True, 2.0]], "expected numbers as x, found texts or truth values"),
        ([[[1.0], [False]]], "expected numbers as x, found texts or truth values"),
        ([[10**400, 1.0]], "too large"),
        ([[]], "expected at least one number in each row of x"),
        ([[None, 1.0]], "expected finite numbers as x, found null"),
        ([[1e308, 1.0]], "expected finite numbers as x, found .* infinity"),
        ([[2**24 + 1, 1]], "found 16777217, which would be 16777216"),
        ([[2**24 + 1, 0.5]], "found 16777217, which would be 16777216"),
        ([[2**70 + 1, 1]], f"found {2**70 + 1}, which would be {2**70}"),
    ],
)
def test_rows_that_do_not_fit_are_named(tmp_path: Path, x: Any, problem: str) -> None:
    with pytest.raises(DataError, match=rf"my\.json, user 'v': .*{problem}") as refused:
        prepare(leaf(tmp_path, x), seed=0)
    assert str(refused.value).count("my.json") == 1


def test_a_user_who_is_twice_in_a_file_of_leaf_is_named(tmp_path: Path) -> None:
    """The last of two would be taken in silence."""
    section = leaf(tmp_path, [[2.0, 3.0]])
    file = tmp_path / "train" / "my.json"
    file.write_text(file.read_text().replace('"user_data": {', '"user_data": {"u": {"x": [[9.0, 9.0]], "y": [1]}, '))
    with pytest.raises(DataError, match=r"train/my\.json: expected a whole json file: it has the key 'u' twice"):
        prepare(section, seed=0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"users": ["u"], "num_samples": [1]}, "user 'v' is in user_data, but not in users"),
        ({"num_samples": [True, 1]}, "user 'u': expected a whole number in num_samples, found True"),
        ({"users": [], "num_samples": [], "user_data": {}}, "train: expected users with examples, found none"),
    ],
)
def test_lists_of_leaf_that_do_not_agree_are_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    section = leaf(tmp_path, [[2.0, 3.0]])
    for file in tmp_path.rglob("my.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=problem):
        prepare(section, seed=0)


def test_a_first_user_without_rows_is_no_measure(tmp_path: Path) -> None:
    section = leaf(tmp_path, [[2.0, 3.0]])
    for file in tmp_path.rglob("my.json"):
        content = json.loads(file.read_text())
        content["user_data"]["u"], content["num_samples"] = {"x": [], "y": []}, [0, 1]
        file.write_text(json.dumps(content))
    assert prepare(section, seed=0).x.shape == (2,)


@pytest.mark.parametrize("label", ["a", "1", 1.5, None, True, float("nan"), float("inf"), -1, 10, [1]])
def test_a_label_that_is_no_whole_number_in_range_is_named(tmp_path: Path, label: Any) -> None:
    section = leaf(tmp_path, [[2.0, 3.0]])
    for file in tmp_path.rglob("my.json"):
        content = json.loads(file.read_text())
        content["user_data"]["v"]["y"] = [label]
        file.write_text(json.dumps(content))
    with pytest.raises(DataError) as raised:
        prepare(section, seed=0)
    assert str(raised.value) == (
        f"{tmp_path / 'train' / 'my.json'}, user 'v': expected whole numbers in 0..9 as labels, found {label!r}"
    )


@pytest.mark.parametrize(
    ("name", "total", "smallest", "largest"),
    [("0_0", 897, 5, 169), ("0.5_0.5", 912, 5, 465), ("1_1", 1084, 5, 662), ("iid", 805, 6, 360)],
)
def test_the_published_synthetic_files(
    public: Callable[[str], Path], name: str, total: int, smallest: int, largest: int
) -> None:
    folder = public("fedprox-synthetic") / f"synthetic_{name}" / "data" / "test"
    users = list(leaf_json.users(SourceFile(folder / "mytest.json")))
    sizes = [len(user.y) for user in users]
    assert (len(users), sum(sizes), min(sizes), max(sizes)) == (30, total, smallest, largest)
    assert {len(row) for user in users for row in user.x} == {60}


def landmarks(folder: Path, train: str = "u2,1,aa\nu1,0,bb\nu2,202,cc\n") -> Gld:
    image = pytest.importorskip("PIL.Image")
    (folder / "images" / "c" / "c" / "c").mkdir(parents=True)
    for place in ("aa.jpg", "bb.jpg"):
        image.new("RGB", (40, 20), (255, 0, 0)).save(folder / "images" / place)
    image.new("L", (8, 8), 255).save(folder / "images" / "ccc.jpg")
    (folder / "mini_gld_train_split.csv").write_text("user_id,class,image_id\n" + train.replace("cc\n", "ccc\n"))
    (folder / "mini_gld_test.csv").write_text("class,image_id\n0,aa\n")
    return Gld(root=str(folder), size=16)


def test_photographers_are_clients(tmp_path: Path) -> None:
    data = prepare(landmarks(tmp_path), seed=0)
    assert [data.train.id_of(position) for position in range(2)] == ["u1", "u2"]
    x, y = data.train.client(1)
    assert (x.shape, y.tolist(), data.num_classes) == ((2, 3, 16, 16), [1, 202], 203)
    # JPEG is lossy, but red stays red, and grey has three equal channels.
    assert np.abs(x[0].astype(int).mean((1, 2)) - [255, 0, 0]).max() < 3
    assert (x[1] == x[1][:1]).all()
    assert data.split("test").id_of(0) == "test"


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("u,203,aa\n", r"row 2: expected an image and a class in 0\.\.202, found 'aa' and '203'"),
        ("u,0,aa\nu,x\n", r"row 3: expected an image and a class"),
        ("u,0,aa\n,0,bb\n", r"row 3: expected whose the image is in 'user_id', found nothing"),
        ("u,0,aa,bb\n", r"row 2: expected 3 fields, found more"),
        ("u,0,zz\n", r"zz\.jpg is missing; the images are published at"),
    ],
)
def test_a_broken_mapping_is_named(tmp_path: Path, train: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        prepare(landmarks(tmp_path, train), seed=0)


def test_a_column_of_a_mapping_that_is_there_twice_is_named(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    (tmp_path / "mini_gld_train_split.csv").write_text("user_id,class,image_id,class\nu,0,aa,1\n")
    with pytest.raises(DataError, match="expected columns that differ, found 'class' twice"):
        prepare(section, seed=0)


def test_postscript_in_place_of_an_image_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = landmarks(tmp_path)
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'run'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    (tmp_path / "images" / "aa.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n")
    with pytest.raises(DataError, match=r"aa\.jpg: expected a whole image in JPEG or PNG"):
        prepare(section, seed=0)
    assert not (tmp_path / "run").exists()


def test_other_images_under_the_same_tables_are_another_dataset(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    first = prepare(section, seed=0)
    # The address has the sizes of the files: an image with more in it is larger.
    pytest.importorskip("PIL.Image").effect_noise((40, 20), 90.0).save(tmp_path / "images" / "aa.jpg")
    assert prepare(section, seed=0).fingerprint != first.fingerprint


def test_a_folder_in_place_of_an_image_is_said(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    (tmp_path / "images" / "aa.jpg").unlink()
    (tmp_path / "images" / "aa.jpg").mkdir()
    with pytest.raises(DataError, match=r"aa\.jpg must be a file, but is a folder"):
        prepare(section, seed=0)


def test_an_image_of_gigabytes_is_refused(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    pytest.importorskip("PIL.Image").new("1", (13_000, 13_300)).save(tmp_path / "images" / "aa.jpg", format="PNG")
    with pytest.raises(DataError, match=r"aa\.jpg: expected a whole image in JPEG or PNG: .*decompression bomb"):
        prepare(section, seed=0)


def test_an_image_with_more_bits_than_are_read_is_refused(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    deep = pytest.importorskip("PIL.Image").fromarray(np.full((20, 40), 300, np.uint16))
    deep.save(tmp_path / "images" / "aa.jpg", format="PNG")
    with pytest.raises(DataError, match=r"aa\.jpg: .* it has 16 bits a channel"):
        prepare(section, seed=0)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    section = landmarks(tmp_path)
    (tmp_path / "images" / "aa.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"aa\.jpg: expected a whole image"):
        prepare(section, seed=0)
