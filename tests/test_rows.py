"""Rows of a run: packed or not, they read the same."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raysim.run_folder.rows import Rows, table

values = st.none() | st.integers(-9, 9) | st.floats(-9, 9)
row = st.dictionaries(st.sampled_from(["loss", "accuracy", "workers"]), values)


@given(st.lists(row, max_size=12), st.sets(st.integers(0, 12)), st.integers(-3, 14), st.integers(-3, 14))
def test_rows_read_the_same_whenever_they_are_packed(
    given_rows: list[dict[str, float | None]], packed_before: set[int], start: int, stop: int
) -> None:
    numbered = [{"round": index, **own} for index, own in enumerate(given_rows)]
    rows = Rows()
    for index, own in enumerate(numbered):
        if index in packed_before:
            rows.packed()
        rows.append(own)
    assert len(rows) == len(numbered)
    known = [{key: value for key, value in own.items() if value is not None} for own in rows[start:stop]]
    assert known == [{k: v for k, v in own.items() if v is not None} for own in numbered[start:stop]]
    assert rows.packed().to_pylist() == table(numbered).to_pylist()
    assert {*rows.packed().schema} == {*table(numbered).schema}


def test_what_was_whole_numbers_first_may_be_fractions_later() -> None:
    rows = Rows([{"round": 0, "gsi": None, "clip_level": 1}])
    rows.packed()
    rows.append({"round": 1, "gsi": 0.5, "clip_level": 0.25, "rejected_clients": ["c1"]})
    assert rows.packed().schema.field("clip_level").type == pa.float64()
    assert rows.packed()["clip_level"].to_pylist() == [1, 0.25]
    assert rows.packed()["gsi"].to_pylist() == [None, 0.5]
    assert rows[-1]["rejected_clients"] == ["c1"]


def test_whole_numbers_may_be_absent_in_the_first_rows() -> None:
    rows = Rows([{"round": 0, "probe/clients": None}])
    assert rows.packed().schema.field("probe/clients").type == pa.float64()
    rows.append({"round": 1, "probe/clients": 14})
    assert rows.packed().schema.field("probe/clients").type == pa.int64()
    assert rows.packed()["probe/clients"].to_pylist() == [None, 14]


def test_a_truth_value_may_be_absent_in_the_first_rows() -> None:
    rows = Rows([{"round": 0, "catastrophic_failure": None}])
    rows.packed()
    rows.append({"round": 1, "catastrophic_failure": True})
    assert rows.packed()["catastrophic_failure"].to_pylist() == [None, True]


def test_the_first_table_imports_nothing() -> None:
    """pyarrow's imports at its first table swallow a Ctrl-C."""
    code = (
        "import sys; from raysim.run_folder.rows import table; before = set(sys.modules); "
        "table([{'round': 0, 'loss': 1.5, 'rejected_clients': ['a']}]); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
