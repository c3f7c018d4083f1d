"""The pages for people do what they say: their code runs, their commands parse, what they point at is there."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
import tuning
from raysim.data import downloads
from raysim.data.sources.packed import Packed
from raysim.experiment.experiment_file import of_source
from tests.support.call_check import ROOT, check_raysim

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))

OTHERS_COMMANDS = {"cd", "export", "git", "kill", "pip", "python", "ray", "source"}
"""Commands in our pages that are not ours."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`]+)`", prose(page))


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


# Python


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone's root, whose configs run in this process: a page's code is executed as it stands."""
    for file in CONFIGS:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        assert "engine" not in table, f"{file} has an [engine] section: merge it here"
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text(encoding="utf-8") + "\n[engine]\nworkers = 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ADAPTERS = ROOT / "docs" / "tutorials" / "adapters.md"


def run_blocks(page: Path) -> dict[str, Any]:
    """Run a page's code in one namespace, and return that."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("page", [page for page in pages_with("python") if page != ADAPTERS], ids=named)
def test_python_blocks_run_in_order_in_one_namespace(page: Path) -> None:
    run_blocks(page)


@pytest.mark.usefixtures("workplace")
def test_the_tutorials_adapters_are_learnt_and_the_same_outside() -> None:
    namespace = run_blocks(ADAPTERS)
    turned, labels, accuracy = (namespace[name] for name in ("turned", "labels", "accuracy"))
    (*_, last) = namespace["result"].rounds["eval/test/accuracy"].to_pylist()
    assert last > 0.7
    assert accuracy(namespace["tuned"], turned[1500:], labels[1500:]) == pytest.approx(last)
    assert namespace["result"].rounds["bytes_up"][0].as_py() == 10 * 4 * namespace["adapters"]


def test_the_tutorials_own_data_is_learnt(workplace: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "own-model-and-data.md"
    namespace: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)
    # The targets' variance is about 0.6, so to predict their mean costs 0.3.
    assert namespace["result"].rounds["eval/test/loss"][-1].as_py() < 0.05
    parts = {"dataset": namespace["data"], "model": namespace["make_module"], "loss": namespace["huber"]}
    again = raysim.resume("runs/stations", **parts)
    assert all(torch.equal(value, again.params[name]) for name, value in namespace["result"].params.items())


def test_the_readme_is_a_page_to_land_on() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


# TOML


@pytest.mark.parametrize("page", pages_with("toml"), ids=named)
def test_toml_blocks_are_experiments(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block, encoding="utf-8")
        exp = raysim.load(file)
        if exp.tuning is not None:
            tuning.section_of(exp)


def test_the_first_experiment_of_the_guide_runs(workplace: Path) -> None:
    block, *_ = blocks(ROOT / "docs" / "experiments.md", "toml")
    (workplace / "first.toml").write_text(block, encoding="utf-8")
    result = raysim.run(raysim.load("first.toml", ["rounds=1", "engine.workers=0"]))
    assert result.path == Path("runs/first")


# Commands


def commands() -> Iterator[Any]:
    """Every line of a shell block, and every inline code that begins like one of our commands."""
    for page in PAGES:
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        # A command's bare name ("raysim run") is not a call of it.
        lines += [code for code in inline_code(page) if re.match(r"(raysim \w+|scripts/\w+|\.ci/\w+) \S", code)]
        for line in lines:
            words = shlex.split(line, comments=True)
            if words:
                yield pytest.param(words, id=f"{named(page)}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_exist_and_take_their_arguments(words: list[str]) -> None:
    program, *arguments = words
    if program == "raysim":
        check_raysim(arguments)
    elif program not in OTHERS_COMMANDS:
        file = ROOT / program
        assert file.is_file(), f"there is no {program}"
        assert file.stat().st_mode & 0o100, f"{program} cannot be executed"


def test_a_command_that_is_wrong_is_found() -> None:
    check_raysim(["run", "configs/quickstart.toml", "--set", "rounds=2"])
    for wrong in (
        ["runn", "configs/quickstart.toml"],
        ["run", "configs/quickstart.toml", "--adress", "auto"],
        ["resume", "runs/quickstart", "--rounds", "many"],
        ["data", "inspekt", "configs/quickstart.toml"],
    ):
        with pytest.raises(Exception, match=r"No such (command|option)|valid integer"):
            check_raysim(wrong)
    for wrong in (
        ["check", "configs/nothing.toml"],
        ["run", "configs/quickstart.toml", "--set", "client.rate=1"],
        ["run", "configs/quickstart.toml", "--sweep", "cohort.size=5,none"],
    ):
        with pytest.raises(raysim.ExperimentError):
            check_raysim(wrong)


# Links, pictures, files


def anchors(page: Path) -> set[str]:
    """The ids that a page's headings get: lower case, blanks as hyphens, other signs dropped."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_and_pictures_are_there(page: Path) -> None:
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{target} is not there"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


NAME_FILES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", ROOT / "docs" / "algorithms.md"]


@pytest.mark.parametrize("page", NAME_FILES, ids=named)
def test_files_that_are_named_are_there(page: Path) -> None:
    paths = [code for code in inline_code(page) if re.fullmatch(r"[\w./-]+(\.(py|toml|md|txt)|/)", code)]
    paths = [path for path in paths if not path.startswith(("runs/", "clients/"))]
    assert paths
    for path in paths:
        places = [ROOT / path, ROOT / "raysim" / path, *(ROOT / "raysim").rglob(path if "/" not in path else "\0")]
        assert any(place.exists() for place in places), f"{path} is not there"


def test_files_that_modules_name_are_there() -> None:
    """Docstrings and comments say where else to look: by a path from the root, from raysim/, or from beside them."""
    missing = []
    for file in [*(ROOT / "raysim").rglob("*.py"), *(ROOT / "tuning").rglob("*.py")]:
        for path in re.findall(r"(?<![\w/.])((?:\w+/)+\w+\.(?:py|c))\b", file.read_text(encoding="utf-8")):
            if not any((place / path).exists() for place in (ROOT, ROOT / "raysim", file.parent, file.parent.parent)):
                missing.append(f"{file.relative_to(ROOT)}: {path}")
    assert missing == []


def test_headings_that_code_refers_to_are_there() -> None:
    for file in sorted((ROOT / "raysim").rglob("*.py")):
        for path, heading in re.findall(r'(docs/[\w/-]+\.md), "([^"]+)"', file.read_text(encoding="utf-8")):
            assert re.search(rf"^#+ {re.escape(heading)}$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), (
                f"{file} refers to {path}, {heading!r}"
            )


# The list of what is there


def offered() -> dict[str, set[str]]:
    """Every key of the experiment that is a choice by name, and the names it takes."""
    found = choices(raysim.Experiment, "") | choices(tuning.TuningSection, "tuning")
    # The partition whose sizes a shuffled one takes: one of those listed already.
    found.pop("data.partition.sizes_of", None)
    # Likewise the sampler that replayed rounds are laid over.
    found.pop("cohort.sampler.over", None)
    # Likewise what else of a device may be a distribution.
    return {key: names for key, names in found.items() if not key.startswith("systems.time.")}


def choices(record: type[raysim.Section], at: str) -> dict[str, set[str]]:
    """Likewise of a record, whose keys stand in the table `at`."""
    schema = record.model_json_schema()
    found: dict[str, set[str]] = {}

    def visit(node: dict[str, Any], path: str) -> None:
        if "$ref" in node:
            return visit(schema["$defs"][node["$ref"].rpartition("/")[2]], path)
        of_a_list = [node["items"]] if "items" in node else []
        for member in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ()), *of_a_list):
            visit(member, path)
        for key, value in node.get("properties", {}).items():
            if key in ("name", "penalty") and path and "const" in value:
                found.setdefault(path, set()).add(value["const"])
            else:
                visit(value, f"{path}.{key}".removeprefix("."))
        return None

    visit(schema, at)
    return found


def test_the_configuration_page_lists_every_choice_and_no_other() -> None:
    section = prose(ROOT / "docs" / "configuration.md").partition("## Choices")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", section, re.MULTILINE)
    listed = {key: set(re.findall(r"`([^`]+)`", names)) for key, names in rows}
    assert listed == offered()


DATA_PAGE = ROOT / "docs" / "data.md"


def test_the_page_about_data_has_every_source_and_no_other() -> None:
    # A source's further forms stand below it, with no name of their own.
    listed = re.findall(r"^\| `(\w+)` \|", prose(DATA_PAGE), re.MULTILINE)
    assert sorted(listed) == sorted(offered()["data"])


def test_the_page_about_data_names_what_a_download_fetches() -> None:
    fetched = set()
    for source in offered()["data"]:
        if source not in ("arrow", "instructions", "quadratic"):
            section = of_source(source, None).data
            assert section is not None
            for folder, files in downloads.offered(section):
                assert folder.name in inline_code(DATA_PAGE)
                for file in files:
                    fetched |= set(file.names if isinstance(file, Packed) else (file.name,))
    # Those of a split of EMNIST are named by the first of them.
    missing = fetched - set(inline_code(DATA_PAGE))
    assert missing == {
        "emnist-balanced-train-labels-idx1-ubyte.gz",
        "emnist-balanced-test-images-idx3-ubyte.gz",
        "emnist-balanced-test-labels-idx1-ubyte.gz",
    }


@pytest.mark.pictures
def test_the_quick_starts_closing_table_is_the_programs(workplace: Path) -> None:
    from raysim.report import closing

    exp = raysim.load("configs/quickstart.toml", ["rounds=1"])
    result = raysim.run(exp)
    labels = [label for label, _ in closing.lines(exp, result.rounds, result.path)]
    (shown,) = [block for block in blocks(ROOT / "README.md", "text") if block.startswith("experiment")]
    assert [line[:17].strip() for line in shown.splitlines()] == labels
    shutil.rmtree(workplace / "runs")
