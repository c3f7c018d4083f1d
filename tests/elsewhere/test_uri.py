"""What names a folder elsewhere, and what must not stand in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raysim.errors import RemoteError
from raysim.storage.remote.remote import Remote
from raysim.storage.remote.uri import uri_of


@pytest.mark.parametrize("path", ["runs/x", "/runs/x", "./s3", "C", Path("runs") / "a:b"])
def test_a_path_is_no_uri(path: str | Path) -> None:
    assert uri_of(path) is None


@pytest.mark.parametrize("uri", ["s3://bucket/runs/x", "gs://bucket", "file:///mnt/x", "abfs://box@account/x"])
def test_a_uri_is_known_even_as_a_path(uri: str) -> None:
    assert uri_of(uri) == uri_of(Path(uri)) == uri


@pytest.mark.parametrize("uri", ["s3://me:hidden@bucket/x", "s3://bucket/x?secret_key=hidden", "gs://b/x?sig=hidden"])
def test_a_secret_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(RemoteError, match=r"must hold no credentials.*by the environment") as refused:
        uri_of(uri)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "written"),
    [
        ("file://host/share/x", "file:///host/share/x"),
        ("FILE://localhost/mnt/x", "file:///mnt/x"),
        ("file://./runs", "file:///./runs"),
        ("file://runs", "file:///runs"),
    ],
)
def test_a_machine_s_name_is_not_taken_for_a_folder(uri: str, written: str) -> None:
    with pytest.raises(RemoteError, match=rf"names the machine .*Write {re.escape(written)} with three slashes"):
        uri_of(uri)


@pytest.mark.parametrize(
    ("uri", "code"),
    [("s3://bucket/run#1", "%23"), ("file:///mnt/run#1", "%23"), ("file:///mnt/run?1", "%3F"), ("gs://b/x?y#1", "%23")],
)
def test_what_a_file_system_would_cut_off_is_refused(uri: str, code: str) -> None:
    with pytest.raises(RemoteError, match=rf"{re.escape(uri)}: in a URI a folder's . is written {code}"):
        uri_of(uri)
    assert uri_of("s3://bucket/run%231?region=eu") == "s3://bucket/run%231?region=eu"


@pytest.mark.parametrize("uri", ["file:///", "s3://", "s3:///", "file:/"])
def test_a_uri_of_no_folder_is_refused(uri: str) -> None:
    with pytest.raises(RemoteError, match=r"names no folder"):
        uri_of(uri)


@pytest.mark.parametrize("name", ["a b", "a%b", "é", "a\nb"])
def test_a_name_that_no_uri_holds_is_refused_with_its_codes(name: str) -> None:
    with pytest.raises(RemoteError, match=r"(?s)cannot be opened: .*Path\(\.\.\.\)\.as_uri\(\) writes them"):
        Remote(f"file:///mnt/{name}")
    assert (Path("/mnt") / name).as_uri() == Remote((Path("/mnt") / name).as_uri()).uri


def test_an_unknown_scheme_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        RemoteError, match=r"ftp://host/x cannot be opened: Unrecognized filesystem.*s3://bucket/folder"
    ):
        Remote("ftp://host/x")


def test_a_missing_bucket_is_named(bucket: str) -> None:
    remote = Remote(f"{bucket}-other/x")
    with pytest.raises(RemoteError, match=rf"{bucket}-other/x failed: NO_SUCH_BUCKET.*Make the bucket first"):
        remote.check()


def test_where_nothing_answers_the_error_says_what_was_tried_and_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(RemoteError, match=r"a in s3://bucket/x failed.*127\.0\.0\.1:9\).*set AWS_ENDPOINT_URL"):
        Remote("s3://bucket/x").find("a")


def test_a_file_is_read_as_it_was_put(shared: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 35_000  # More than a piece.
    (tmp_path / "file").write_bytes(content)
    remote = Remote(shared)
    assert remote.find("a/b") is None
    remote.put(tmp_path / "file", "a/b")
    assert b"".join(remote.below("a").read("b")) == content
    remote.delete("a/b")
    remote.delete("a/b")
    assert remote.find("a/b") is None
    with pytest.raises(RemoteError, match="reading a/b in "):
        list(remote.read("a/b"))
