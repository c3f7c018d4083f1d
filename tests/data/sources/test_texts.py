"""AG News and 20 Newsgroups: from files to numbered words."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raysim.data.prepare import prepare
from raysim.data.section import AgNews, Newsgroups
from raysim.data.sources import ag_news, newsgroups
from raysim.data.sources.published import SourceFile
from raysim.data.tokens import words
from raysim.data.tokens.words import FIRST, PADDING, UNKNOWN, Words
from raysim.errors import DataError

Public = Callable[[str], Path]

ROWS = '"3","Oil, up","A ""barrel"" costs more"\n"1","Talks","go on"\n'


def test_words_are_runs_of_letters_and_single_marks() -> None:
    assert words.split("Don't sell\\10% of U.S. oil") == [
        "don't",
        "sell",
        "\\",
        "10",
        "%",
        "of",
        "u",
        ".",
        "s",
        ".",
        "oil",
    ]


def test_the_vocabulary_goes_by_frequency_then_alphabet() -> None:
    assert words.most_frequent(["b a", "a b c", "d c", "a"], 3) == {"a": FIRST, "b": FIRST + 1, "c": FIRST + 2}


def test_a_text_is_cut_or_padded_and_other_words_are_unknown() -> None:
    rows = words.encode(["a x", "a a a a", ""], {"a": FIRST}, length=3)
    assert rows.tolist() == [[FIRST, UNKNOWN, PADDING], [FIRST] * 3, [PADDING] * 3]


def news(folder: Path, train: str = ROWS, test: str = ROWS) -> Path:
    folder.mkdir()
    (folder / "train.csv").write_text(train, encoding="utf-8")
    (folder / "test.csv.gz").write_bytes(gzip.compress(test.encode(), mtime=0))
    return folder


def test_title_and_description_are_one_text_and_classes_begin_at_0(tmp_path: Path) -> None:
    texts, labels = ag_news.read(SourceFile(news(tmp_path / "ag") / "train.csv"))
    assert texts == ['Oil, up A "barrel" costs more', "Talks go on"]
    assert labels.tolist() == [2, 0]
    data = prepare(AgNews(clients=1, root=str(tmp_path / "ag"), tokens=Words(vocabulary=50, length=4)), seed=0)
    assert (data.x.shape, data.num_classes, data.train.sizes().tolist()) == ((4,), 4, [2])


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ('"1","a","b"\n"5","a","b"\n', "row 2: expected class 1-4, title, description, found 3 fields, beginning '5'"),
        ('"1","a"\n', "row 1: expected class 1-4, title, description, found 2 fields"),
        ('"1","a","b"\n"2","broken\n', "row 2, which begins in line 2: expected quoted fields"),
        ('"1","a","b\nc"\n"2","d","e"\n"3","f","g" h\n', "row 3, which begins in line 4: expected quoted fields"),
        ("", "expected at least one row, found none"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, train: str, problem: str) -> None:
    with pytest.raises(DataError, match=rf"train\.csv.*{problem}"):
        prepare(AgNews(clients=1, root=str(news(tmp_path / "ag", train))), seed=0)


def test_a_missing_file_is_named_with_its_address(tmp_path: Path) -> None:
    (news(tmp_path / "ag") / "train.csv").unlink()
    with pytest.raises(DataError, match=r"train\.csv is missing .*published at https://raw\.githubusercontent\.com"):
        prepare(AgNews(clients=1, root=str(tmp_path / "ag")), seed=0)


def test_the_published_test_articles(public: Public) -> None:
    texts, labels = ag_news.read(SourceFile(public("ag_news_csv") / "test.csv.gz"))
    assert np.bincount(labels).tolist() == [1900] * 4
    assert texts[0].startswith("Fears for T N pension after talks Unions representing workers")


def test_the_articles_of_noisyag_have_their_original_classes(public: Public) -> None:
    _, labels = ag_news.read_noisyag(SourceFile(public("agnews-noisyag-10k") / "samples10000valMed.csv.gz"))
    assert np.bincount(labels).tolist() == [2514, 2504, 2519, 2463]


GROUPS = [f"group.{number:02}" for number in range(20)]
MESSAGE = "From: a@b\nSubject: cars\n\nJohn wrote:\n> old words\nnew words\n"


def archive(folder: Path, groups: dict[str, list[str]], message: str = MESSAGE) -> Path:
    folder.mkdir()
    with tarfile.open(folder / "20news-bydate.tar.gz", "w:gz") as tar:
        for side, names in groups.items():
            for name in names:
                member = tarfile.TarInfo(f"20news-bydate-{side}/{name}/1")
                member.size = len(message)
                tar.addfile(member, io.BytesIO(message.encode("latin-1")))
    return folder / "20news-bydate.tar.gz"


def test_groups_are_classes_in_order_of_the_alphabet(tmp_path: Path) -> None:
    file = archive(tmp_path / "news", {"train": GROUPS[::-1], "test": GROUPS})
    texts = newsgroups.read(SourceFile(file))
    assert texts.train_y.tolist() == list(range(20))[::-1]
    assert texts.test_y.tolist() == list(range(20))
    assert texts.train[0] == MESSAGE
    data = prepare(Newsgroups(clients=5, root=str(file.parent)), seed=0)
    assert data.train.sizes().tolist() == [4] * 5


def test_headers_and_quotes_can_be_left_out(tmp_path: Path) -> None:
    file = SourceFile(archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS}))
    assert newsgroups.read(file, headers=False).test[0] == "John wrote:\n> old words\nnew words\n"
    assert newsgroups.read(file, headers=False, quotes=False).test[0] == "new words"


def test_headers_of_messages_packed_anew_with_other_line_ends_can_be_left_out(tmp_path: Path) -> None:
    message = MESSAGE.replace("\n", "\r\n")
    file = SourceFile(archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS}, message))
    assert newsgroups.read(file, headers=False).test[0] == "John wrote:\r\n> old words\r\nnew words\r\n"
    assert newsgroups.read(file, headers=False, quotes=False).test[0] == "new words"


def test_a_group_that_is_not_there_or_half_an_archive(tmp_path: Path) -> None:
    file = archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS[:19]})
    with pytest.raises(DataError, match=r"20news-bydate\.tar\.gz: expected the same 20 groups .* found 20 and 19"):
        newsgroups.read(SourceFile(file))
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(DataError, match=r"20news-bydate\.tar\.gz: expected a whole tar\.gz archive"):
        newsgroups.read(SourceFile(file))


def test_a_message_that_is_in_the_archive_twice_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS})
    content = gzip.decompress(path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as whole:
        first = next(member for member in whole if member.isfile())
        block = content[first.offset : first.offset_data + 512]
    path.write_bytes(gzip.compress(block + content))
    with pytest.raises(DataError, match="is in it twice"):
        newsgroups.read(SourceFile(path))


def test_a_message_that_is_a_link_is_no_message_less(tmp_path: Path) -> None:
    path = archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS})
    link = tarfile.TarInfo("20news-bydate-train/a/1")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path.write_bytes(gzip.compress(link.tobuf() + gzip.decompress(path.read_bytes())))
    with pytest.raises(DataError, match=r"20news-bydate-train/a/1 must be a file, but is a link"):
        newsgroups.read(SourceFile(path))


def test_many_messages_do_not_unpack_to_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "news", {"train": GROUPS, "test": GROUPS})
    with tarfile.open(path) as whole:
        total = sum(member.size for member in whole)
    monkeypatch.setattr("raysim.data.sources.packed._MOST_BYTES", total)
    newsgroups.read(SourceFile(path))
    monkeypatch.setattr("raysim.data.sources.packed._MOST_BYTES", total - 1)
    with pytest.raises(DataError, match=r"expected at most [\d,]+ bytes of files, found more"):
        newsgroups.read(SourceFile(path))


def test_the_published_messages(public: Public) -> None:
    texts = newsgroups.read(SourceFile(public("20news-bydate") / "20news-bydate.tar.gz"))
    assert (len(texts.train), len(texts.test)) == (11_314, 7_532)
    # The totals that scikit-learn's examples print for these files.
    sizes = [sum(len(text.encode()) for text in side) / 1e6 for side in (texts.train, texts.test)]
    assert [round(size, 3) for size in sizes] == [22.055, 13.801]
