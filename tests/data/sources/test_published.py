"""Files of a publisher: found, fetched whole and checked, or not there at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from raysim.data.downloads import download
from raysim.data.section import Data
from raysim.data.sources.packed import Packed
from raysim.data.sources.published import Published, SourceFile
from raysim.errors import DataError

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


def test_a_missing_file_says_what_to_download_and_where(tmp_path: Path) -> None:
    file = Published("f.gz", "http://publisher", others=("f", "f.bz2"))
    with pytest.raises(
        DataError, match=r"f\.gz is missing \(nor is f or f\.bz2\): it is published at http://publisher"
    ):
        file.find(tmp_path)
    (tmp_path / "f.bz2").write_bytes(CONTENT)
    assert file.find(tmp_path).path == tmp_path / "f.bz2"


def test_equal_content_has_an_equal_digest_and_other_content_another(tmp_path: Path) -> None:
    digests = []
    for name, content in (("a", CONTENT), ("b", CONTENT), ("c", CONTENT[::-1])):
        (tmp_path / name).write_bytes(content)
        digests.append(SourceFile(tmp_path / name).digest)
    assert digests[0] == digests[1] != digests[2]


def served(tmp_path: Path, kind: str) -> Path:
    """An archive with two wanted files in a folder, and another."""
    archive = tmp_path / "served" / f"all.{kind}"
    contents = {"gzip/a.gz": b"first", "gzip/b.gz": b"second", "readme.txt": b"words"}
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


OFFERED: list[tuple[dict[str, Any], str, set[str]]] = [
    ({"name": "mnist", "clients": 1}, "mnist", {"train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}),
    ({"name": "emnist"}, "emnist", {"fed_emnist_train.h5", "fed_emnist_test.h5"}),
    ({"name": "emnist_idx", "clients": 1, "split": "letters"}, "emnist", {"emnist-letters-train-images-idx3-ubyte.gz"}),
    ({"name": "shakespeare", "form": "tff"}, "shakespeare", {"shakespeare_train.h5"}),
    ({"name": "shakespeare", "form": "tiny"}, "tinyshakespeare", {"input.txt"}),
    ({"name": "stackoverflow"}, "stackoverflow", {"stackoverflow_held_out.h5", "stackoverflow.word_count"}),
]


@pytest.mark.parametrize(("section", "folder", "names"), OFFERED)
def test_what_is_fetched_is_what_the_source_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], folder: str, names: set[str]
) -> None:
    def named(file: Published | Packed, where: Path) -> Any:
        assert where == tmp_path / folder
        return where / file.name if isinstance(file, Published) else [where / name for name in file.names]

    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    for kind in (Published, Packed):
        monkeypatch.setattr(kind, "fetch", named)
    fetched = download(TypeAdapter(Data).validate_python(section))
    assert names <= {path.name for path in fetched}
