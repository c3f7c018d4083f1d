"""Parts of an installed package: named in a file, on the command line, in resumes, sweeps, studies and on workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raysim
from tests.support.command import Raysim
from tests.support.packages import install_example, installed_here, with_packages, write_package

EXPERIMENT = """
name = "theirs"
rounds = 3
data = { name = "digits", clients = 20 }
model = { name = "linear" }
cohort = { size = 5 }
[client]
correction = { name = "theirs", strength = 0.1 }
optimizer = { name = "signed", lr = 0.01 }
[server]
optimizer = { name = "halving", every = 1 }
[evaluation]
every = 1
metrics = [{ name = "top_k", k = 2, label = "top2" }, "top_k"]
[engine]
workers = 0
"""

PART = """
from typing import Literal
import raysim
class Mine(raysim.Section):
    name: Literal["{name}"] = "{name}"
PART = raysim.Part("{kind}", "{name}", Mine, lambda section: raysim.Correction())
"""


LEARNED = ("loss", "eval/test/loss", "eval/test/top2", "eval/test/top_k")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raysim:
    (tmp_path / "theirs.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return Raysim(tmp_path)


@pytest.fixture
def example(site: Path) -> Iterator[None]:
    with installed_here(site):
        yield


def rows(folder: str, *columns: str) -> list[dict[str, Any]]:
    return pq.read_table(Path(folder) / "rounds.parquet").select(list(columns)).to_pylist()


def changes(*texts: str) -> list[str]:
    return [argument for text in texts for argument in ("--set", text)]


@pytest.mark.usefixtures("example")
def test_a_package_s_parts_are_named_in_a_file_and_changed_on_the_command_line(command: Raysim) -> None:
    run = ("run", "theirs.toml", "--no-progress")
    assert command(*run) == 0
    for row in rows("runs/theirs", *LEARNED, "eval/test/accuracy"):
        assert 0 < row["eval/test/accuracy"] < row["eval/test/top2"] < row["eval/test/top_k"] <= 1
    assert command(*run, "--path", "prox", *changes("client.correction.name=prox", "client.correction.mu=0.1")) == 0
    assert rows("prox", *LEARNED) == rows("runs/theirs", *LEARNED)
    strong = changes("client.correction.strength=5.0", "evaluation.metrics=top_k", "server.optimizer.every=2")
    assert command(*run, "--path", "strong", *strong) == 0
    assert rows("strong", "loss")[1:] != rows("runs/theirs", "loss")[1:]
    assert "eval/test/top2" not in pq.read_schema("strong/rounds.parquet").names


@pytest.mark.ray
def test_other_processes_and_workers_find_the_package_and_have_the_same_bits(site: Path, command: Raysim) -> None:
    with installed_here(site):
        assert command("run", "theirs.toml", "--no-progress") == 0
        assert command("run", "theirs.toml", "--no-progress", "--path", "two", "--set", "rounds=1") == 0
    script = (
        "import raysim\n"
        "two = raysim.load('theirs.toml', ['engine.workers=2', 'engine.cpus_per_worker=0.5'])\n"
        "raysim.run(two, path='new', progress=False)\n"
    )
    done = with_packages("-c", script, site=site, cwd=command.folder)
    assert done.returncode == 0, done.stderr
    assert rows("new", *LEARNED) == rows("runs/theirs", *LEARNED)
    done = with_packages(
        "-m", "raysim", "resume", "two", "--rounds", "3", "--no-progress", site=site, cwd=command.folder
    )
    assert done.returncode == 0, done.stderr
    assert rows("two", *LEARNED) == rows("runs/theirs", *LEARNED)


@pytest.mark.usefixtures("example")
def test_a_run_goes_on_to_the_same_bits_and_records_the_parts(command: Raysim) -> None:
    assert command("run", "theirs.toml", "--no-progress") == 0
    assert command("run", "theirs.toml", "--no-progress", "--path", "cut", "--set", "rounds=1") == 0
    assert command("resume", "cut", "--no-progress", "--rounds", "3") == 0
    assert rows("cut", *LEARNED) == rows("runs/theirs", *LEARNED)
    record = json.loads(Path("cut/experiment.json").read_text())["experiment"]
    assert record["client"]["correction"] == {"name": "theirs", "strength": 0.1}
    assert record["evaluation"]["metrics"][0] == {"name": "top_k", "label": "top2", "k": 2}


def test_a_run_does_not_go_on_without_the_package(site: Path, command: Raysim) -> None:
    with installed_here(site):
        assert command("run", "theirs.toml", "--no-progress", "--set", "rounds=1") == 0
    assert command("resume", "runs/theirs", "--no-progress", "--rounds", "3") == 2
    assert "client.correction.name must be one of prox," in command.err


@pytest.mark.usefixtures("example")
def test_check_sweeps_and_studies_know_the_keys(command: Raysim) -> None:
    assert command("check", "theirs.toml") == 0
    study = (
        f"{EXPERIMENT}\n[tuning.space]\n"
        "client.correction.strength = { grid = [0.1, 10.0] }\nserver.optimizer.KEY = { grid = [1, 2] }\n"
    )
    Path("study.toml").write_text(study.replace("KEY", "every"))
    assert command("check", "study.toml") == 0
    assert "client.correction.strength" in command.out
    Path("study.toml").write_text(study.replace("KEY", "evry"))
    assert command("check", "study.toml") == 2
    assert "server.optimizer.evry" in command.err
    assert "did you mean 'every'?" in command.err
    keys: dict[str, list[Any]] = {"client.correction.strength": [0.1, 10.0], "evaluation.metrics": [["top_k"]]}
    done = raysim.run_sweep(raysim.load("theirs.toml"), keys, path="sweep", executor="local", progress=False)
    assert done.rounds.num_rows == 6
    assert done.rounds["eval/test/top_k"].null_count == done.clients["top_k"].null_count == 0


@pytest.mark.usefixtures("example")
def test_keys_explains_a_package_s_parts(command: Raysim) -> None:
    assert command("keys", "client.correction.strength") == 0
    assert command.out == "client.correction.strength: a number ≥ 0; default 0.1\n    Factor of the pull.\n"
    assert command("keys", "evaluation.metrics") == 0
    assert "by its name: own, top_k;" in command.out
    assert 'name = "top_k": Accuracy of the k best guesses.' in command.out


BROKEN = """
from typing import Literal
import raysim
class Mine(raysim.Section):
    name: Literal["mine"] = "mine"
def make(at):
    {body}
PART = raysim.Part("{kind}", "mine", Mine, make)
"""
KINDS = {
    "objective": ("client.objective", "a function"),
    "correction": ("client.correction", "a raysim.Correction"),
    "sampler": ("cohort.sampler", "a raysim.Sampler"),
    "aggregator": ("server.aggregator", "a raysim.Coordinatewise or a raysim.Coefficients"),
    "weighting": ("server.weighting", "a function"),
    "metric": ("evaluation.metrics", "a raysim.Metric or a function"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise OSError('boom')", r"but called with the section it raised OSError \(\w+\.py, line \d+\): boom\."),
        ("return at.size", r"it raised AttributeError \(\w+\.py, line \d+\): 'Mine' object has no attribute 'size'\."),
        ("return 7", r"but returned 7\."),
    ],
    ids=["raises", "takes something else", "returns something else"],
)
def test_a_package_whose_make_fails_is_named_in_one_line(
    kind: str, body: str, says: str, command: Raysim, tmp_path: Path
) -> None:
    key, returns = KINDS[kind]
    write_package(tmp_path / "broken", "broken", BROKEN.format(kind=kind, body=body))
    Path("broken.toml").write_text(
        'name = "b"\nrounds = 1\ndata = { name = "digits", clients = 9 }\nmodel = { name = "linear" }\n'
        "cohort = { size = 2 }\nengine = { workers = 0 }\n"
    )
    with installed_here(tmp_path / "broken"):
        assert command("run", "broken.toml", "--no-progress", *changes(f"{key}=mine")) == 2
    assert f"the {kind} 'mine' of the package broken must be a function make(section) that returns {returns}" in (
        command.err
    )
    assert re.search(f"{says}\n$", command.err)
    assert command.err.count("\n") == 1


def test_keys_says_how_a_part_of_one_s_own_comes_in(command: Raysim) -> None:
    assert command("keys", "client.correction") == 0
    assert "raysim.run(exp, correction=...) passes it." in command.out
    assert command("keys", "client.correction.strength") == 2
    assert "a script's own part reads client.correction.constants.strength" in command.err


@pytest.mark.usefixtures("example")
def test_an_unknown_key_of_a_package_s_section_is_named_with_the_nearest(command: Raysim) -> None:
    assert command("check", "theirs.toml", "--set", "client.correction.strenght=1") == 2
    assert command.err == (
        "error: theirs.toml: unknown key 'client.correction.strenght': [client.correction] with name = 'theirs' takes "
        "name, strength (did you mean 'strength'?)\n"
    )
    assert command("check", "theirs.toml", "--set", "client.correction.strength=-1") == 2
    assert "client.correction.strength must be greater than or equal to 0, but got -1" in command.err


def test_a_name_that_is_not_installed_says_where_it_may_be(command: Raysim) -> None:
    assert command("check", "theirs.toml") == 2
    for key, known in (("client.correction", "prox"), ("client.optimizer", "adagrad"), ("server.optimizer", "yogi")):
        assert f"{key}.name must be one of " in command.err
        assert known in command.err
    hint = "but got 'theirs'; a package that is not installed here may have it (raysim parts lists what is)"
    assert hint in command.err
    assert "evaluation.metrics must be 'own', a part that a script passes as a keyword, or the name" in command.err


@pytest.mark.parametrize(
    ("name", "says"), [("theirs", "example-parts and other"), ("prox", "raysim and other")], ids=["package", "raysim"]
)
def test_two_owners_of_a_name_are_named(name: str, says: str, site: Path, command: Raysim, tmp_path: Path) -> None:
    write_package(tmp_path / "site", "other", PART.format(kind="correction", name=name))
    with installed_here(tmp_path / "site", site):
        assert command("check", "theirs.toml", "--set", f"client.correction.name={name}") == 2
    assert f"Two packages have a correction named {name!r}: {says}. Uninstall other" in command.err


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("PART = 3", "must be a raysim.Part, but is 3"),
        (PART.format(kind="correcting", name="broken"), "must have a kind among objective, correction"),
        (
            PART.format(kind="correction", name="broken").replace("(raysim.Section):", ":"),
            "must have a subclass of raysim.Section as its section",
        ),
        (
            PART.format(kind="correction", name="broken").replace("    name: Literal", "    title: Literal"),
            "must have a section with the key name: Literal['broken'] = 'broken'",
        ),
        (PART.format(kind="client_optimizer", name="broken"), "must have a section with lr and weight_decay"),
    ],
)
def test_a_broken_package_is_named_where_its_part_may_be_meant(
    code: str, says: str, site: Path, command: Raysim, tmp_path: Path
) -> None:
    write_package(tmp_path / "site", "other", code)
    with installed_here(tmp_path / "site", site):
        assert command("check", "theirs.toml", "--set", "client.correction.name=broken") == 2
        assert "There is no correction 'broken', or it is in a package that fails: other:PART of " in command.err
        assert says in command.err
        # What is found elsewhere needs nothing of it.
        assert command("check", "theirs.toml") == 0
