"""A study that is killed goes on: nothing lost, nothing counted twice, the same numbers as if it had never stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tuning
from tests.support.postgres import Postgres
from tests.support.study_process import TRIALS, experiment

SCRIPT = Path(__file__).parents[1] / "support" / "study_process.py"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The trials of a study that nothing happens to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuning.study.pictures.draw_all", lambda *given: None)
        return _numbers(tuning.tune(experiment(), path=tmp_path_factory.mktemp("whole")))


def _numbers(study: tuning.Study) -> pa.Table:
    return study.trials.drop_columns(["seconds"]).sort_by("client.optimizer.lr").drop_columns(["trial"])


class Process:
    """A study's process; `ended` waits for so many of its trials to end."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(SCRIPT), *arguments]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.said: list[str] = []

    def ended(self, count: int) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said.append(line)
            count -= line.startswith("trial ")
            if not count:
                return
        raise AssertionError("".join(self.said))

    def close(self) -> int:
        """Wait for its end; the exit code."""
        assert self.popen.stderr is not None
        self.said += self.popen.stderr.readlines()
        code = self.popen.wait(timeout=240)
        self.popen.stderr.close()
        return code

    def kill(self) -> None:
        self.popen.kill()
        self.close()


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that a test has started; none outlives it."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.popen.poll() is None:
            process.kill()


def test_a_study_goes_on_after_sigkill(tmp_path: Path, whole: pa.Table, started: list[Process]) -> None:
    where = tmp_path / "study"
    killed = Process(str(where))
    started.append(killed)
    killed.ended(2)
    killed.kill()
    finished = [where / "trials" / line.split()[1].zfill(4) for line in killed.said if line.startswith("trial ")]
    written = {file: file.stat().st_mtime_ns for folder in finished for file in folder.glob("*/rounds.parquet")}
    study = tuning.tune(experiment(), path=where)
    assert _numbers(study).equals(whole)
    assert study.trials["trial"].to_pylist() == list(range(TRIALS))
    assert {file: file.stat().st_mtime_ns for file in written} == written


def test_two_processes_share_a_study_on_postgresql(
    tmp_path: Path, whole: pa.Table, postgres: Postgres, started: list[Process]
) -> None:
    where = tmp_path / "study"
    started += [Process(str(where), postgres.url) for _ in range(2)]
    assert [process.close() for process in started] == [0, 0], [process.said for process in started]
    by_each = [{line.split()[1] for line in process.said if line.startswith("trial ")} for process in started]
    assert sorted(int(number) for numbers in by_each for number in numbers) == list(range(TRIALS))
    assert _numbers(tuning.tune(experiment(), path=where, storage=postgres.url)).equals(whole)


def test_a_study_goes_on_after_its_database_and_one_process_were_killed(
    tmp_path: Path, whole: pa.Table, postgres: Postgres, started: list[Process]
) -> None:
    where = tmp_path / "study"
    started += [Process(str(where), postgres.url) for _ in range(2)]
    first, second = started
    first.ended(1)
    first.kill()
    postgres.kill()
    assert second.close() == 1
    # It works on a trial, or was about to open the study.
    assert re.search(r"The storage \S+ (no longer answers|cannot be opened)", second.said[-1])
    postgres.start()
    assert _numbers(tuning.tune(experiment(), path=where, storage=postgres.url)).equals(whole)
