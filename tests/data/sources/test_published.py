"""Files of a publisher: found, fetched whole and checked, or not there at all."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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
