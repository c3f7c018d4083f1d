"""The page of the papers' experiments has every table and figure, and commands with the papers' rates."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from raysim.client.corrections.prox import Prox
from raysim.config import overrides
from raysim.models.distilbert import Distilbert
from raysim.report.comparison import compare
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.gallery import kinds
from tests.support import tiny, tiny_points
from tests.support.drawn import drawn
from tests.support.paper_commands import PAGE, ROOT, Command, commands, groups, sections, spread

ITEMS: dict[str, dict[str, Collection[int]]] = {
    "McMahan et al. (2017)": {"table": range(1, 5), "figure": range(1, 11)},
    "Charles et al. (2021)": {"table": range(1, 10), "figure": range(1, 43)},
    "Wang et al. (2021)": {"table": range(1, 2), "figure": range(1, 23)},
    "Varno et al. (2022)": {"table": range(3, 6), "figure": (1, *range(4, 8))},
    "Yang et al. (2023)": {"table": range(1, 20), "figure": range(1, 12)},
}
"""Every table and figure of the five papers; of Varno et al. those of the supplement."""

STATES = (
    "reproduced",
    "run, not confirmed",
    "runs",
    "needs data",
    "needs the weights",
    "not there yet",
    "in the files",
    "no experiment",
)
NO_ROW = {"M29", "M30", "L33", "L34"}
"""Commands with a label that are of no table and no figure."""


def rows(section: str) -> list[list[str]]:
    """Return the cells of the section's table of items, without its head."""
    _, _, text = section.partition("| item |")
    lines = text.splitlines()[2:]
    end = next(place for place, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines[:end]]


def numbers(kind: str, text: str) -> list[int]:
    """Return the numbers of the tables, or of the figures, that a text names."""
    found: list[int] = []
    for listed in re.findall(rf"{kind}s? (\d+(?:(?:, | to )\d+)*)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found += range(int(first), int(last or first) + 1)
    return found


def test_a_text_names_its_tables_and_figures() -> None:
    assert numbers("figure", "table 1, CNN; figures 2, 11 to 13") == [2, 11, 12, 13]
    assert numbers("table", "figure 4, tables 6 to 9") == [6, 7, 8, 9]
    assert numbers("figure", "figure 4, tables 6 to 9") == [4]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_of_a_paper_has_a_row(paper: str) -> None:
    items = [row[0] for row in rows(sections()[paper])]
    for kind, expected in ITEMS[paper].items():
        assert {number for item in items for number in numbers(kind, item)} == set(expected), kind


@pytest.mark.parametrize("paper", ITEMS)
def test_every_row_has_a_state_and_commands_that_are_there(paper: str) -> None:
    section = sections()[paper]
    there = [label for labels, _ in groups(section) for label in labels]
    assert sorted(there, key=lambda label: int(label[1:])) == [f"{there[0][0]}{n}" for n in range(1, len(there) + 1)]
    table = rows(section)
    assert {len(row) for row in table} == {6}
    for item, named, *_, state in table:
        assert set(spread(named)) <= set(there), item
        # "likewise" is of the row above, "as table 1" of that one.
        assert any(known in state for known in (*STATES, "likewise", "as table")), f"{item}: {state}"
    assert set(there) - {label for row in table for label in spread(row[1])} <= NO_ROW


def test_no_two_commands_write_into_one_folder() -> None:
    counts = Counter(command.name for command in commands() if command.name)
    assert [name for name, count in counts.items() if count > 1] == []


def test_pictures_are_of_folders_that_other_commands_write() -> None:
    written = {command.name for command in commands() if not command.reads}
    assert {name for command in commands() for name in command.reads} <= written
    assert any(command.reads for command in commands())


def searches() -> Iterator[Any]:
    for command in commands():
        if command.kind == "tune":
            yield pytest.param(command.points[0], id=command.label)


@pytest.mark.parametrize("exp", list(searches()))
def test_a_search_of_the_page_finds_the_commands_own_values(exp: raysim.Experiment) -> None:
    space, said = tuning.section_of(exp).parsed_space(), dict(overrides.leaves(exp.said()))
    assert space.grid
    for key, values in space.grid.items():
        assert said[key] in values, f"{key} = {said[key]} is not in the grid"


# Pictures


ROUNDS, COHORT = "finished rounds", "clients in a round"
AXES: dict[str, list[tuple[str, str]]] = {
    "cohort-share": 2 * [("share of training clients", "accuracy")],
    "cohort-size": 2 * [(COHORT, "accuracy")],
    "client-gain-train": [("share of clients, those that lose first", "gain in accuracy")],
    "eval-test-accuracy-by-examples": [("training examples processed", "test accuracy")],
    "eval-test-accuracy-by-simulated_time": [("simulated time, min", "test accuracy")],
    "eval-test-accuracy-by-rounds": [(ROUNDS, "test accuracy")],
    "eval-test-accuracy-by-rounds-of-each-method": 5 * [(ROUNDS, "test accuracy")],
    "eval-train-loss-by-rounds": [(ROUNDS, "train loss")],
    "failed-trials": [(COHORT, "trials that failed")],
    "final-by-client.correction.mu": 2 * [("client.correction.mu", "accuracy")],
    "glad-factors-1": [(ROUNDS, "factor")],
    "final-by-server.glad.gamma": 2 * [("server.glad.gamma", "accuracy")],
    "gsi-baseline-1": 2 * [(ROUNDS, "similarity index")],
    "gsi-by-parameters-1": [(ROUNDS, "similarity index")],
    "gsi-unbounded-1": [(ROUNDS, "GSI / B")],
    "heat-map-client.local_steps-cohort.size": [("cohort.size", "client.local_steps")],
    "mean_cosine_similarity-by-rounds-of-each-method": 5 * [(ROUNDS, "mean cosine similarity")],
    "params_norm": [(ROUNDS, "norm of the model")],
    "pseudo-gradient-norm-by-cohort-size": [(COHORT, "pseudo-gradient norm")],
    "pseudo-gradient-norm-predicted-5": 2 * [(ROUNDS, "pseudo-gradient norm")],
    "pseudo_gradient_norm-by-rounds-of-each-method": 5 * [(ROUNDS, "pseudo-gradient norm")],
    "pseudo_gradient_norm": [(ROUNDS, "pseudo-gradient norm")],
    "rounds-heat-map-client.batch_size-client.epochs": [("client.epochs", "client.batch_size")],
    "rounds-heat-map-client.batch_size-cohort.size": [("cohort.size", "client.batch_size")],
    "rounds-heat-map-client.local_steps-cohort.size": [("cohort.size", "client.local_steps")],
    "rounds-to-target": [(COHORT, "rounds")],
    # A table has no axes.
    "rounds-to-target-table": [("", "")],
    "time-ratio": 2 * [("target accuracy", "time over that of M = 2")],
    "train-and-test-by-rounds": 2 * [(ROUNDS, "accuracy")],
    "train-test-gap": [(ROUNDS, "train minus test accuracy")],
    "update-norm-of-all-clients": 2 * [(ROUNDS, "mean norm of updates")],
}
"""Pictures that rows name -> the axes (x, y) of each panel."""


def pictures(text: str) -> list[str]:
    """Return the names in a text that are pictures': they have hyphens, or are known."""
    return [name for name in re.findall(r"`([a-z][\w.-]*)`", text) if "-" in name or name in AXES]


NAMED = [
    (spread(row[1])[0], name) for section in sections().values() for row in rows(section) for name in pictures(row[2])
]
"""The first command of a row, and a picture that the row names."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Figure]]:
    """Runs a few points of a command on tiny files, once for all of its pictures, which it returns by name."""
    by_label = {command.label: command for command in commands()}
    found: dict[str, dict[str, Figure]] = {}

    def of(label: str) -> dict[str, Figure]:
        if label not in found:
            folder = tmp_path_factory.mktemp(label)
            tiny_points.files(folder, by_label[label])
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("RAYSIM_DATA", str(folder))
                # Panels are drawn of more groups than one picture names.
                many = any(name.endswith("of-each-method") for of_row, name in NAMED if of_row == label)
                ran = tiny_points.run(by_label[label], folder, most=7 if many else tiny_points.VALUES)
            found[label] = {figure.name: figure for kind in kinds() for figure in kind.make(ran)}
        return found[label]

    return of


@pytest.mark.parametrize(("label", "name"), sorted(set(NAMED)))
def test_a_rows_command_makes_the_pictures_that_it_names(
    label: str, name: str, reports: Callable[[str], dict[str, Figure]]
) -> None:
    panels = drawn(reports(label)[name])
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in panels] == AXES[name]
    assert all(axes.lines or axes.collections for axes in panels)


def options_of(command: str) -> set[str]:
    params = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {option for param in params for option in param.opts}


def test_options_of_reports_are_the_command_lines() -> None:
    known = options_of("report")
    asked = [row[2] for section in sections().values() for row in rows(section)]
    named = {option for text in asked for option in re.findall(r"`(--(?:target|monotone)[^`]*)`", text)}
    assert named
    assert {word for text in named for word in text.split() if word.startswith("--")} <= known


def test_the_tables_of_yang_et_al_are_printed_from_a_rows_command(tmp_path: Path) -> None:
    """Two points of Y1, gamma = 0 and 0.02, on tiny files."""
    section = sections()["Yang et al. (2023)"]
    asked = {option for text in re.findall(r"`raysim compare ([^`]*)`", section) for option in text.split()}
    assert {option for option in asked if option.startswith("--")} == {"--last"} <= options_of("compare")
    (command,) = (command for command in commands() if command.label == "Y1")
    tiny_points.files(tmp_path, command)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAYSIM_DATA", str(tmp_path))
        found = tiny_points.run(command, tmp_path)
    compared = compare(found, "eval/test/accuracy", last=2)
    for method, group in zip(compared.methods, found, strict=True):
        values = group.runs[0].rounds["eval/test/accuracy"].to_pylist()
        assert method.mean == pytest.approx(sum(values[-2:]) / 2)


def test_histograms_of_the_field_guides_clients_have_four_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = re.findall(r"`(raysim data inspect [^`]+)`", PAGE.read_text(encoding="utf-8"))
    _, *asked, picture = shlex.split(text)
    tiny.write(tmp_path, "gld")
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    found: list[Any] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path: found.extend(figure.axes))
    asked[asked.index("--histograms") - 1] = str(ROOT / asked[asked.index("--histograms") - 1])
    ran = CliRunner().invoke(app, [*asked, str(tmp_path / picture), "--set", "data.size=32"])
    assert ran.exit_code == 0, ran.output
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in found] == [
        ("examples of a client", "train clients"),
        ("labels of a client", "train clients"),
        ("examples of a label, train clients", "labels"),
        ("examples of a label, test clients", "labels"),
    ]


# Rates


METHODS = {"sgd": "FedAvg", "normalized": "FedAvg", "momentum": "FedAvgM", "adagrad": "FedAdagrad", "adam": "FedAdam"}
METHODS |= {"lars": "FedLARS", "lamb": "FedLamb"}

TASKS = ("cifar100", "emnist", "shakespeare", "stackoverflow")
CHARLES_SERVER = {
    "FedAvg": (1, 1, 1, 1),
    "FedAvgM": (1, 1, 0.1, 1),
    "FedAdagrad": (0.01, 0.1, 0.1, 10),
    "FedAdam": (0.01, 0.001, 0.01, 1),
    "FedLARS": (0.01, 0.001, 0.01, 0.01),
    "FedLamb": (0.001, 0.01, 0.01, 0.01),
    "FedSGD": (0.1, 0.1, 1, 10),
}
"""Charles et al. (2021), table 4, by task."""
CHARLES_CLIENT = {
    "FedAvg": (0.1, 0.1, 1, 10),
    "FedAvgM": (0.1, 0.1, 1, 10),
    "FedAdagrad": (0.1, 0.001, 10, 10),
    "FedAdam": (0.1, 0.1, 10, 10),
    "FedLARS": (0.1, 0.1, 10, 1),
    "FedLamb": (0.01, 0.1, 10, 10),
    "FedSGD": (1, 1, 1, 1),
}
"""Table 5, by task; A.2 for FedSGD."""
CHARLES_BATCH = (20, 20, 4, 32)
"""Table 2, by task."""
CHARLES_CONSTANTS = {
    "FedAvgM": {"beta1": 0.9},
    "FedAdagrad": {"eps": 0.001},
    "FedAdam": {"beta1": 0.9, "beta2": 0.99, "eps": 0.001},
    "FedLARS": {"beta1": 0.9, "eps": 0.001},
    "FedLamb": {"beta1": 0.9, "beta2": 0.99, "eps": 0.001},
}
"""Table 3."""

DATASETS = ("cifar10", "mnist", "newsgroups", "ag_news")
YANG_SERVER = {
    # Each dataset at alpha = 0.1 and at alpha = 1.0.
    "FedAvg": (0.5, 0.5, 1, 1, 7, 6, 1, 1),
    "FedAvgM": (0.2, 0.1, 0.5, 0.5, 2, 2, 0.5, 0.5),
    "FedAdam": (5e-3, 5e-3, 1e-2, 1e-2, 3e-4, 3e-4, 2e-4, 1e-4),
}
"""Yang et al. (2023), table 18; SCAFFOLD and FedProx have FedAvg's."""
YANG_MU = (0.1, 0.1, 1, 0.1, 0.001, 0.001, 1, 0.001)
"""Table 15, FedProx."""
YANG_CLIENT = (0.1, 0.01, 5e-5, 2e-5)
"""Table 16, by dataset; the texts with DistilBERT."""
YANG_ROUNDS = (500, 50, 100, 100)
"""Table 5, by dataset."""
BILSTM = {"newsgroups": {"FedAvg": 1.0, "FedAvgM": 0.1}, "ag_news": {"FedAvg": 0.5, "FedAvgM": 0.05}}
"""Table 19."""


def runs(folder: str) -> Iterator[tuple[Command, raysim.Experiment]]:
    """Every point of the page's commands on the files of a folder, but for searches and pooled data."""
    for command in commands():
        if command.kind == "run" and command.file.startswith(f"{folder}/"):
            yield from ((command, point) for point in command.points if not point.pooled)


def method_of(exp: raysim.Experiment) -> str:
    is_fedsgd = exp.client.batch_size == "full" and exp.client.optimizer.lr == 1
    return "FedSGD" if is_fedsgd else METHODS[exp.server.optimizer.name]


def test_every_command_of_charles_et_al_has_its_methods_rates() -> None:
    seen = set()
    for command, exp in runs("large_cohort"):
        task = command.file.split("/")[1].split("_")[0]
        if task not in TASKS:
            continue
        at, method = TASKS.index(task), method_of(exp)
        seen.add((task, method))
        optimizer = exp.server.optimizer
        assert (optimizer.lr, exp.client.optimizer.lr) == (CHARLES_SERVER[method][at], CHARLES_CLIENT[method][at]), (
            command.text
        )
        constants = CHARLES_CONSTANTS.get(method, {})
        assert {key: getattr(optimizer, key) for key in constants} == constants, command.text
        if method != "FedSGD" and exp.client.local_steps is None:
            assert exp.client.batch_size == CHARLES_BATCH[at], command.text
        assert (exp.server.clip is None) == (command.label == "L1"), command.text
        assert exp.rounds == 1500
    assert seen == {(task, method) for task in TASKS for method in CHARLES_SERVER}


def test_every_command_of_yang_et_al_has_its_methods_rates() -> None:
    seen = set()
    for command, exp in runs("fedglad"):
        dataset = command.file.split("/")[1].removesuffix("_fedavg_glad").removesuffix("_bad_round")
        if dataset not in DATASETS:
            continue
        method, data = method_of(exp), exp.data
        assert data is not None
        if dataset in BILSTM and not isinstance(exp.model, Distilbert):
            assert exp.server.optimizer.lr == BILSTM[dataset][method], command.text
            continue
        at = DATASETS.index(dataset)
        both = 2 * at + (0.1, 1.0).index(data.partition.alpha)  # type: ignore[union-attr]
        assert exp.server.optimizer.lr == YANG_SERVER[method][both], command.text
        assert (exp.client.optimizer.lr, exp.rounds) == (YANG_CLIENT[at], YANG_ROUNDS[at]), command.text
        if isinstance(exp.client.correction, Prox):
            assert exp.client.correction.mu == YANG_MU[both], command.text
            method = "FedProx"
        seen.add((dataset, method, both % 2))
    every = (*YANG_SERVER, "FedProx")
    assert seen == {(dataset, method, alpha) for dataset in DATASETS for method in every for alpha in (0, 1)}
