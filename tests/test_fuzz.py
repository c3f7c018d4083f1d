"""Whatever is done to a file, its reader reads it or refuses it by name; scripts/fuzz makes thousands of such tries."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.data.checksums import of_file
from raysim.data.manifest import read_manifest
from raysim.errors import RaysimError
from raysim.storage import sealed, sealed_parquet
from tests.support.fuzzed import GOOD, Attempt, Place, kinds_of_replacement, tried
from tests.support.mutations import CHANGES
from tests.support.readers import READERS, REPORTED, Reader
from tuning import trials_file

SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", params=list(READERS))
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reader, Place]:
    made = READERS[request.param]
    return request.param, made, Place(tmp_path_factory.mktemp("fuzz") / "place", made.write)


def test_good_files_are_read(reader: tuple[str, Reader, Place]) -> None:
    name, made, place = reader
    assert tried(place, made.read, Attempt(name, ())).kind == "read"


@settings(max_examples=8)
@given(data=st.data())
def test_changed_files_are_read_or_refused_by_name(reader: tuple[str, Reader, Place], data: st.DataObject) -> None:
    name, made, place = reader
    kinds = st.sampled_from([*CHANGES, *kinds_of_replacement(name)])
    changes = data.draw(st.lists(st.tuples(SEEDS, kinds, SEEDS), min_size=1, max_size=3))
    outcome = tried(place, made.read, Attempt(name, tuple(changes), data.draw(st.booleans())))
    assert outcome.kind in GOOD, outcome.text


@pytest.mark.parametrize("change", ["cut", "odd_json", "pipe"])
def test_a_report_of_changed_folders_stays_in_its_folder(tmp_path: Path, change: str) -> None:
    made = REPORTED["report of trials"]
    place = Place(tmp_path / "place", made.write)
    outcome = tried(place, made.read, Attempt("report of trials", ((1, change, 7),)))
    assert outcome.kind in GOOD, outcome.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_study_s_trials_have_values_that_can_be_ranked(tmp_path: Path, value: float) -> None:
    made = READERS["trials of a study"]
    made.write(tmp_path)
    (file,) = tmp_path.iterdir()
    found = pq.read_table(file)
    kept = found.schema.metadata[trials_file.KEY.encode()].decode()
    found = found.set_column(found.column_names.index("value"), "value", pa.array([value] * 2))
    sealed_parquet.write(found, file, about={trials_file.KEY: kept})
    with pytest.raises(RaysimError, match=f"trial -?[0-9]+ has the value {value}"):
        made.read(tmp_path)


def test_what_a_reader_lets_through_is_seen(tmp_path: Path) -> None:
    """The tries can fail: a reader that raises, hangs, names no file, or writes outside."""

    def written(path: Path) -> None:
        (path / "file").write_text("good")

    def raises(path: Path) -> None:
        raise KeyError("users")

    def writes(path: Path) -> None:
        (path.parent / "outside").write_text("pwned")

    place, change = Place(tmp_path / "place", written), Attempt("any", ((0, "cut", 1),))
    assert tried(place, raises, change).kind == "traceback"
    assert tried(place, writes, change).kind == "outside"
    assert tried(place, lambda path: None, change).kind == "read"
    assert (place.folder / "file").read_text() == "good"
    assert not (place.here / "outside").exists()


@pytest.mark.parametrize("name", ["report", "mirror", "cache"])
def test_what_is_sealed_anew_has_whole_checksums(tmp_path: Path, name: str) -> None:
    """The tries reach what lies behind the checksums."""
    place = Place(tmp_path / "place", READERS[name].write)
    files = [file for file in place.folder.rglob("*") if file.is_file()]
    records = [file for file in files if sealed.MARK.encode() in file.read_bytes()]
    assert records
    for file in records:
        file.write_bytes(file.read_bytes() + b" ")
        assert damaged(file)
    for rows in place.folder.rglob("train.arrow"):
        rows.write_bytes(rows.read_bytes() + bytes(8))
    place.resealed()
    assert not [file for file in records if damaged(file)]
    for described in place.folder.rglob("dataset.json"):
        assert read_manifest(described.parent).splits["train"].data_crc32 == of_file(described.parent / "train.arrow")


def damaged(file: Path) -> bool:
    return sealed.flaw(file.read_bytes(), last=file.suffix == ".parquet") is not None
