"""Folders by strangers: no name and no link in them leads raysim to a file outside."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import raysim
from raysim.cli.app import main
from raysim.data.sources import gld, table
from raysim.errors import DataError, RemoteError, RunFolderError
from raysim.report.build import build, default_folder
from raysim.report.page import GENERATOR
from raysim.run_folder.writer import PARTS, RunFolder
from raysim.storage import lock
from raysim.storage.cache import checksum
from raysim.storage.remote import removed
from raysim.storage.remote.folder import local_copy, named
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote
from tests.support import sealed_json
from tests.support.run_folders import accuracies, experiment, write
from tests.support.tiny_study import EXPERIMENT
from tuning.errors import StudyError
from tuning.folder import clear_unfinished

NAMES = [
    "../../../../PWNED.txt",
    "../mirror.json",
    "/PWNED.txt",
    "a/../../PWNED.txt",
    ".lock",
    "clients/.hidden",
    "x\\..\\..\\PWNED.txt",
    "",
]


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's, with the cache deep in it: names with many ".." still end in the folder."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "home" / "a" / "b" / "cache"))
    return tmp_path


def published(deep: Path, files: dict[str, Any]) -> Path:
    """A mirror whose index says this, with a file wherever a name leads."""
    there = deep / "there" / "a" / "b" / "c" / "run"
    there.mkdir(parents=True)
    for name in files:
        if name and "\0" not in name and not name.startswith("/"):
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / name).write_text("pwned")
    sealed_json.write(there / "mirror.json", {"version": "1", "files": files})
    return there


def entry(deep: Path) -> list[list[Any]]:
    """What an index says of a file with "pwned" in it."""
    (deep / "sample").write_text("pwned")
    return [[5, checksum(deep / "sample")]]


def here(deep: Path) -> dict[str, bytes]:
    """All files on this machine's side, but for locks and the mirror's record."""
    files = (file for file in (deep / "home").rglob("*") if file.is_file())
    return {str(file.relative_to(deep)): file.read_bytes() for file in files if file.name not in (".lock",)}


def parquet_tables(folder: Path) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"user": ["u", "v"], "a": [0.0, 1.0], "y": [0, 1]}), folder / "train.parquet")


class NamesOthers:
    """A store that lists a file of another folder, too."""

    type_name = "s3"

    def get_file_info(self, asked: fs.FileSelector) -> list[fs.FileInfo]:
        return [fs.FileInfo(name, fs.FileType.File, size=1) for name in (f"{asked.base_dir}/x", "bucket/other/x")]


def test_a_store_that_lists_what_nobody_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("s3://bucket/run?region=us-east-1")
    monkeypatch.setattr(remote, "_files", NamesOthers())
    with pytest.raises(RemoteError, match=r"asked for the files in it, and names 'bucket/other/x'"):
        remote.sizes()


def test_a_name_there_that_is_not_utf8_stays_and_is_passed_over(deep: Path) -> None:
    """As an old disk has it, in Latin-1."""
    there = deep / "there"
    there.mkdir()
    odd = os.fsencode(there) + b"/f\xfcr"
    with open(odd, "w") as file:
        file.write("mine")
    with local_copy(there.as_uri()) as copy:
        copy.mkdir(parents=True, exist_ok=True)
        (copy / "a").write_text("a")
    assert Mirror.of(there.as_uri()).push() == 0
    assert (there / "a").read_text() == "a"
    with open(odd) as file:
        assert file.read() == "mine"


class NotUtf8:
    """A store whose names cannot be read, as pyarrow says when it is asked for them."""

    type_name = "s3"
    type = fs.FileType.File

    def get_file_info(self, _: fs.FileSelector) -> list[NotUtf8]:
        return [self]

    @property
    def path(self) -> str:
        return b"\xff".decode()

    base_name = path


def test_a_store_whose_names_are_not_utf8_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("s3://bucket/run?region=us-east-1")
    monkeypatch.setattr(remote, "_files", NotUtf8())
    for listed in (remote.sizes, partial(remote.beginning_with, ".")):
        with pytest.raises(RemoteError, match=r"listing the files in s3://bucket/run\S* failed: .* can't decode byte"):
            listed()


@pytest.mark.parametrize("name", NAMES)
def test_an_index_writes_nothing_outside_and_deletes_nothing_there(deep: Path, name: str) -> None:
    mirror = Mirror.of(published(deep, {name: entry(deep)}).as_uri())
    mirror.path.parent.mkdir(parents=True, exist_ok=True)
    before = here(deep)
    with pytest.raises(RemoteError, match=r"mirror\.json is damaged") as caught:
        mirror.pull()
    assert repr(name) in str(caught.value)
    assert here(deep) == before


def test_the_command_says_so(deep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deep)
    uri = published(deep, {NAMES[0]: entry(deep)}).as_uri()
    monkeypatch.setattr("sys.argv", ["raysim", "report", uri])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (0, None)
    assert "PWNED.txt" in capsys.readouterr().err
    assert not list((deep / "home").rglob("PWNED*"))


def test_a_record_of_such_names_is_not_believed(deep: Path) -> None:
    """By an earlier raysim: the next upload would have had the file deleted at the URI."""
    there = published(deep, {})
    victim = there.parent / "victim.txt"
    victim.write_text("mine")
    mirror = Mirror.of(there.as_uri())
    mirror.pull()
    record = mirror.path.parent / "mirror.json"
    known = [[4, checksum(victim)], 0]
    sealed_json.write(record, {"uri": there.as_uri(), "versions": ["1"], "files": {"../victim.txt": known}})
    with pytest.raises(RemoteError, match="changed by another machine"):
        mirror.push()
    assert victim.exists()
    with pytest.raises(RemoteError, match=r"has no file '\.\./victim\.txt'"):
        Remote(there.as_uri()).delete("../victim.txt")
    with pytest.raises(RemoteError, match=r"has no folder '\.\./x'"):
        Remote(there.as_uri()).below("../x")


def test_a_link_in_the_copy_is_not_followed(deep: Path) -> None:
    mirror = Mirror.of(published(deep, {"clients/x": entry(deep)}).as_uri())
    mirror.path.mkdir(parents=True)
    (deep / "elsewhere").mkdir()
    (mirror.path / "clients").symlink_to(deep / "elsewhere")
    with pytest.raises(RemoteError, match="by a symbolic link"):
        mirror.pull()
    assert not list((deep / "elsewhere").iterdir())


def test_an_index_is_not_written_through_a_link(deep: Path) -> None:
    mirror = Mirror.of((deep / "there" / "run").as_uri())
    mirror.path.mkdir(parents=True)
    (mirror.path / "rows").write_text("new")
    (deep / "elsewhere").write_text("mine")
    (mirror.path.parent / ".mirror.json.there").symlink_to(deep / "elsewhere")
    mirror.push()
    assert (deep / "elsewhere").read_text() == "mine"
    assert "rows" in (deep / "there" / "run" / "mirror.json").read_text()


def test_names_that_cannot_both_be_files_are_an_error(deep: Path) -> None:
    there = published(deep, {"a": entry(deep)})
    index = {"version": "1", "files": {"a": entry(deep), "a/b": entry(deep)}}
    sealed_json.write(there / "mirror.json", index)
    with pytest.raises(RemoteError):
        Mirror.of(there.as_uri()).pull()


def test_the_copy_of_an_address_that_ends_in_dots_has_a_folder_of_its_own(deep: Path) -> None:
    mirror = Mirror.of("file:///mnt/shared/..")
    assert mirror.path.name == "folder"


def test_a_file_that_does_not_end_is_fetched_no_further_than_the_index_says(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror.of(published(deep, {"rows": entry(deep)}).as_uri())

    def endless(self: Remote, name: str) -> Any:
        for sent in range(1000):
            assert sent < 100, "it reads on"
            yield b"more"

    monkeypatch.setattr(Remote, "read", endless)
    with pytest.raises(RemoteError, match="rows is damaged: expected 5 bytes"):
        mirror.pull()


def test_a_name_that_no_index_may_hold_stays_here(deep: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirror = Mirror.of((deep / "empty").as_uri())
    mirror.pull()
    mirror.path.mkdir()
    (mirror.path / "rows").write_text("0")
    (mirror.path / "my\\notes").write_text("mine")
    assert mirror.push() == 1
    assert "'my\\\\notes' stays on this machine" in caplog.text


def test_a_folder_that_looks_like_a_copy_is_none(deep: Path) -> None:
    """What is written to it would be uploaded to an address that the folder chose."""
    run = deep / "download" / "mirrors" / "x" / "run"
    run.mkdir(parents=True)
    sealed_json.write(run.parent / "mirror.json", {"uri": "file:///tmp/elsewhere"})
    assert Mirror.around(run) is None
    assert named(run) == str(run)


def test_a_tables_names_stay_in_the_cache(deep: Path) -> None:
    (deep / "there" / "data").mkdir(parents=True)
    (deep / "there" / "x.parquet").write_text("pwned")
    section = table.Table(root=(deep / "there" / "data").as_uri(), train="../x.parquet")
    with pytest.raises((DataError, RemoteError), match=r"'\.\./x\.parquet'"):
        table.open_source(section)
    assert not list(deep.rglob("home/**/x.parquet"))


def test_an_images_name_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").write_text("mine")
    with pytest.raises(DataError, match=r"names the file '\.\./secret\.jpg'"):
        gld._image_path(tmp_path / "images", "../secret")


# Links in a run's folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", accuracies(0.1, 0.2))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's, with a file in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "round-000001.safetensors").write_text("mine")
    (folder / "index.html").write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize("part", PARTS)
def test_a_run_does_not_go_on_through_a_link(run: Path, mine: Path, part: str) -> None:
    if (run / part).is_dir():
        (run / part).rename(run / "away")
    (run / part).symlink_to(mine)
    before = contents(mine)
    with pytest.raises(RunFolderError, match=f"names the file '{part}', which leads to .*mine by a symbolic link"):
        RunFolder.reopen(run, experiment())
    assert contents(mine) == before


@pytest.mark.parametrize("part", ["experiment.json", "rounds.parquet", "checkpoints/round-000002.safetensors"])
def test_a_run_does_not_go_on_with_files_of_elsewhere(run: Path, mine: Path, part: str) -> None:
    if not (run / part).exists():
        (run / part).write_text("a checkpoint")
    (run / part).rename(mine / "moved")
    (run / part).symlink_to(mine / "moved")
    with pytest.raises(RunFolderError, match=f"names the file '{part}', which leads to .*moved by a symbolic link"):
        RunFolder.reopen(run, experiment())


def test_an_overwritten_folders_links_are_removed_and_not_followed(run: Path, mine: Path) -> None:
    (run / "client_state").symlink_to(mine)
    before = contents(mine)
    RunFolder.create(run, experiment(), "fingerprint", overwrite=True)
    assert not os.path.lexists(run / "client_state")
    assert contents(mine) == before


def test_an_unfinished_run_behind_a_link_is_not_removed(tmp_path: Path, mine: Path) -> None:
    (mine / "member-0").mkdir()
    study = tmp_path / "study"
    study.mkdir()
    (study / "generation-000").symlink_to(mine)
    with pytest.raises(StudyError, match="by a symbolic link"):
        clear_unfinished(study / "generation-000" / "member-0", study)
    assert (mine / "member-0").is_dir()
    (study / "generation-001" / "member-0").mkdir(parents=True)
    clear_unfinished(study / "generation-001" / "member-0", study)
    assert not (study / "generation-001" / "member-0").exists()


@pytest.mark.parametrize("name", ["report", "report/figures", "report/figures/learning-curves-train.png"])
def test_a_report_is_not_written_through_a_link(run: Path, mine: Path, name: str) -> None:
    first = build([run], default_folder([run]))
    link = run / name
    target = mine / "index.html" if link.suffix else mine
    if link.suffix:
        link = next(first.page.parent.joinpath("figures").glob("*.png"))
        link.unlink()
    else:
        link.rename(run / "away")
    link.symlink_to(target)
    if link.suffix:
        # A page that does not link the picture: otherwise the link would be removed.
        first.page.write_text(GENERATOR)
    before = contents(mine)
    with pytest.raises(RunFolderError, match="by a symbolic link"):
        build([run], default_folder([run]))
    assert contents(mine) == before


def test_a_lock_is_no_link(run: Path, mine: Path) -> None:
    victim = mine / "index.html"
    (run / lock.FILE).unlink(missing_ok=True)
    (run / lock.FILE).symlink_to(victim)
    with pytest.raises(RunFolderError, match="must be a file, but is a symbolic link"), lock.locked(run):
        pass
    with pytest.raises(RunFolderError, match="must be a file, but is a symbolic link"):
        lock.check_free(run)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_mirrors_folder_that_is_a_link_is_not_written_through(change: str, mine: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "checkpoints").symlink_to(mine)
    remote, before = Remote(there.as_uri()), {file: file.read_bytes() for file in mine.rglob("*") if file.is_file()}
    (tmp_path / "file").write_text("new")
    name = f"checkpoints/{next(iter(before)).relative_to(mine)}"
    carry_out = partial(remote.put, tmp_path / "file", name) if change == "put" else partial(remote.delete, name)
    with pytest.raises(RemoteError, match="by a symbolic link"):
        carry_out()
    assert {file: file.read_bytes() for file in mine.rglob("*") if file.is_file()} == before


def test_nothing_that_a_file_says_reaches_the_terminal_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"name": "x", "storage": "sqlite:///\x1b]0;pwned\x07\x1b[31m.db"}
    (tmp_path / "study").mkdir()
    sealed_json.write(tmp_path / "study" / "study.json", record)
    (tmp_path / "a.toml").write_text(EXPERIMENT)
    monkeypatch.setattr("sys.argv", ["raysim", "tune", str(tmp_path / "a.toml"), "--path", str(tmp_path / "study")])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert "\\x1b]0;pwned\\x07" in said.err
    assert not set("\x1b\x07") & set(said.out + said.err)


def test_no_link_in_the_cache_leads_a_table_elsewhere(deep: Path) -> None:
    there, mine = deep / "there", deep / "mine"
    parquet_tables(there)
    section = table.Table(root=there.as_uri(), train="train.parquet", client="user", x=("a",), y="y")
    table.open_source(section)
    (folder,) = (deep / "home" / "a" / "b" / "cache" / "files").iterdir()
    stamp, victim = folder / ".train.parquet.stamp", deep / "victim"
    # What the stamp says is replaced, and no pipe in its place is waited for.
    stamp.unlink()
    victim.write_text("mine")
    stamp.hardlink_to(victim)
    table.open_source(section)
    assert victim.read_text() == "mine"
    stamp.unlink()
    os.mkfifo(stamp)
    table.open_source(section)
    assert stamp.is_file()
    folder.rename(mine)
    (mine / "train.parquet").write_text("mine")
    folder.symlink_to(mine)
    with pytest.raises(DataError, match="must be a folder, but is a symbolic link"):
        table.open_source(section)
    assert (mine / "train.parquet").read_text() == "mine"


def test_no_link_in_the_cache_leads_a_copy_elsewhere(deep: Path) -> None:
    mirror = Mirror.of((deep / "there").as_uri())
    mirror.path.mkdir(parents=True)
    (mirror.path / "a").write_text("a")
    mirror.push()
    home, mine, path = mirror.path.parent, deep / "mine", mirror.path
    for link, target in ((path, mine), (home, deep / "home of it"), (home, home.with_name("another copy"))):
        link.rename(target)
        link.symlink_to(target)
        for find in (partial(Mirror.of, mirror.uri), partial(Mirror.around, path)):
            with pytest.raises(RemoteError, match=f"{link} must be a folder, but is a symbolic link"):
                find()
        link.unlink()
        target.rename(link)
    assert Mirror.around(path) is not None


def test_a_link_to_itself_in_place_of_a_copy_is_an_error_that_names_it(deep: Path) -> None:
    uri = (deep / "there").as_uri()
    home = Mirror.of(uri).path.parent
    home.parent.mkdir(parents=True)
    home.symlink_to(home.name)
    with pytest.raises(RemoteError, match=f"{home} must be a folder, but is a symbolic link"):
        raysim.read(uri)


@pytest.mark.parametrize("link", ["hardlink_to", "symlink_to"])
def test_notes_of_what_was_deleted_are_written_to_no_other_file(deep: Path, link: str) -> None:
    mirror = Mirror.of((deep / "there").as_uri())
    mirror.path.mkdir(parents=True)
    (mirror.path / "a").write_text("a")
    mirror.push()
    notes, victim = mirror.path.parent / removed.NOTES, deep / "victim"
    notes.unlink(missing_ok=True)
    victim.write_text("a\nmine\n")
    getattr(notes, link)(victim)
    removed.unlink(mirror.path / "a")
    mirror.push()
    assert victim.read_text() == "a\nmine\n"
    # Behind a link nothing was noted, so it stays there.
    assert (deep / "there" / "a").exists() == (link == "symlink_to")
    notes.unlink()
    os.mkfifo(notes)
    assert not removed.noted(mirror.path.parent)
    (mirror.path / "b").write_text("b")
    read = os.open(notes, os.O_RDONLY | os.O_NONBLOCK)
    removed.unlink(mirror.path / "b")
    assert os.read(read, 100) == b""
    os.close(read)


def test_a_note_is_written_where_another_process_has_replaced_the_notes_meanwhile(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror.of((deep / "there").as_uri())
    mirror.path.mkdir(parents=True)
    (mirror.path / "a").write_text("a")
    mirror.push()
    notes, flock = mirror.path.parent / removed.NOTES, fcntl.flock

    def waits(file: Any, how: int) -> None:
        if not notes.read_text():
            (deep / "new").write_text("b\n")
            os.replace(deep / "new", notes)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", waits)
    removed.unlink(mirror.path / "a")
    assert removed.noted(mirror.path.parent) == ["b", "a"]
