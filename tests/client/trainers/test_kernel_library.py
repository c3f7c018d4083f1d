"""The kernel's library: compiled once and kept, again where it is damaged or strange; and where none can be had."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from raysim.client.trainers.kernel.dense import SOURCE
from raysim.errors import DiskError, ModelError, ResourceError
from raysim.server import weighted_rows
from raysim.storage import atomic, compiled_c
from tests.support.kernel import chosen, deltas, needs_kernel, wide


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache without a kernel, and a process that knows none."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    compiled_c.library.cache_clear()
    compiled_c.obstacle.cache_clear()
    compiled_c._warn.cache_clear()
    yield tmp_path / "cache" / f"kernels-{os.geteuid()}"
    compiled_c.library.cache_clear()
    compiled_c.obstacle.cache_clear()


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


def test_it_is_compiled_once_and_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(wide()).trainer == "compiled"
    (kept,) = fresh.iterdir()
    before = kept.stat().st_mtime_ns
    compiled_c.library.cache_clear()
    monkeypatch.setattr(compiled_c, "_compile_to", None)
    compiled_c.library(SOURCE, torch.float32)
    assert [kept.stat().st_mtime_ns] == [before]


def test_a_damaged_library_is_compiled_again(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen(wide())
    (kept,) = fresh.iterdir()
    whole = bytearray(kept.read_bytes())
    whole[len(whole) // 2] ^= 1
    # Not in its place: this process has it in its memory.
    kept.unlink()
    kept.write_bytes(whole)
    kept.chmod(0o700)
    compiled_c.library.cache_clear()
    assert deltas(wide, (3,), {"batch_size": 2}).any()
    assert f"{kept} is damaged, and is compiled again" in caplog.text
    (made,) = fresh.iterdir()
    assert compiled_c.distrust(made) is None


def test_what_a_killed_process_left_is_removed_once_it_is_old(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(compiled_c, "checksum", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            compiled_c.library(SOURCE, torch.float32)
    (left,) = fresh.iterdir()
    for path in (*left.iterdir(), left):
        os.utime(path, (time.time() - atomic.STALE_S - 60,) * 2)
    compiled_c.library(SOURCE, torch.float32)
    assert [path.suffix for path in fresh.iterdir()] == [".so"]


def make_writable(kept: Path) -> None:
    kept.chmod(0o777)


def make_a_link(kept: Path) -> None:
    kept.rename(kept.with_name("another"))
    kept.symlink_to("another")


def make_anothers(kept: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(kept, 12345, -1)


STRANGE = {"can be written by other users": make_writable, "is a link": make_a_link, "belongs to user": make_anothers}


@pytest.mark.parametrize("why", STRANGE)
def test_a_library_that_others_could_have_written_is_not_loaded(
    fresh: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    chosen(wide())
    (kept,) = fresh.iterdir()
    STRANGE[why](kept)
    assert why in str(compiled_c.distrust(kept))
    compiled_c.library.cache_clear()
    compiled_c.library(SOURCE, torch.float32)
    assert why in caplog.text
    assert compiled_c.distrust(kept) is None


@pytest.mark.parametrize("why", STRANGE)
def test_a_folder_that_others_could_write_to_is_not_used(fresh: Path, why: str) -> None:
    fresh.mkdir(parents=True)
    STRANGE[why](fresh)
    with pytest.raises(compiled_c.NoLibraryError, match=why):
        compiled_c.library(SOURCE, torch.float32)
    assert not list(fresh.iterdir())


def test_the_folder_is_private_whatever_the_umask(fresh: Path) -> None:
    before = os.umask(0)
    try:
        compiled_c.library(SOURCE, torch.float32)
    finally:
        os.umask(before)
    (kept,) = fresh.iterdir()
    assert [oct(path.stat().st_mode & 0o777) for path in (fresh, kept)] == ["0o700", "0o700"]


def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return "there is no C compiler: none of cc, gcc, clang is on the PATH, and CC is not set"


def no_such_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("CC", "tcc-of-mine -O1")
    return "CC names tcc-of-mine, which is not there"


def failing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("CC", f"{shutil.which('sh')} -c 'echo fatal: no headers >&2; exit 3'")
    return "sh does not compile it: fatal: no headers"


def no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "file"))
    return "it cannot be compiled or loaded"


def unreadable_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("CC", "gcc 'with an open quote")
    return "No closing quotation"


def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("RAYSIM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    return "Could not determine home directory."


@pytest.mark.parametrize(
    "lacking", [no_compiler, no_such_compiler, failing_compiler, no_room, unreadable_compiler, no_home]
)
@pytest.mark.usefixtures("fresh")
def test_without_a_kernel_the_other_forms_train_and_say_what_is_lacking(
    lacking: Callable[[pytest.MonkeyPatch, Path], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = lacking(monkeypatch, tmp_path)
    choice = chosen(nn.Linear(33, 7))
    assert choice.trainer == "stacked"
    assert "the compiled kernel would be faster, but" in choice.why
    assert wanted in choice.why
    with pytest.raises(ModelError, match=r"engine\.trainer = 'compiled' cannot be used") as raised:
        chosen(nn.Linear(33, 7), trainer="compiled")
    assert wanted in str(raised.value)
    # A worker on another machine may be the one that lacks it.
    with pytest.raises(
        ResourceError, match=r"needs a C compiler, .* on every machine, but on .* set engine\.trainer = 'fused'"
    ):
        deltas(wide, (3,), {"batch_size": 2})


@pytest.mark.parametrize("lacking", [no_such_compiler, failing_compiler, no_room, unreadable_compiler, no_home])
@pytest.mark.usefixtures("fresh")
def test_what_is_amiss_with_compiler_or_cache_is_warned_of_once_because_last_digits_change(
    lacking: Callable[[pytest.MonkeyPatch, Path], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = lacking(monkeypatch, tmp_path)
    for _ in range(2):
        assert chosen(wide()).trainer != "compiled"
        compiled_c.obstacle.cache_clear()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert wanted in told
    assert "other last digits" in told


@pytest.mark.parametrize("why", STRANGE)
def test_a_folder_that_others_could_write_to_is_warned_of(
    fresh: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    fresh.mkdir(parents=True)
    STRANGE[why](fresh)
    assert chosen(wide()).trainer != "compiled"
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert why in told
    assert "other last digits" in told


@pytest.mark.usefixtures("fresh")
def test_a_machine_without_a_compiler_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    no_compiler(monkeypatch, tmp_path)
    assert chosen(wide()).trainer != "compiled"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def failing_with(complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler end with this complaint, and less telling lines around it, as ld's and gcc's are."""
    script = f"echo 'ld: final link failed: {complaint}' >&2; echo 'collect2: error: ld returned 1' >&2; exit 1"
    monkeypatch.setenv("CC", f'{shutil.which("sh")} -c "{script}"')


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, DiskError),
        (errno.EDQUOT, DiskError),
        (errno.ENOMEM, ResourceError),
        (errno.EMFILE, ResourceError),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_a_machine_without_room_for_the_moment_does_not_choose_another_trainer(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    said = rf"dense\.c could not be compiled: {os.strerror(code)}\. Computed in another way, the run would have other"
    with monkeypatch.context() as patched:
        failing_with(os.strerror(code), patched)
        with pytest.raises(error, match=said):
            chosen(wide())

    def refused(_: Path) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "beside", refused)
        with pytest.raises(error, match=said):
            chosen(wide())
    assert chosen(wide()).trainer == "compiled"


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $$",
        "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
        "echo 'cc1: out of memory allocating 815944 bytes after a total of 7626752 bytes' >&2; exit 1",
        "echo 'LLVM ERROR: out of memory' >&2; exit 1",
        "echo '/usr/bin/ld: final link failed: memory exhausted' >&2; exit 1",
        "echo 'cc1: error while loading shared libraries: libc.so.6: failed to map segment from shared object' >&2; "
        "exit 1",
    ],
)
@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_is_killed_or_lacks_memory_does_not_choose_another_trainer(
    monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("CC", f"{shutil.which('sh')} -c {shlex.quote(script)}")
    with pytest.raises(ResourceError, match=r"dense\.c could not be compiled: Cannot allocate memory"):
        chosen(wide())


@pytest.mark.usefixtures("fresh")
def test_a_library_with_the_bits_of_torch_is_done_without_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_with(os.strerror(errno.ENOSPC), monkeypatch)
    assert "does not compile it" in str(compiled_c.obstacle(weighted_rows.SOURCE, torch.float32))
