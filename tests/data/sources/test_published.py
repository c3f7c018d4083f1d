"""Files of a publisher: found, fetched whole and checked, or not there at all."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import logging
import os
import random
import shutil
import socket
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from raysim.data.downloads import offered
from raysim.data.prepare import prepare
from raysim.data.section import Data
from raysim.data.sources import published
from raysim.data.sources.packed import Packed, members, unpacked
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.shakespeare import Shakespeare
from raysim.errors import DataError, DiskError, MissingFileError
from tests.support import tiny

ADAPTER: TypeAdapter[Any] = TypeAdapter(Data)
CONTENT = b"twelve bytes"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A publisher on this machine."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "file.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_fetched_checked_and_not_fetched_again(tmp_path: Path, address: str, kind: str) -> None:
    file = Published("f.bin", f"{address}/file.bin", f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}")
    assert file.fetch(tmp_path / "new") == tmp_path / "new" / "f.bin"
    assert file.find(tmp_path / "new").path.read_bytes() == CONTENT
    assert file.fetch(tmp_path / "new") is None


def test_another_content_leaves_nothing_behind(tmp_path: Path, address: str) -> None:
    file = Published("f.bin", f"{address}/file.bin", "md5:" + "0" * 32)
    found = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(DataError, match=rf"f\.bin from http.*: expected md5 {'0' * 32}, found {found}"):
        file.fetch(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_an_address_that_does_not_answer_is_named(tmp_path: Path, address: str) -> None:
    for wrong in (f"{address}/nothing.bin", (tmp_path / "nothing").as_uri()):
        with pytest.raises(DataError, match=f"{wrong} cannot be fetched"):
            Published("f.bin", wrong).fetch(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


ANSWERS = {
    "cut within a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n100\r\nabc",
    "a chunk of no length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    "packed on the way": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "a file on another way": b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:1/file.bin\r\n\r\n",
    "a part": b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/50\r\n\r\nhello",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nhello",
    "a length that Python alone takes": b"HTTP/1.1 200 OK\r\nContent-Length: 0_5\r\n\r\nhello",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\nhelloyou!",
    "packed in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + bytes(70_000) + b"\r\n\r\nhello",
    "nothing": b"",
}


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """A function that returns the address of a server that sends these bytes, and ends the connection."""
    with ExitStack() as held:

        def server(sent: bytes) -> str:
            listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                with listening.accept()[0] as connection:
                    connection.recv(1 << 16)
                    connection.sendall(sent)

            threading.Thread(target=answer, daemon=True).start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}/file.bin"

        yield server


@pytest.mark.parametrize("sent", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_broken_answer_is_an_error_that_names_the_address(
    tmp_path: Path, answering: Callable[[bytes], str], sent: bytes
) -> None:
    address = answering(sent)
    with pytest.raises(DataError, match=address):
        Published("f.bin", address).fetch(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


WHOLE = "HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("sent", "known", "is_warned_of"),
    [
        (f"{WHOLE}\r\nhello", {}, True),
        (f"{WHOLE}\r\nhello", {"size_bytes": 5}, False),
        (f"{WHOLE}\r\nhello", {"checksum": f"md5:{hashlib.md5(b'hello').hexdigest()}"}, False),
        (f"{WHOLE}Content-Length: 5\r\n\r\nhello", {}, False),
        (f"{WHOLE}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", {}, False),
        (f"{WHOLE}Content-Encoding: gzip\r\n\r\nhello", {"size_bytes": 5}, False),
    ],
)
def test_an_answer_of_which_nothing_tells_that_it_is_whole_is_warned_of(
    tmp_path: Path,
    answering: Callable[[bytes], str],
    caplog: pytest.LogCaptureFixture,
    sent: str,
    known: dict[str, Any],
    is_warned_of: bool,
) -> None:
    address = answering(sent.encode())
    fetched = Published("f.bin", address, **known).fetch(tmp_path)
    assert fetched is not None
    assert fetched.read_bytes() == b"hello"
    assert [f"{address} may have been cut short: it has 5 bytes" in each for each in caplog.messages] == [
        True
    ] * is_warned_of


def test_an_answer_is_not_followed_to_another_protocol(
    tmp_path: Path, answering: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request.FTPHandler, "ftp_open", lambda *_: pytest.fail("it was followed"))
    address = answering(ANSWERS["a file on another way"])
    with pytest.raises(DataError, match=r"expected a whole answer in HTTP: it leads to ftp://127\.0\.0\.1:1/file\.bin"):
        Published("f.bin", address).fetch(tmp_path)


@pytest.mark.parametrize("fetched", [Published("f.bin", ""), Packed("", ("f.bin",))], ids=["a file", "an archive"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, fetched: Published | Packed) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=f"{tmp_path / 'file' / 'data'} could not be written: Not a directory"):
        fetched.fetch(tmp_path / "file" / "data")


def test_a_full_disk_is_not_said_of_the_address(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Published, "check", full)
    with pytest.raises(DiskError, match=r"f\.bin could not be written: No space left"):
        Published("f.bin", f"{address}/file.bin").fetch(tmp_path / "new")


def test_a_missing_file_says_what_to_download_and_where(tmp_path: Path) -> None:
    file = Published("f.gz", "http://publisher", others=("f", "f.bz2"))
    with pytest.raises(
        DataError, match=r"f\.gz is missing \(nor is f or f\.bz2\): it is published at http://publisher"
    ):
        file.find(tmp_path)
    (tmp_path / "f.bz2").write_bytes(CONTENT)
    assert file.find(tmp_path).path == tmp_path / "f.bz2"


MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
UNLIKE: list[tuple[Published, str, bytes, str]] = [
    (Published("f", "", size_bytes=13), "f", CONTENT, "expected 13 bytes, found 12"),
    (Published("f", "", MD5), "f", CONTENT[:-1], f"expected md5 {MD5[4:]}, found "),
    (Published("f", "", MD5, size_bytes=12), "f", CONTENT[::-1], f"expected md5 {MD5[4:]}, found "),
    (Published("f", "", MD5, ("f.gz",), 12), "f.gz", gzip.compress(CONTENT[:3]), "expected 12 bytes, found 3"),
]
ALIKE: list[tuple[Published, str, bytes]] = [
    (Published("f", "", MD5, size_bytes=12), "f", CONTENT),
    (Published("f", "", MD5, ("f.gz",), 12), "f.gz", gzip.compress(CONTENT)),
    (Published("f.gz", "", MD5, ("f",), 12), "f", b"unpacked"),
    (Published("f", ""), "f", b"nothing is known of it"),
]


@pytest.mark.parametrize(("published", "name", "content", "problem"), UNLIKE)
def test_another_content_than_the_published_one_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, published: Published, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert published.find(tmp_path).path == tmp_path / name
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path / name} is not the published file but a part of it")
    assert problem in record.getMessage()


@pytest.mark.parametrize(("published", "name", "content"), ALIKE)
def test_the_published_content_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, published: Published, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert published.find(tmp_path).path == tmp_path / name
    assert not caplog.records


@pytest.mark.parametrize(
    ("section", "file"),
    [
        ({"name": "ag_news", "clients": 1}, "train.csv"),
        ({"name": "ag_news", "clients": 1, "train": "noisyag"}, "samples10000valMed.csv"),
        ({"name": "shakespeare", "form": "tiny"}, "input.txt"),
        ({"name": "cifar10", "clients": 1}, "data_batch_2.bin"),
        ({"name": "mnist", "clients": 1}, "t10k-labels-idx1-ubyte.gz"),
    ],
)
def test_a_source_compares_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, section: dict[str, Any], file: str
) -> None:
    # Everything that one of them looks for, with other content: whether it can be read is not the question.
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    idx = [f"{side}-{kind}-ubyte.gz" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    texts = ["train.csv", "test.csv", "samples10000valMed.csv", "input.txt"]
    for name in (*batches, "test_batch.bin", *idx, *texts):
        (tmp_path / name).write_bytes(b"")
    roots = {"root": str(tmp_path), **({"noisyag_root": str(tmp_path)} if section["name"] == "ag_news" else {})}
    with pytest.raises((DataError, ValueError)):
        prepare(ADAPTER.validate_python(section | roots), seed=0)
    assert any(f"{tmp_path / file} is not the published file" in record.getMessage() for record in caplog.records)


def test_equal_content_has_an_equal_digest_and_other_content_another(tmp_path: Path) -> None:
    digests = []
    for name, content in (("a", CONTENT), ("b", CONTENT), ("c", CONTENT[::-1])):
        (tmp_path / name).write_bytes(content)
        digests.append(SourceFile(tmp_path / name).digest)
    assert digests[0] == digests[1] != digests[2]


TWO_AND_ANOTHER = {"gzip/a.gz": b"first", "gzip/b.gz": b"second", "readme.txt": b"words"}


def served(tmp_path: Path, kind: str, contents: Mapping[str, bytes] = TWO_AND_ANOTHER) -> Path:
    """An archive of these files, where `address` serves it."""
    archive = tmp_path / "served" / f"all.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for name, content in contents.items():
                opened.writestr(name, content)
    else:
        with tarfile.open(archive, "w:bz2") as tar:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return archive


@pytest.mark.parametrize("kind", ["zip", "tar.bz2"])
def test_what_is_wanted_of_an_archive_is_unpacked(tmp_path: Path, address: str, kind: str) -> None:
    archive = served(tmp_path, kind)
    checksum = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    packed, new = Packed(f"{address}/{archive.name}", ("a.gz", "b.gz"), checksum), tmp_path / "new"
    assert packed.fetch(new) == [new / "a.gz", new / "b.gz"]
    assert (new / "b.gz").read_bytes() == b"second"
    assert sorted(path.name for path in new.iterdir()) == ["a.gz", "b.gz"]
    assert packed.fetch(new) == []


@pytest.mark.parametrize("kind", ["zip", "tar.bz2"])
def test_a_damaged_or_another_archive_leaves_nothing_behind(tmp_path: Path, address: str, kind: str) -> None:
    archive, new = served(tmp_path, kind), tmp_path / "new"
    with pytest.raises(DataError, match=r"expected the files c\.gz in it"):
        Packed(f"{address}/{archive.name}", ("a.gz", "c.gz")).fetch(new)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DataError, match=rf"all\.{kind}: expected a whole archive"):
        Packed(f"{address}/{archive.name}", ("a.gz", "b.gz")).fetch(new)
    assert list(new.iterdir()) == []


def test_what_a_killed_process_left_of_an_archive_is_removed(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, new = served(tmp_path, "zip"), tmp_path / "new"
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(DataError, match=r"expected the files c\.gz in it"):
            Packed(f"{address}/{archive.name}", ("a.gz", "c.gz")).fetch(new)
    assert list(new.iterdir())
    Packed(f"{address}/{archive.name}", ("a.gz", "b.gz")).fetch(new)
    assert sorted(path.name for path in new.iterdir()) == ["a.gz", "b.gz"]


@pytest.mark.parametrize(("kind", "how"), [("gz", {}), ("bz2", {"compresslevel": 1}), ("xz", {})])
def test_a_bit_that_flips_in_an_archive_changes_no_file(
    tmp_path: Path, address: str, kind: str, how: dict[str, Any]
) -> None:
    """What packs it has its checksums behind the last file, or behind the last block."""
    wanted = {"a": random.Random(0).randbytes(150_000), "b": b"second" * 50}
    packed, archive = io.BytesIO(), tmp_path / "served" / f"all.tar.{kind}"
    with tarfile.open(fileobj=packed, mode=f"w:{kind}", **how) as tar:  # type: ignore[call-overload]
        for name, content in wanted.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    bits = 8 * len(packed.getvalue())
    for bit in range(bits // 2, bits, bits // 80 + 1):
        damaged, new = bytearray(packed.getvalue()), tmp_path / str(bit)
        damaged[bit // 8] ^= 1 << bit % 8
        archive.write_bytes(damaged)
        with suppress(DataError):
            Packed(f"{address}/{archive.name}", tuple(wanted)).fetch(new)
            assert {path.name: path.read_bytes() for path in new.iterdir()} == wanted


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, 1 << 70])
def test_an_archive_whose_header_claims_what_no_memory_has_is_damaged(tmp_path: Path, address: str, size: int) -> None:
    header = tarfile.TarInfo("a")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    packed = gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2 * tarfile.BLOCKSIZE))
    archive = tmp_path / "served" / "all.tar.gz"
    archive.write_bytes(packed)
    with pytest.raises(DataError, match=r"all\.tar\.gz: expected a whole archive"):
        Packed(f"{address}/{archive.name}", ("a",)).fetch(tmp_path / "new")
    with pytest.raises(DataError, match=r"all\.tar\.gz: expected a whole tar\.gz archive"):
        list(members(archive, lambda name: True))


def test_a_file_that_is_there_is_not_replaced_by_an_archives(tmp_path: Path, address: str) -> None:
    archive, new = served(tmp_path, "zip"), tmp_path / "new"
    new.mkdir()
    (new / "a.gz").write_bytes(b"of the user")
    packed = Packed(f"{address}/{archive.name}", ("a.gz", "b.gz"))
    said = rf"{new / 'a.gz'} differs from the file of that name in .*, of which b\.gz would"
    with pytest.raises(DataError, match=said):
        packed.fetch(new)
    assert [path.read_bytes() for path in new.iterdir()] == [b"of the user"]
    (new / "a.gz").write_bytes(b"first")
    assert packed.fetch(new) == [new / "b.gz"]


def test_a_folder_in_an_archive_is_no_file(tmp_path: Path, address: str) -> None:
    archive = served(tmp_path, "zip", {"a.gz/": b"", "b.gz": b"second"})
    with pytest.raises(DataError, match=r"expected the files a\.gz in it, found none"):
        Packed(f"{address}/{archive.name}", ("a.gz", "b.gz")).fetch(tmp_path / "new")


@pytest.mark.parametrize("kind", ["zip", "tar.bz2"])
def test_of_files_with_one_name_none_is_taken_in_silence(tmp_path: Path, address: str, kind: str) -> None:
    archive = served(tmp_path, kind, {"one/a.gz": b"first", "other/a.gz": b"second"})
    with pytest.raises(DataError, match=rf"all\.{kind}: expected one a\.gz in it, found several"):
        Packed(f"{address}/{archive.name}", ("a.gz",)).fetch(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


NEWS = {"name": "ag_news", "clients": 1}
OFFERED: list[tuple[dict[str, Any], dict[str, set[str]]]] = [
    (
        {"name": "mnist", "clients": 1},
        {"mnist": {f"{side}-{kind}-ubyte.gz" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")}},
    ),
    ({"name": "emnist"}, {"emnist": {"fed_emnist_train.h5", "fed_emnist_test.h5"}}),
    ({"name": "fed_cifar100"}, {"fed_cifar100": {"fed_cifar100_train.h5", "fed_cifar100_test.h5"}}),
    ({"name": "shakespeare"}, {"shakespeare": {"t8.shakespeare.txt"}}),
    ({"name": "shakespeare", "form": "tff"}, {"shakespeare": {"shakespeare_train.h5", "shakespeare_test.h5"}}),
    ({"name": "shakespeare", "form": "tiny"}, {"tinyshakespeare": {"input.txt"}}),
    (
        {"name": "stackoverflow"},
        {
            "stackoverflow": {
                "stackoverflow_train.h5",
                "stackoverflow_held_out.h5",
                "stackoverflow_test.h5",
                "stackoverflow.word_count",
            }
        },
    ),
    (NEWS, {"ag_news_csv": {"train.csv", "test.csv"}}),
    (NEWS | {"train": "noisyag"}, {"ag_news_csv": {"test.csv"}, "agnews-noisyag-10k": {"samples10000valMed.csv"}}),
    ({"name": "gld"}, {"gld": {"mini_gld_train_split.csv", "mini_gld_test.csv"}}),
    ({"name": "gld", "set": "gld160k"}, {}),
    ({"name": "shakespeare", "form": "leaf"}, {}),
    ({"name": "emnist", "form": "leaf"}, {}),
    ({"name": "cifar10", "clients": 1}, {"cifar10": {"cifar-10-binary.tar.gz"}}),
    ({"name": "cifar10", "clients": 1, "train_files": ["data_batch_1.bin"]}, {}),
    ({"name": "leaf"}, {}),
]


def names_of(file: Published | Packed) -> tuple[str, ...]:
    return (file.name,) if isinstance(file, Published) else file.names


@pytest.mark.parametrize(("section", "files"), OFFERED)
def test_what_is_offered_is_what_the_source_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], files: dict[str, set[str]]
) -> None:
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    parsed = ADAPTER.validate_python(section)
    assert {offer.folder: {name for file in offer.files for name in names_of(file)} for offer in offered(parsed)} == {
        tmp_path / folder: names for folder, names in files.items()
    }


@pytest.mark.parametrize(("section", "files"), OFFERED)
def test_a_download_is_advised_where_there_is_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], files: dict[str, set[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "above"))
    for _ in ("no folder", "an empty one"):
        with pytest.raises(MissingFileError) as raised:
            prepare(ADAPTER.validate_python(section), seed=0)
        assert ("--download" in str(raised.value)) == bool(files)
        for folder in (*files, section["name"]):
            (tmp_path / "above" / folder).mkdir(parents=True, exist_ok=True)


def test_words_alone_are_fetched_where_the_sentences_are_there_in_another_form(tmp_path: Path) -> None:
    (tmp_path / "stackoverflow.sqlite").touch()
    (offer,) = offered(ADAPTER.validate_python({"name": "stackoverflow", "root": str(tmp_path)}))
    assert [names_of(file) for file in offer.files] == [("stackoverflow.word_count",)]


MISSING: list[tuple[dict[str, Any], str]] = [
    ({"name": "emnist"}, r"put fed_emnist_train\.h5 and fed_emnist_test\.h5 there \(published at https://storage"),
    ({"name": "shakespeare"}, r"put pg100\.txt there \(published at https://www\.gutenberg\.org"),
    ({"name": "leaf"}, r"put data/train/\*\.json and data/test/\*\.json there \(published at https://github"),
    (
        {"name": "mnist", "clients": 1},
        r"and t10k-labels-idx1-ubyte\.gz there \(published at https://ossci-datasets\.s3\.amazonaws\.com/mnist\)",
    ),
]


@pytest.mark.parametrize(("section", "problem"), MISSING)
def test_a_missing_folder_says_what_belongs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], problem: str
) -> None:
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    with pytest.raises(MissingFileError, match=rf"there is no folder .*{problem}.*data\.root, or the folder above it"):
        prepare(ADAPTER.validate_python(section), seed=0)


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingFileError, match=r"file is a file: name the folder that holds .*t10k.* \(data\.root\)"):
        prepare(ADAPTER.validate_python({"name": "mnist", "clients": 1, "root": str(tmp_path / "file")}), seed=0)


def test_the_key_that_helps_is_named(tmp_path: Path) -> None:
    section = NEWS | {"train": "noisyag", "root": str(tmp_path), "noisyag_root": str(tmp_path / "none")}
    (tmp_path / "test.csv").touch()
    with pytest.raises(MissingFileError, match=r"put samples10000valMed\.csv there .* with data\.noisyag_root, or let"):
        prepare(ADAPTER.validate_python(section), seed=0)
    section["noisyag_root"] = "s3://bucket/folder"
    with pytest.raises(DataError, match=r"data\.noisyag_root must be a folder of this machine"):
        prepare(ADAPTER.validate_python(section), seed=0)


def test_plays_that_stand_there_twice_are_named(tmp_path: Path) -> None:
    tiny.write(tmp_path, "shakespeare")
    works = tmp_path / "shakespeare" / "pg100.txt"
    plays, end, last = works.read_text(encoding="utf-8").partition("*** END")
    works.write_text(plays + plays + end + last, encoding="utf-8")
    with pytest.raises(
        DataError, match=r"pg100\.txt: expected roles of different names, found 2 that are called 'HAML"
    ):
        prepare(Shakespeare(root=str(works.parent)), seed=0)


def test_a_small_file_does_not_unpack_to_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.data.sources.packed._MOST_BYTES", 1 << 16)
    assert unpacked(gzip.compress(bytes(1 << 16))) == bytes(1 << 16)
    with pytest.raises(ValueError, match="it unpacks to more than 65,536 bytes"):
        unpacked(gzip.compress(bytes(1 << 26)))


def test_a_packed_file_is_unpacked_no_further_than_to_its_published_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A megabyte may unpack to a gigabyte."""

    def without_end(path: Path, packed: bool) -> Iterator[bytes]:
        yield from [bytes(6), bytes(6)]
        raise AssertionError(f"{path} is unpacked on and on")

    monkeypatch.setattr(published, "_pieces", without_end)
    (tmp_path / "a.csv.gz").touch()
    assert Published("a.csv", "", others=("a.csv.gz",), size_bytes=10).here(tmp_path) is not None
    assert "expected 10 bytes, found more" in caplog.text
