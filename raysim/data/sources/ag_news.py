"""Reads AG News: 120,000 headlines with their first lines for training and 7,600 for test, four classes."""

from __future__ import annotations

import csv
import io
from typing import Literal

import numpy as np
from pydantic import Field

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.partitioned import Partitioned
from raysim.data.source import Source
from raysim.data.sources.packed import unpacked
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.data.tokens import texts
from raysim.data.tokens.texts import Texts, Tokens
from raysim.data.tokens.words import Words
from raysim.errors import DataError

_FROM = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
_CLASSES = 4

TRAIN = Published(
    "train.csv", f"{_FROM}/train.csv", "md5:b1a00f826fdfbd249f79597b59e1dc12", ("train.csv.gz",), 29_470_338
)
TEST = Published("test.csv", f"{_FROM}/test.csv", "md5:d52ea96a97a2d943681189a97654912d", ("test.csv.gz",), 1_857_427)
NOISY = Published(
    "samples10000valMed.csv",
    "https://raw.githubusercontent.com/hhf-hd/NoisyAG-News/ec6fcb77d51960a63936e985ea5a98aa79f7d08e/dataset/"
    "samples10000valMed.csv",
    others=("samples10000valMed.csv.gz",),
    size_bytes=2_499_311,
)


class AgNews(Partitioned, Section):
    """World, sports, business, science and technology (Zhang, Zhao and LeCun 2015, version 3).

    A text is the title, a blank, and the description.
    """

    name: Literal["ag_news"] = "ag_news"
    root: FilePath | None = Field(
        None,
        description=(
            "Folder with train.csv and test.csv, as published or with .gz. Absent: $RAYSIM_DATA/ag_news_csv or "
            "data/ag_news_csv."
        ),
    )
    train: Literal["published", "noisyag"] = Field(
        "published",
        description=(
            '"published": train.csv. "noisyag": 10,000 training articles with their original classes, from '
            "NoisyAG-News. A departure: results with them are not results on AG News."
        ),
    )
    noisyag_root: FilePath | None = Field(
        None,
        description=(
            "Folder with samples10000valMed.csv. Absent: $RAYSIM_DATA/agnews-noisyag-10k or data/agnews-noisyag-10k."
        ),
    )
    tokens: Tokens = Field(Words(), description="How texts become numbers.")


def open_source(section: AgNews) -> Source:
    """Find the files; DataError naming the one that is missing."""
    if section.train == "published":
        folder = locate(section.root, "ag_news_csv", (TRAIN, TEST))
        train = TRAIN.find(folder)
    else:
        folder = locate(section.root, "ag_news_csv", (TEST,))
        train = NOISY.find(locate(section.noisyag_root, "agnews-noisyag-10k", (NOISY,), "noisyag_root"))
    test = TEST.find(folder)

    def load() -> Texts:
        train_texts, train_y = read(train) if section.train == "published" else read_noisyag(train)
        test_texts, test_y = read(test)
        return Texts(_CLASSES, train_texts, train_y, test_texts, test_y)

    return texts.source("ag_news", [train.digest, test.digest], load, section.tokens)


def read(file: SourceFile) -> tuple[list[str], Int64s]:
    """Return texts and labels of rows `"class 1-4","title","description"`.

    Raises:
        DataError: a row has another form; names its number.
    """
    found, labels = [], []
    for number, row in _rows(file):
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise DataError(f"{file.path}, row {number}: expected class 1-4, title, description, found {_short(row)}")
        labels.append(int(row[0]) - 1)
        found.append(f"{row[1]} {row[2]}")
    return _checked(file, found, labels)


def read_noisyag(file: SourceFile) -> tuple[list[str], Int64s]:
    """Return texts and original classes of rows `label,gt,text,group` below a header; see `read`."""
    found, labels = [], []
    for number, row in _rows(file):
        if number == 1 and row == ["label", "gt", "text", "group"]:
            continue
        if len(row) != 4 or row[1] not in ("0", "1", "2", "3"):
            raise DataError(f"{file.path}, row {number}: expected label, gt 0-3, text, group, found {_short(row)}")
        labels.append(int(row[1]))
        found.append(row[2])
    return _checked(file, found, labels)


def _checked(file: SourceFile, found: list[str], labels: list[int]) -> tuple[list[str], Int64s]:
    if not found:
        raise DataError(f"{file.path}: expected at least one row, found none")
    return found, np.array(labels, np.int64)


def _rows(file: SourceFile) -> list[tuple[int, list[str]]]:
    with file.reading("a whole csv file in UTF-8"):
        content = file.path.read_bytes()
        content = unpacked(content) if file.path.suffix == ".gz" else content
        text = content.decode("utf-8")
    rows: list[tuple[int, list[str]]] = []
    reader, first_line = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    try:
        for row in reader:
            rows.append((len(rows) + 1, row))
            first_line = reader.line_num + 1
    except csv.Error as error:
        # A quote that is not closed includes all later lines, so the row's first line helps more than its last.
        raise DataError(
            f"{file.path}, row {len(rows) + 1}, which begins in line {first_line}: expected quoted fields: {error}"
        ) from error
    return rows


def _short(row: list[str]) -> str:
    return f"{len(row)} fields, beginning {row[0][:40]!r}" if row else "an empty row"
