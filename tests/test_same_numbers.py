"""scripts/same-numbers: what it compares, and that its experiments use every choice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from scripts.same_numbers import cases, choices, compare
from scripts.same_numbers.compare import Record

SCRIPT = Path(__file__).parent.parent / "scripts" / "same-numbers"
W = np.array([[1.0, 2.0], [3.0, float("nan")]], np.float32)


def record(w: Any = W, **columns: Any) -> Record:
    given = {"round": [0, 1], "loss": [0.5, float("nan")], "wall_time_s": [1.0, 2.0], "cohort": [["a"], ["b"]]}
    return Record({"round 0: fc.bias": np.zeros(2), "round 0: fc.weight": w}, {"rounds": pa.table(given | columns)})


def test_equal_records_do_not_differ_and_nan_is_nan() -> None:
    assert compare.difference(record(), record(W.copy())) is None


@pytest.mark.parametrize(
    "column",
    ["wall_time_s", "idle_fraction", "workers", "retries", "wall_time_s/mean", "seconds/fold", "ray_bytes_up/1"],
)
def test_time_and_placement_are_not_compared(column: str) -> None:
    one, other = record(**{column: [1.0, 2.0]}), record(**{column: [1.0, 3.0]})
    assert compare.difference(one, other) is None
    assert compare.difference(one, record()) is None


@pytest.mark.parametrize(("column", "values"), [("workers_asked", [1, 2]), ("simulated_time_s", [1.0, 2.0])])
def test_other_columns_are_compared(column: str, values: list[Any]) -> None:
    changed = [values[0], values[1] + 1]
    found = compare.difference(record(**{column: values}), record(**{column: changed}))
    assert found == (
        f"rounds, column {column}: 1 of 2 differ, first in row 1: 2 and 3; by 1"
        if isinstance(values[0], int)
        else f"rounds, column {column}: 1 of 2 differ, first [1]: 2.0 and 3.0; by at most 1"
    )
    assert compare.difference(record(), record(**{column: values})) == f"rounds, columns new: {column}"
    assert compare.difference(record(**{column: values}), record()) == f"rounds, columns gone: {column}"


def test_the_first_tensor_that_differs_is_named_with_the_largest_difference() -> None:
    w = W.copy()
    w[0, 1], w[1, 0] = np.nextafter(np.float32(2), np.float32(3)), 3.5
    found = compare.difference(record(), record(w))
    assert found == "round 0: fc.weight: 2 of 4 differ, first [1]: 2.0 and 2.000000238418579; by at most 0.5"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(2), -np.zeros(2)),
        (np.zeros(2), np.array([0.0, np.nan])),
        (np.array([np.inf]), np.array([-np.inf])),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2, np.int64), np.array([0, 1])),
    ],
)
def test_bits_types_and_shapes_count(one: Any, other: Any) -> None:
    assert compare.arrays(one, one.copy()) is None
    assert compare.arrays(one, other) is not None


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": [1.0, None]}, {"a": [1.0, float("nan")]}, "column a: null in row 1 of one alone"),
        ({"a": [None, 1.0]}, {"a": [1.0, None]}, "column a: null in row 0 of one alone"),
        ({"a": [1]}, {"a": [1.0]}, "column a: int64, and double"),
        (
            {"a": [["x", "y"]]},
            {"a": [["y", "x"]]},
            "column a: 1 of 1 differ, first in row 0: ['x', 'y'] and ['y', 'x']",
        ),
        ({"a": [1]}, {"a": [1, 1]}, "1 rows, and 2"),
        ({"a": [1], "b": [1]}, {"c": [1], "a": [1]}, "columns gone: b; columns new: c"),
        ({"a": [1]}, {"b": [1], "a": [2]}, "column a: 1 of 1 differ"),
    ],
)
def test_tables_differ(one: Any, other: Any, found: str) -> None:
    assert compare.tables(pa.table(one), pa.table(one)) is None
    assert (compare.tables(pa.table(one), pa.table(other)) or "").startswith(found)


def test_the_order_of_columns_is_no_number() -> None:
    assert compare.tables(pa.table({"a": [1], "b": [2]}), pa.table({"b": [2], "a": [1]})) is None


def test_tensors_and_tables_that_are_gone_are_named() -> None:
    less = Record({"round 0: fc.weight": W}, {})
    assert compare.difference(record(), less) == "tensors gone: round 0: fc.bias"
    assert compare.difference(Record({}, record().tables), Record({}, {})) == "tables gone: rounds"


def test_errors_are_compared_by_class() -> None:
    one, other = (Record({}, {}, "ModelError", text) for text in ("a loss", "a model"))
    assert compare.difference(one, other) is None
    assert (
        compare.difference(one, one._replace(error="DataError")) == "raised ModelError (a loss), and DataError (a loss)"
    )
    assert compare.difference(record(), one) == "raised nothing, and ModelError (a loss)"


def test_a_case_whose_keyword_the_revision_does_not_take_is_new_and_no_difference() -> None:
    lacks = Record({}, {}, lacks=("transform",))
    assert compare.said(lacks, record()) == "new: no keyword transform"
    assert compare.said(lacks, Record({}, {}, "ModelError", "a loss")).endswith("raises ModelError (a loss)")
    assert compare.said(record(), lacks) == "DIFFERS: no keyword transform"
    assert compare.said(lacks, lacks) == "DIFFERS: no keyword transform"
    assert compare.said(record(), record()) == "same"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "params.npz", allow_pickle=False, **record().arrays)
    pq.write_table(record().tables["rounds"], tmp_path / "rounds.parquet")
    assert compare.difference(compare.read(tmp_path), record()) is None
    (tmp_path / "error.json").write_text(json.dumps({"class": "ModelError", "text": "a loss"}))
    assert compare.read(tmp_path).error == "ModelError"
    (tmp_path / "lacks.json").write_text(json.dumps(["metrics", "transform"]))
    assert compare.read(tmp_path).lacks == ("metrics", "transform")


def test_every_choice_of_the_schema_is_used_by_a_case_or_excused() -> None:
    experiments = {name: cases.experiment(case) for name, case in cases.cases().items()}
    assert choices.unused(raysim.Experiment, experiments.values(), cases.UNUSED) == []
    # The list of excuses holds nothing else.
    without = choices.unused(raysim.Experiment, experiments.values(), ())
    assert sorted(without) == sorted(cases.UNUSED)


def test_a_choice_that_no_case_uses_is_found() -> None:
    every = cases.cases()
    del every["aggregator krum"], every["adversary label_flip krum"]
    left = choices.unused(raysim.Experiment, map(cases.experiment, every.values()), cases.UNUSED)
    assert left == ["krum.Krum.f", "krum.Krum.name = krum"]


def test_a_union_lists_its_choices_and_keys_by_the_class_that_declares_them() -> None:
    found = choices.choices(raysim.Experiment)
    assert {
        "adam.Adam.bias_correction = kingma",
        "clipping.FixedClip.fixed",
        "section.ClientSection.shuffle = False",
    } <= found
    assert "mlp.Mlp.seed" not in found
    assert "model.ModelChoice.seed" in found


@pytest.mark.parametrize("arguments", [[], ["no-such-revision"], ["HEAD", "--only", "no such case"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "usage:" in done.stderr
