"""A table stands in for training: what a tuner is told by it is what it would have been told by the runs."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped
from tuning.budget import StudyBudget
from tuning.table import card
from tuning.table import file as table_file
from tuning.table.file import KEY
from tuning.table.record import ACCURACIES, LOSSES

Make = Callable[..., raysim.Experiment]
Change = Callable[[pa.Table], pa.Table]
SPACE = {"client.optimizer.lr": {"grid": [0.01, 0.1, 1.0]}, "server.weighting": {"choices": ["examples", "uniform"]}}


@pytest.fixture
def exp(tuned: Make) -> raysim.Experiment:
    return tuned(space=SPACE, seeds=2, final=0).changed({"evaluation.every": 1})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests of this file have their table."""
    return tmp_path_factory.mktemp("table") / "table.parquet"


@pytest.fixture
def table(exp: raysim.Experiment, small: raysim.FederatedDataset, file: Path, tmp_path: Path) -> tuning.PublishedTable:
    if not file.exists():
        made = tuning.make_table(exp, file, folder=tmp_path / "grid", dataset=small, storage=f"{quick(tmp_path)}-grid")
        read = tuning.read_table(file)
        for name in ("clients", "seeds", "content", "space"):
            assert getattr(read, name) == getattr(made, name)
    return tuning.read_table(file)


def quick(folder: Path) -> str:
    """A storage that is opened faster than a database."""
    return f"journal:{folder / 'journal'}"


def test_the_folder_of_a_table_says_so_to_a_study_and_a_study_s_to_a_table(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    tuned = exp.changed({"evaluation.clients": 2, "tuning.sampler": {"name": "random"}, "tuning.trials": 2})
    grid: Any = {"dataset": small, "storage": f"{quick(tmp_path)}-grid"}
    study: Any = {"dataset": small, "storage": f"{quick(tmp_path)}-study"}
    tuning.make_table(tuned, tmp_path / "t.parquet", folder=tmp_path / "grid", **grid)
    with pytest.raises(
        tuning.StudyError, match=r"holds the runs of a table of this experiment .*\(--table\)"
    ) as refused:
        tuning.tune(tuned, path=tmp_path / "grid", **grid)
    assert "evaluation.clients" not in str(refused.value)
    with pytest.raises(tuning.StudyError, match=r"with other settings: .*seed"):
        tuning.tune(tuned.changed({"seed": 7}), path=tmp_path / "grid", **grid)
    tuning.tune(tuned, path=tmp_path / "study", **study)
    with pytest.raises(tuning.StudyError, match="holds trials of a study of this experiment") as refused:
        tuning.make_table(tuned, tmp_path / "u.parquet", folder=tmp_path / "study", **study)
    assert "evaluation.clients" not in str(refused.value)


def test_every_client_is_there_and_their_mean_is_the_recorded_figure(table: tuning.PublishedTable) -> None:
    assert len(table.configurations) == 6
    for runs in table.rows:
        assert [len(rows) for rows in runs] == [4, 4]
        for row in (row for rows in runs for row in rows):
            for of, lists in (("accuracy", ACCURACIES), ("loss", LOSSES)):
                mean = np.average(row[lists], weights=table.clients.examples)
                assert mean == pytest.approx(row[f"eval/validation/{of}"], rel=1e-5)


@pytest.mark.parametrize(
    "keys",
    [
        {"sampler": {"name": "tpe", "startup": 2}, "trials": 6},
        {"sampler": {"name": "random"}, "pruner": {"name": "median", "startup": 1}, "trials": 6},
        {"sampler": {"name": "random"}, "budget": {"client_updates": 60}},
        {"objective": {"name": "rounds_to_target", "target": 0.5}},
        {"sampler": {"name": "random"}, "pruner": {"name": "hyperband", "factor": 2}, "trials": 6},
        {"laplace": 0.1, "pruner": {"name": "median", "startup": 1}},
    ],
)
def test_a_study_on_the_table_is_the_study_with_training(
    exp: raysim.Experiment,
    table: tuning.PublishedTable,
    small: raysim.FederatedDataset,
    tmp_path: Path,
    keys: dict[str, Any],
) -> None:
    trained = tuning.tune(exp, path=tmp_path / "trained", dataset=small, concurrent=1, storage=quick(tmp_path), **keys)
    read = tuning.tune_on(exp, table, path=tmp_path / "read", **keys)

    def rows(study: tuning.Study) -> list[dict[str, Any]]:
        # The table's lists have 32 bits.
        inexact = {"seconds", "standard_error/clients"}
        return [{name: row[name] for name in row if name not in inexact} for row in study.trials.to_pylist()]

    assert rows(read) == rows(trained)
    for ours, theirs in zip(read.regret, trained.regret, strict=True):
        assert vars(ours) == pytest.approx(vars(theirs), abs=1e-6)
    assert (read.best.values, read.best.value, read.spent) == (trained.best.values, trained.best.value, trained.spent)
    assert read.best.clients_error == (trained.best.clients_error and pytest.approx(trained.best.clients_error))
    assert raysim.load(tmp_path / "read" / "best.toml") == raysim.load(tmp_path / "trained" / "best.toml")


def test_the_table_is_seen_through_the_clients_that_training_would_evaluate(
    exp: raysim.Experiment, table: tuning.PublishedTable, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    one = exp.changed({"evaluation.clients": 1})
    trained = tuning.tune(one, path=tmp_path / "trained", dataset=small, concurrent=1, storage=quick(tmp_path))
    read = tuning.tune_on(one, table, path=tmp_path / "read")
    values = [[row["value"] for row in study.trials.to_pylist()] for study in (trained, read)]
    assert values[1] == pytest.approx(values[0])
    assert values[0] != pytest.approx(
        [row["value"] for row in tuning.tune_on(exp, table, path=tmp_path / "all").trials.to_pylist()]
    )
    assert [found.clients for found in read.regret] == [found.clients for found in trained.regret] == [1]
    assert read.table is not None
    assert read.table.chosen != read.best.value


@pytest.mark.parametrize("clients", ["all", 3])
def test_a_table_of_a_regression_is_read_and_weighs_clients_as_training_does(
    clients: int | str, tmp_path: Path
) -> None:
    """No client has an accuracy there: what raysim wrote was said to be damaged."""
    rng = np.random.default_rng(0)

    def client(size: int) -> tuple[Any, Any]:
        return rng.normal(size=(size, 3)).astype(np.float32), rng.normal(size=size).astype(np.float32)

    data = raysim.FederatedDataset.from_clients(
        {f"t{k}": client(5) for k in range(4)}, validation={f"v{k}": client(3 + k) for k in range(5)}
    )
    section = {"objective": {"name": "loss"}, "space": {"client.optimizer.lr": {"grid": [0.01, 0.3]}}, "final": 0}
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 2,
            "model": {"name": "linear"},
            "cohort": {"size": 3},
            "evaluation": {"every": 1, "clients": clients},
            "tuning": {**section, "seeds": 1},
        }
    )
    file = tmp_path / "table.parquet"
    tuning.make_table(exp, file, folder=tmp_path / "grid", dataset=data, executor="local")
    trained = tuning.tune(exp, dataset=data, executor="local", path=tmp_path / "trained")
    read = tuning.tune_on(exp, tuning.read_table(file), path=tmp_path / "read")
    for name in ("value", "standard_error/clients"):
        ours, theirs = ([row[name] for row in study.trials.to_pylist()] for study in (read, trained))
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert [each.clients for each in read.regret] == [each.clients for each in trained.regret] != []


def test_the_best_of_the_table_is_said(exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path) -> None:
    whole = tuning.tune_on(exp, table, path=tmp_path / "whole")
    one = tuning.tune_on(exp, table, path=tmp_path / "one", trials=1)
    assert whole.table is not None
    assert one.table == whole.table
    assert whole.best.value == whole.table.value
    assert "the study's best is 0.0 % behind it" in dict(tuning.lines(whole))["best of table"]


def overshooting(section: Any) -> ServerOptimizer:
    """A server optimizer that steps to no number, once the updates are large."""

    def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
        return Stepped(params * (math.inf if descent.g.abs().max() > 1e3 else 1.0) - descent.fg, {})

    return ServerOptimizer(lambda params: {}, step)


def test_a_configuration_that_diverged_diverges_again(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    space = {"client.optimizer.lr": {"grid": [0.1, 1e6]}}
    wild = exp.changed({"tuning": {"space": space, "seeds": 2, "final": 0}})
    file, parts = tmp_path / "wild.parquet", {"dataset": small, "server_optimizer": overshooting}
    tuning.make_table(wild, file, folder=tmp_path / "grid", storage=quick(tmp_path), **parts)
    found = tuning.tune_on(wild, tuning.read_table(file), path=tmp_path / "read")
    assert found.counts == {"finished": 1, "diverged": 1}
    assert "| diverged | 1 configurations" in (tmp_path / "wild.md").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuning.space": {"client.optimizer.lr": {"grid": [0.1]}}}, "another space: it varies"),
        ({"tuning.space": {**SPACE, "client.optimizer.lr": {"grid": [0.1, 0.2]}}}, "also has 0.2"),
        ({"tuning.space": {**SPACE, "client.optimizer.lr": {"log": [0.1, 1.0]}}}, "numbers without end"),
        ({"cohort.size": 5}, "another experiment: cohort.size was 4, and is 5"),
        ({"rounds": 3}, "another experiment: rounds was 4, and is 3"),
        ({"evaluation.clients": 1, "tuning.objective": {"name": "train_loss"}}, "defined for accuracy and loss"),
        ({"tuning.seeds": 3}, "runs of the seeds 0, 1, but the study takes 0, 1, 2"),
        (
            {"tuning.objective": {"name": "percentile", "percentile": 37}},
            r"no percentile 37 of validation accuracy by client \(eval/validation/p37\), only eval/validation/acc",
        ),
    ],
)
def test_a_table_of_something_else_is_refused(
    exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.tune_on(exp.changed(changes), table, path=tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuning.space": {"client.optimizer.lr": {"log": [0.1, 1.0]}}}, "every configuration of a grid"),
        ({"tuning.vary": ["data"]}, "the same validation clients for every seed"),
        ({"stop": {"budget": {"rounds": 2}}}, r"\[stop\] would end some before"),
        ({"tuning.space": {"stop.budget.rounds": {"grid": [2, 3]}}}, r"\[stop\] would end some before"),
        ({"tuning.space": {"rounds": {"grid": [2, 4]}}}, "tuning.space has rounds: set rounds to the largest one"),
        (
            {
                "cohort.sampler": {"name": "bernoulli", "probability": 0.4},
                "cohort.size": None,
                "server.weighting": "uniform",
                "server.clip": {"fixed": 1.0},
                "server.privacy": {"name": "gaussian", "noise_multiplier": 1.0, "epsilon": 3.0},
                "tuning.space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}},
            },
            "server.privacy.epsilon = 3 may end some before",
        ),
    ],
)
def test_what_no_table_can_be_made_of(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.make_table(exp.changed(changes), tmp_path / "table.parquet", folder=tmp_path / "grid", dataset=small)
    assert not (tmp_path / "grid").exists()


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"round": [0]}), tmp_path / "other.parquet")
    with pytest.raises(tuning.StudyError, match=r"other\.parquet is damaged: expected a table of `raysim table`"):
        tuning.read_table(tmp_path / "other.parquet")


def with_metadata(**changes: Any) -> Change:
    def change(found: pa.Table) -> pa.Table:
        about = json.loads(found.schema.metadata[KEY])
        return found.replace_schema_metadata({KEY: json.dumps({**about, **changes})})

    return change


def with_column(name: str, values: Callable[[list[Any]], list[Any]], kind: pa.DataType | None = None) -> Change:
    def change(found: pa.Table) -> pa.Table:
        return found.set_column(
            found.column_names.index(name), name, pa.array(values(found[name].to_pylist()), kind or found[name].type)
        )

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_column("configuration", lambda places: [-1, *places[1:]]), "configuration -1 is none of the grid's 0 to"),
        (with_column("seed", lambda seeds: [99, *seeds[1:]]), "seed 99 is none of its"),
        (with_column("round", lambda rounds: [None, *rounds[1:]]), "column 'round' has no whole number in each row"),
        (with_column("examples", lambda held: ["x"] * len(held), pa.string()), "column 'examples' holds string"),
        (with_column("examples", lambda held: [1e308] * len(held), pa.float64()), "has numbers beyond 1e.150"),
        (with_column(LOSSES, lambda rows: [None] * len(rows)), "clients/loss has 0 numbers for"),
        (with_column(LOSSES, lambda rows: [row[:-1] for row in rows]), "clients/loss has [0-9]+ numbers for"),
        (with_column(LOSSES, lambda rows: [[None] * len(row) for row in rows]), "lacks the number of a client"),
        (with_column(ACCURACIES, lambda rows: [[7.0] * len(row) for row in rows]), "that are not shares of examples"),
        (with_column(ACCURACIES, lambda rows: [b"x"] * len(rows), pa.binary()), "holds binary, and no list"),
        (with_column("client.optimizer.lr", lambda rates: [0.123] * len(rates)), "has client.optimizer.lr = 0.123"),
        (lambda found: pa.concat_tables([found] * 9), "rows, and its runs have [0-9]+ rounds"),
        (lambda found: found.slice(0, len(found) - 1), "it has [0-9]+ rows, and was written with [0-9]+"),
        (lambda found: found.drop_columns(["client.optimizer.lr"]), "column 'client.optimizer.lr' is missing"),
        (with_column("clients", lambda rows: [-5] * len(rows)), "column 'clients' has numbers below 0"),
        (with_column(ACCURACIES, lambda rows: [[None] * len(row) for row in rows]), "has no number of any client"),
        (with_column(LOSSES, lambda rows: [[0.5] * len(row) for row in rows]), "it is not as it was written"),
        (with_column("eval/validation/loss", lambda rows: [0.5 for _ in rows]), "it is not as it was written"),
        (with_metadata(experiment={}), "cohort must be given"),
        (with_metadata(**{"content of the data": "other"}), "it is not as it was written"),
        (with_metadata(clients={"names": ["a"], "examples": [10**400]}), "need a number of examples each"),
        (with_metadata(seeds=[0, 0]), r"its seeds \[0, 0\] are not different"),
        (with_metadata(seeds="0"), "its seeds are not whole numbers"),
        (with_metadata(clients={"names": [1], "examples": [1]}), "its clients have no names"),
        (with_metadata(clients={"names": ["a"], "examples": [-1]}), "need a number of examples each"),
        (with_metadata(space={"cohort.size": {"int": [1, 10**9]}}), "its space is not a grid"),
    ],
)
def test_a_table_that_is_not_as_it_was_written_is_refused(
    change: Change, said: str, table: tuning.PublishedTable, tmp_path: Path
) -> None:
    path = tmp_path / "table.parquet"
    table_file.write(table, path)
    assert tuning.read_table(path).rows == table.rows
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(tuning.StudyError, match=rf"table\.parquet is damaged: .*{said}"):
        tuning.read_table(path)


def test_a_table_without_a_value_is_named(exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path) -> None:
    empty = dataclasses.replace(table, rows=[[[] for _ in runs] for runs in table.rows])
    with pytest.raises(tuning.StudyError, match="No configuration of the table has a value"):
        tuning.compare(exp.changed({"tuning.budget": {"client_updates": 12}}), empty, ["random"], 1)


def test_a_card_replaces_no_other_file(exp: raysim.Experiment, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("my notes")
    with pytest.raises(tuning.StudyError, match=r"notes\.md, where the table's card belongs, is another file"):
        tuning.make_table(exp, tmp_path / "notes.parquet")
    with pytest.raises(tuning.StudyError, match=r"grid\.md is the name of a card"):
        tuning.make_table(exp, tmp_path / "grid.md")
    assert (tmp_path / "notes.md").read_text() == "my notes"


@pytest.fixture
def small_grid(exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path) -> Callable[[str], object]:
    """Make a table of two rates, in a file of this name, from one study in the folder grid."""
    exp = exp.changed({"tuning.space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}}})

    def make(name: str) -> object:
        return tuning.make_table(exp, tmp_path / name, folder=tmp_path / "grid", dataset=small, storage=quick(tmp_path))

    return make


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("seed-1", "has lost records: a table needs every round of it, and it has 0"),
        ("seed-0/rounds.parquet", "has lost records: a table needs every round of it, and it has 0"),
        ("seed-0/clients/round-000002.parquet", "round-000002.parquet"),
    ],
)
def test_a_hole_in_the_grid_is_no_divergence(
    lost: str, said: str, small_grid: Callable[[str], object], tmp_path: Path
) -> None:
    small_grid("whole.parquet")
    place = tmp_path / "grid" / "trials" / "0001" / lost
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    with pytest.raises((tuning.StudyError, raysim.RunFolderError), match=said):
        small_grid("holed.parquet")
    assert not (tmp_path / "holed.parquet").exists()


@pytest.mark.parametrize(("one", "other"), [("0000", "0001"), ("0001/seed-0", "0001/seed-1")])
def test_folders_that_were_exchanged_make_no_table(
    one: str, other: str, small_grid: Callable[[str], object], tmp_path: Path
) -> None:
    small_grid("whole.parquet")
    first, second = (tmp_path / "grid" / "trials" / name for name in (one, other))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    with pytest.raises(tuning.StudyError, match="holds another run than that of its trial"):
        small_grid("whole.parquet")


def test_a_study_on_a_table_lies_beside_the_one_that_made_it(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning.make_table(exp, tmp_path / "table.parquet", dataset=small)
    found = tuning.tune_on(exp, tuning.read_table(tmp_path / "table.parquet"))
    assert found.path == Path("runs") / f"{exp.name}-on-table"


def test_a_card_says_what_varies_with_the_seed(table: tuning.PublishedTable, file: Path, tmp_path: Path) -> None:
    assert table.vary == ("model", "cohort")
    assert "| vary with the seed | model, cohort, draws of clients |" in card.text(table, file)
    for vary in ((), ("model",), None):
        table_file.write(replace(table, vary=vary), tmp_path / "other.parquet")
        assert tuning.read_table(tmp_path / "other.parquet").vary == vary
    assert "vary with the seed" not in card.text(replace(table, vary=None), file)
    table_file.write(replace(table, vary=("weather",)), tmp_path / "other.parquet")
    with pytest.raises(tuning.StudyError, match=r"what varies with the seed is \['weather'\]"):
        tuning.read_table(tmp_path / "other.parquet")


def test_a_table_replaces_a_table_only(exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path) -> None:
    (tmp_path / "numbers.parquet").write_bytes(b"mine")
    with pytest.raises(tuning.StudyError, match=r"numbers\.parquet is there and is no table"):
        tuning.make_table(exp, tmp_path / "numbers.parquet")
    (tmp_path / "run").mkdir()
    for name in ("experiment.json", "rounds.parquet"):
        (tmp_path / "run" / name).write_bytes(b"mine")
    with pytest.raises(raysim.RunFolderError, match=r"is a file of what .* records"):
        tuning.make_table(exp, tmp_path / "run" / "rounds.parquet")
    table_file.write(table, tmp_path / "table.parquet")
    card.check_free(tmp_path / "table.parquet")


def test_the_commands_publish_no_path_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'name = "tiny"\nrounds = 2\n[data]\nname = "digits"\nclients = 10\n[model]\nname = "linear"\n'
        "[cohort]\nsize = 5\n[engine]\nworkers = 0\n[tuning.space]\nclient.optimizer.lr = { grid = [0.01, 0.1] }\n"
    )

    def call(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--json", "--no-progress"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    made = call("table", "tiny.toml")
    assert (made["configurations"], made["rounds"], made["clients"]) == (2, 2, 2)
    assert str(tmp_path) not in Path("tiny.md").read_text()
    found = call("tune", "tiny.toml", "--table", "tiny.parquet", "--path", "read")
    assert found["best"]["value"] == found["table"]["value"]
    budget = ("--set", "tuning.budget={rounds=4}", "--studies", "2")
    ranked = CliRunner().invoke(app, ["tuners", "tiny.toml", "--table", "tiny.parquet", "--tuner", "random", *budget])
    assert [line.split() for line in ranked.stdout.splitlines()[1:]] == [
        ["written", "tuners/tuners.png,", ".svg,", ".pdf,", ".csv"]
    ]
    refused = CliRunner().invoke(app, ["tune", "tiny.toml", "--table", "tiny.parquet", "--storage", "sqlite:///a.db"])
    assert refused.exit_code == 2


def test_tuners_of_one_budget_are_ranked(exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path) -> None:
    whole = 6 * 2 * 4 * 4  # configurations, seeds, rounds, clients
    budgeted = exp.changed({"tuning.budget": {"client_updates": whole}})
    found = tuning.compare(budgeted, table, ["random", "grid", "tpe+median"], studies=8)
    rows = found.table.to_pylist()
    assert len(rows) == 3 * 40
    for spent in {row["spent"] for row in rows}:
        at = [row for row in rows if row["spent"] == spent]
        assert sum(row["rank"] for row in at) == pytest.approx(1 + 2 + 3)
        # A sixth of the budget is one trial: before it ends there is no incumbent, and all are alike.
        assert spent >= whole / 6 or {row["rank"] for row in at if "+" not in row["tuner"]} == {2.0}
    (grid,) = (row for row in found.last() if row["tuner"] == "grid")
    assert grid["regret"] == 0
    of_random = [row["regret"] for row in rows if row["tuner"] == "random"]
    assert of_random == sorted(of_random, reverse=True)
    assert of_random[0] > of_random[-1]
    files = [file.name for file in tuning.write_comparison(found, tmp_path)]
    assert files == ["tuners.png", "tuners.svg", "tuners.pdf", "tuners.csv"]
    assert all(file.stat().st_size for file in tmp_path.iterdir())


def test_a_folder_with_another_picture_is_refused_before_the_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'name = "tiny"\nrounds = 2\n[data]\nname = "digits"\nclients = 10\n[model]\nname = "linear"\n'
        "[cohort]\nsize = 5\n[tuning.space]\nclient.optimizer.lr = { grid = [0.01, 0.1] }\n"
    )
    Path("tuners").mkdir()
    Path("tuners", "tuners.svg").write_text("mine")
    # It is no table, which would be said next.
    Path("none.parquet").write_text("none")
    refused = CliRunner().invoke(app, ["tuners", "tiny.toml", "--table", "none.parquet", "--tuner", "random"])
    assert refused.exit_code != 0
    assert "tuners.svg is none of the pictures" in " ".join(refused.output.split())
    assert Path("tuners", "tuners.svg").read_text() == "mine"


@pytest.mark.parametrize(
    ("tuners", "budget", "said"),
    [
        (["best"], {"rounds": 9}, "The tuner 'best': tuning.sampler"),
        (["random+all"], {"rounds": 9}, r"The tuner 'random\+all': tuning.pruner"),
        (["tpe", "tpe"], {"rounds": 9}, "Every tuner is compared once"),
        (["cmaes"], {"rounds": 9}, "cmaes needs at least two keys"),
        (["tpe"], None, "tuning.budget is absent"),
        (["tpe"], {"rounds": 0}, "must be greater than or equal to 1"),
        (["tpe"], {"rounds": 9, "bytes": 5}, "budget is one amount"),
        (["tpe"], {"simulated_s": 9.0}, r"without \[systems\] rounds have none"),
    ],
)
def test_what_cannot_be_compared(
    exp: raysim.Experiment, table: tuning.PublishedTable, tuners: list[str], budget: dict[str, Any] | None, said: str
) -> None:
    budgeted = exp.changed({"tuning.budget": budget} if budget else {})
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.compare(budgeted, table, tuners, studies=1)


@pytest.mark.parametrize(
    ("ended", "under_way", "room"),
    [([], 0, 1), ([], 1, 0), ([30], 0, 3), ([30, 50], 1, 0), ([30, 70], 0, 0), ([0], 0, 1)],
)
def test_trials_begin_while_the_budget_is_enough(ended: list[int], under_way: int, room: int) -> None:
    """A trial under way is expected to cost as much as the most costly one: 70 is enough for 30, 30 and a part."""
    budget = StudyBudget(rounds=100)
    assert budget.room([{"rounds": rounds} for rounds in ended], under_way) == room
