"""Where a path of this machine is needed, a URI is refused, and no folder is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from raysim.data.field import Field
from raysim.data.writer import DatasetWriter
from raysim.errors import RaysimError
from raysim.storage.cache import cache_root
from raysim.storage.remote.uri import check_is_path
from tests.support.run_folders import accuracies, experiment, write
from tests.support.tiny_study import EXPERIMENT

URIS = ("s3://bucket/x", "file:///tmp/x", "memory://x", "gs:/bucket/x")

COMMANDS = (
    "run {uri}",
    "check {uri}",
    "check tiny.toml --calibrate --out {uri}",
    "report run --out {uri}",
    "best run --by eval/test/accuracy --out {uri}",
    "export run --out {uri}",
    "interpolate run run --out {uri}",
    "interpolate {uri}/checkpoints/round-000001.safetensors run",
    "data inspect tiny.toml --picture {uri}.png",
    "data inspect tiny.toml --histograms {uri}.png",
    "data prepare {uri}.toml",
    "tune tiny.toml --path {uri}",
    "tune {uri}",
    "tune tiny.toml --table {uri}",
    "tune tiny.toml --storage journal:{uri}",
    "table tiny.toml --out {uri}.parquet",
    "table tiny.toml --path {uri}",
    "tuners tiny.toml --table {uri} --tuner random",
    "tuners tiny.toml --table t.parquet --tuner random --out {uri}",
    "proxy {uri} tiny.toml",
    "proxy study tiny.toml --path {uri}",
    "evolve tiny.toml --path {uri}",
)

CALLS: tuple[Callable[[str], object], ...] = (
    raysim.load,
    lambda uri: raysim.make_report("run", out=uri),
    lambda uri: raysim.best("run", by="eval/test/accuracy", out=uri),
    lambda uri: raysim.export("run", uri),
    lambda uri: DatasetWriter(uri, Field((2,), "float32"), Field((), "int64"), 2),
    lambda uri: tuning.read(uri),
    lambda uri: tuning.read_table(Path(uri)),
    lambda uri: tuning.tune(raysim.load("tiny.toml"), path=uri),
    lambda uri: tuning.evolve(raysim.load("tiny.toml"), path=uri),
    lambda uri: tuning.make_table(raysim.load("tiny.toml"), Path(uri)),
    lambda uri: tuning.make_table(raysim.load("tiny.toml"), Path("t.parquet"), folder=Path(uri)),
    lambda uri: tuning.proxy(Path(uri), raysim.load("tiny.toml")),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run and an experiment's file."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run", accuracies(0.5, 0.6))
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


@pytest.mark.parametrize("uri", URIS)
def test_it_is_refused_with_what_it_is_for(uri: str) -> None:
    with pytest.raises(raysim.RunFolderError, match=r"The file must be a path of this machine, .* but got"):
        check_is_path(uri, "The file")
    check_is_path("runs/x", "The file")


def test_a_path_is_advised_where_it_is_known() -> None:
    with pytest.raises(raysim.RunFolderError, match=r"but got file:///tmp/x: write /tmp/x\."):
        check_is_path("file:///tmp/x", "The file")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, here: Path) -> None:
    before = names(here)
    done = CliRunner().invoke(app, command.format(uri=URIS[0]).split())
    assert done.exit_code in (1, 2)
    assert "must be a path of this machine" in done.output
    assert names(here) == before


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
@pytest.mark.parametrize("uri", URIS[:2])
def test_calls(call: Callable[[str], object], uri: str, here: Path) -> None:
    before = names(here)
    with pytest.raises(RaysimError, match="must be a path of this machine"):
        call(uri)
    assert names(here) == before


@pytest.mark.parametrize("call", [*CALLS[1:4], *CALLS[7:9]], ids=range(5))
@pytest.mark.parametrize("given", ["", b"x", "a\0b"])
def test_what_is_no_path_either(call: Callable[[Any], object], given: Any, here: Path) -> None:
    before = names(here)
    with pytest.raises(RaysimError, match="must be a path of this machine, but got"):
        call(given)
    assert names(here) == before


def test_calls_with_data(here: Path, dataset: raysim.FederatedDataset) -> None:
    own = experiment(data=None, engine={"workers": 0})
    before = names(here)
    with raysim.Runs(own, dataset=dataset) as runs:
        with pytest.raises(raysim.RunFolderError, match="must be a path"):
            runs.start([(own, URIS[0])])
        for path, origin in ((URIS[0], "run"), ("new", URIS[0])):
            with pytest.raises(raysim.RunFolderError, match="must be a path"):
                runs.branch(own, path, origin)
    assert names(here) == before


@pytest.mark.parametrize("variable", ["RAYSIM_CACHE", "XDG_CACHE_HOME"])
def test_the_cache(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSIM_CACHE")
    monkeypatch.setenv(variable, URIS[0])
    with pytest.raises(RaysimError, match=f"environment variable {variable} must be a path"):
        cache_root()
