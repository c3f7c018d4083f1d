"""Landmarks: tables of images by photographer, and their photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Gld
from raysim.data.sources import gld
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError

pictures = pytest.importorskip("PIL.Image")

HEAD = "user_id,image_id,class\n"
COLUMNS = ("user_id", "image_id", "class")


def written(folder: Path, table: str, test: str = "image_id,class\nd,0\n", encoding: str = "utf-8") -> Path:
    """Both tables, and photographs a, b, c and d of one grey each."""
    (folder / "mini_gld_train_split.csv").write_text(table, encoding=encoding)
    (folder / "mini_gld_test.csv").write_text(test)
    (folder / "images").mkdir(exist_ok=True)
    for number, name in enumerate("abcd"):
        pictures.new("L", (20, 10), 40 * number).save(folder / "images" / f"{name}.jpg")
    return folder


def prepared(folder: Path) -> FederatedDataset:
    return prepare(Gld(root=str(folder), size=4), 0)


def rows(folder: Path) -> list[tuple[str, str, int]]:
    return list(gld.mapping(SourceFile(folder / "mini_gld_train_split.csv"), COLUMNS, 203))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_photographers_have_their_images_in_the_tables_order(tmp_path: Path, encoding: str, end: str) -> None:
    table = f"{HEAD}9,a,3\n10,b,202\n9,c,0\n".replace("\n", end)
    data = prepared(written(tmp_path, table, encoding=encoding))
    assert [data.train.id_of(position) for position in range(2)] == ["10", "9"]
    x, y = data.train.client(1)
    assert y.tolist() == [3, 0]
    np.testing.assert_allclose(x[:, 1, 2, 2], [0, 80], atol=2)
    assert data.split("test").id_of(0) == "test"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('1,a,3,"http', "unexpected end of data"),
        ('"1,a,3', "unexpected end of data"),
        ('"1"2,a,3', "',' expected after"),
    ],
)
def test_a_quote_that_is_left_open_takes_no_later_row(tmp_path: Path, line: str, problem: str) -> None:
    """A further column may have any content, so the rows in it would not be missed."""
    fields = line.count(",") + 1
    head = HEAD.replace("\n", ",url\n") if fields == 4 else HEAD
    written(tmp_path, f"{head}{line}\n" + "2,b,5,x\n" * 3)
    with pytest.raises(DataError, match=rf"mini_gld_train_split\.csv: expected a table in csv and UTF-8: .*{problem}"):
        rows(tmp_path)


def test_a_table_without_rows_is_no_missing_split(tmp_path: Path) -> None:
    for train, test, named in (
        (HEAD, "image_id,class\nd,0\n", "train_split"),
        (HEAD + "1,a,3\n", "image_id,class\n", "test"),
    ):
        with pytest.raises(DataError, match=rf"mini_gld_{named}\.csv: expected rows below the columns, found none"):
            prepared(written(tmp_path, train, test))


def test_an_error_shows_little_of_a_long_field(tmp_path: Path) -> None:
    for table in (HEAD + "1," + "a" * 9999 + ",x\n", "a" * 9999 + ",image_id,class\n"):
        written(tmp_path, table)
        with pytest.raises(DataError, match=r"mini_gld_train_split\.csv.*aaa") as refused:
            rows(tmp_path)
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("table", "test"), [("1,a,3\n1,a,3\n", "d,0\n"), ("1,a,3\n", "a,0\n")])
def test_an_image_that_is_two_examples_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, test: str
) -> None:
    prepared(written(tmp_path, HEAD + table, f"image_id,class\n{test}"))
    assert "the tables have 1 images more than once, the first is 'a': each row is an example" in caplog.text
