"""`raysim data`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raysim.data import describe, downloads
from raysim.data.sources.published import Published
from tests.support import tiny
from tests.support.command import Raysim


def test_inspect_describes_an_experiments_data(raysim: Raysim) -> None:
    assert raysim("data", "inspect", "tiny.toml", "--set", "data.clients=7") == 0
    assert "classification, 10 classes" in raysim.out
    assert "clients   7" in raysim.out


def test_inspect_tells_other_programs_what_it_tells_people(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect = ("data", "inspect", "tiny.toml", "--set", "data.clients=7")
    assert raysim(*inspect) == 0
    text = raysim.out
    assert raysim(*inspect, "--json") == 0
    train = json.loads(raysim.out)["splits"]["train"]
    assert train["clients"] == 7
    assert f"examples  {train['examples']:,}" in text
    assert f"sizes     min {train['sizes']['min']}, median {train['sizes']['median']:g}, max" in text
    assert sum(train["labels"]) == train["examples"]
    assert f"       3  {train['labels'][3]}" in text
    assert "of_clients" not in train
    monkeypatch.setattr(describe, "_READ_CLIENTS", 2)
    assert raysim(*inspect, "--json") == 0
    sample = json.loads(raysim.out)["splits"]["train"]
    assert sample["of_clients"] == {"labels": 2}
    assert sum(sample["labels"]) < sum(train["labels"])


def test_inspect_describes_a_runs_data(raysim: Raysim) -> None:
    raysim("run", "tiny.toml")
    raysim("data", "inspect", "tiny.toml")
    of_the_file = raysim.out
    assert raysim("data", "inspect", "runs/tiny") == 0
    assert raysim.out == of_the_file


def test_inspect_of_a_folder_takes_no_changes(raysim: Raysim) -> None:
    assert raysim("data", "inspect", ".", "--set", "data.clients=7") == 2
    assert "--set changes an experiment" in raysim.err


def test_inspect_names_what_a_folder_lacks(raysim: Raysim) -> None:
    assert raysim("data", "inspect", ".") == 2
    assert raysim.err.startswith("error: ")
    assert "dataset.json is missing" in raysim.err


def test_prepare_fills_the_cache_and_says_where(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(raysim.folder / "cache"))
    assert raysim("data", "prepare", "tiny.toml") == 0
    assert str(raysim.folder / "cache") in raysim.out
    assert list((raysim.folder / "cache").rglob("dataset.json"))


def test_prepare_of_generated_data_says_that_nothing_is_stored(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "tiny.toml", "--set", "data.name=synthetic", "--set", "data.clients=9") == 0
    assert "nothing is stored" in raysim.out


def test_prepare_says_what_there_is(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "tiny.toml", "--set", "data.holdout=0.25") == 0
    assert "task         classification, 10 classes\n" in raysim.out
    for start in ("train        clients 15, ", "validation   clients 5, ", "test         clients 20, "):
        assert f"\n{start}" in raysim.out


def test_a_source_is_prepared_by_its_name(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "digits", "--set", "data.clients=7") == 0
    assert "ready after" in raysim.out
    assert raysim("data", "prepare", "mnits") == 2
    assert (
        "'mnits' is neither a file nor a source of data: the sources are digits, synthetic, quadratic, mnist"
        in raysim.err
    )
    assert "gld, instructions, arrow (did you mean 'mnist'?)." in raysim.err
    assert raysim("data", "prepare", "tinyshakespeare") == 2
    assert "'tinyshakespeare' is shakespeare with data.form = 'tiny'" in raysim.err
    assert raysim("data", "prepare", "ag_news", "--root", "nowhere") == 2
    assert "there is no folder nowhere" in raysim.err


def test_the_folder_of_a_sources_files_is_called_as_the_source(raysim: Raysim) -> None:
    Path("digits").mkdir()
    assert raysim("data", "prepare", "digits") == raysim("data", "inspect", "digits") == 0
    assert "classification, 10 classes" in raysim.out
    raysim("run", "tiny.toml", "--set", "name=digits")
    shutil.copytree("runs/digits", "digits", dirs_exist_ok=True)
    assert raysim("data", "inspect", "digits", "--set", "data.clients=7") == 2


def test_inspect_takes_a_sources_name_too_and_names_the_nearest(raysim: Raysim) -> None:
    assert raysim("data", "inspect", "digits", "--set", "data.clients=7") == 0
    assert "clients   7" in raysim.out
    assert raysim("data", "inspect", "digist") == 2
    assert "'digist' is neither a file nor a source of data" in raysim.err
    assert "(did you mean 'digits'?)" in raysim.err
    assert raysim("data", "inspect", "tinny.toml") == 2
    assert "There is no experiment file tinny.toml (did you mean 'tiny.toml'?);" in raysim.err


def test_a_download_is_refused_where_nobody_offers_the_files(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "shakespeare", "--download", "--set", "data.form=leaf") == 2
    assert "--download has no address for data.name = 'shakespeare' as it is set here" in raysim.err
    assert "https://github.com/TalwalkarLab/leaf" in raysim.err
    assert raysim("data", "prepare", "gld", "--root", "nowhere", "--set", "data.set=gld160k") == 2
    assert "federated_train.csv" in raysim.err
    assert "--download" not in raysim.err


def test_nothing_is_fetched_where_the_files_are_there_in_another_form(
    raysim: Raysim, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(raysim.folder, "emnist")
    monkeypatch.setattr(downloads, "download", None)
    assert raysim("data", "prepare", "emnist", "--download", "--root", str(raysim.folder / "emnist")) == 0
    assert raysim("data", "prepare", "digits", "--download") == 0


def test_what_is_missing_is_fetched_first(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    served = raysim.folder / "served.csv"
    served.write_text('"3","Oil","goes up"\n"1","Talks","go on"\n')
    files = tuple(Published(name, served.as_uri()) for name in ("train.csv", "test.csv"))
    monkeypatch.setattr(downloads, "offered", lambda section: [downloads.Offered(raysim.folder / "ag", files)])
    arguments = ("data", "prepare", "ag_news", "--root", str(raysim.folder / "ag"), "--set", "data.clients=2")
    assert raysim(*arguments, "--download") == 0
    assert f"fetched {raysim.folder / 'ag' / 'test.csv'}" in raysim.err
    assert raysim(*arguments, "--download") == 0
    assert "fetched" not in raysim.err


def test_a_picture_of_labels_by_client(raysim: Raysim) -> None:
    assert raysim("data", "inspect", "tiny.toml", "--picture", "labels.png", "--split", "test") == 0
    assert (raysim.folder / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(raysim: Raysim) -> None:
    for option in ("--picture", "--histograms"):
        assert raysim("data", "inspect", "tiny.toml", option, "labels.bmp") == 2
        assert "name a file that ends in .png" in " ".join(raysim.err.split())
