"""Population-based training: who goes on from whom, with which numbers, and that nothing else changes a bit."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from raysim.run_folder import cost_columns, experiment_record
from raysim.storage import atomic, lock
from tests.support.tiny_study import EXPERIMENT
from tests.support.training_ray import training
from tuning import generations
from tuning.dimension import Listed, Range
from tuning.generations import Descendant, EvolutionSection
from tuning.space import Space

Make = Callable[..., raysim.Experiment]

SPACE = {"client.optimizer.lr": {"log": [1e-3, 3.0]}, "server.optimizer.lr": {"grid": [0.01, 0.1, 0.3]}}


@pytest.fixture
def exp(tuned: Make) -> raysim.Experiment:
    """Four members with Adam on the server, three generations of a round."""
    keys = tuned(space=SPACE, objective={"name": "loss"}, evolution={"members": 4})
    return keys.changed({"rounds": 3, "evaluation.every": 1, "server.optimizer": {"name": "adam", "lr": 0.1}})


def rows(folder: Path) -> list[dict[str, Any]]:
    """The figures of a run."""
    found = pq.read_table(folder / "rounds.parquet")
    return found.drop_columns([name for name in found.column_names if cost_columns.tells_cost(name)]).to_pylist()


def test_the_worst_go_on_from_the_best_with_other_numbers(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = tuning.evolve(exp, dataset=small, path=tmp_path / "own")
    told = found.table.to_pylist()
    by = {(row["generation"], row["member"]): row for row in told}
    keys = list(SPACE)
    assert [row["rounds"] for row in told] == [1] * 4 + [2] * 4 + [3] * 4
    copied = 0
    for generation in (1, 2):
        before = [by[generation - 1, member] for member in range(4)]
        order = [row["member"] for row in sorted(before, key=lambda row: row["value"])]
        for member in range(4):
            row, own = by[generation, member], tmp_path / "own" / f"generation-{generation:03}" / f"member-{member}"
            parent = by[generation - 1, row["parent"]]
            came = rows(tmp_path / "own" / f"generation-{generation - 1:03}" / f"member-{row['parent']}")
            assert rows(own)[: len(came)] == came
            if member in order[-1:]:
                copied += 1
                assert row["parent"] in order[:1]
                rate = row[keys[0]] / parent[keys[0]]
                assert rate in (pytest.approx(1.25), pytest.approx(0.8)) or row[keys[0]] in (1e-3, 3.0)
            else:
                assert row["parent"] == member
                assert [row[key] for key in keys] == [parent[key] for key in keys]
            last = rows(own)[-1]
            assert (last["round"] + 1, last["eval/validation/loss"]) == (row["rounds"], row["value"])
    assert copied == 2
    assert found.value == min(row["value"] for row in told if row["generation"] == 2)
    assert (found.lineage[-1], found.spent["rounds"]) == (found.best, 12)
    assert {path.name for path in (tmp_path / "own").glob("*.*")} >= {"rates.png", "evolution.parquet"}
    shown, labels = found._repr_html_(), [label for label, _ in tuning.evolution_lines(found)]
    assert re.findall(r"<th [^>]*>(.*?)</th>", shown) == [label for label in labels if label != "picture"]
    assert shown.count('src="data:image/png;base64,') == 1
    assert re.search(rf"^best +member {found.best}: validation loss", str(found), re.MULTILINE)
    assert repr(found) == f"Evolution(name='test', best={found.best}, value={found.value}, path={found.path!r})"
    # One that never copies is a run by itself.
    (alone, *_) = (m for m in range(4) if by[1, m]["parent"] == m == by[2, m]["parent"])
    changes = {**{key: by[2, alone][key] for key in keys}, "evaluation.split": "validation", "tuning": None}
    raysim.run(exp.changed(changes), dataset=small.hold_out(0.2, 0), path=tmp_path / "alone", progress=False)
    assert rows(tmp_path / "alone") == rows(tmp_path / "own" / "generation-002" / f"member-{alone}")


def test_neither_interruptions_nor_workers_change_a_bit(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = exp.changed(["tuning.evolution.members=3"])
    whole = tuning.evolve(exp, dataset=small, path=tmp_path / "whole")
    with training(monkeypatch, {"here": 3}):
        several = tuning.evolve(exp.changed(["engine.workers=3"]), dataset=small, path=tmp_path / "several")
    assert several.table.equals(whole.table)
    count, write = itertools.count(), experiment_record.write_experiment

    def sometimes(*given: Any, **named: Any) -> None:
        # Within a copied folder, and between two.
        if next(count) in (1, 7, 13):
            raise KeyboardInterrupt
        write(*given, **named)

    monkeypatch.setattr(experiment_record, "write_experiment", sometimes)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            tuning.evolve(exp, dataset=small, path=tmp_path / "cut")
    cut = tuning.evolve(exp, dataset=small, path=tmp_path / "cut")
    assert cut.table.equals(whole.table)
    folders = sorted(path.parent.relative_to(tmp_path / "whole") for path in tmp_path.glob("whole/*/*/rounds.parquet"))
    assert len(folders) == 9
    for folder in folders:
        for name in ("several", "cut"):
            assert rows(tmp_path / name / folder) == rows(tmp_path / "whole" / folder)


def test_a_member_that_has_lost_its_checkpoints_is_not_trained_anew(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = tuning.evolve(exp, dataset=small, path=tmp_path / "own")
    member = tmp_path / "own" / "generation-002" / "member-3"
    shutil.rmtree(member / "checkpoints")
    with pytest.raises(tuning.StudyError, match=r"member-3 has lost its checkpoints of 2 rounds and more"):
        tuning.evolve(exp, dataset=small, path=tmp_path / "own")
    shutil.rmtree(member)
    assert tuning.evolve(exp, dataset=small, path=tmp_path / "own").table == found.table


def test_members_that_were_exchanged_are_noticed(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    space = {"server.optimizer.lr": {"grid": [0.1, 0.2, 0.3]}}
    alike = exp.changed({"tuning.space": space, "tuning.evolution": {"members": 8}})
    found = tuning.evolve(alike, dataset=small, path=tmp_path / "own").table.to_pylist()
    scored = {(row["generation"], row["member"]): row["value"] for row in found}
    one, other = next(
        (a, b)
        for a in found
        for b in found
        if a["generation"] == b["generation"] > 0
        and a["server.optimizer.lr"] == b["server.optimizer.lr"]
        and scored[a["generation"] - 1, a["parent"]] != scored[b["generation"] - 1, b["parent"]]
    )
    folder = tmp_path / "own" / f"generation-{one['generation']:03}"
    place, its = folder / f"member-{one['member']}", folder / f"member-{other['member']}"
    whole = place.rename(tmp_path / "whole")
    # They have the same settings, so only their parents' numbers tell them apart.
    shutil.copytree(whole, place)
    newest = max((its / "checkpoints").iterdir())
    shutil.copy(newest, place / "checkpoints")
    with pytest.raises(raysim.CheckpointError, match=rf"{newest.name} belongs to another run"):
        tuning.evolve(alike, dataset=small, path=tmp_path / "own")
    shutil.rmtree(place)
    shutil.copytree(its, place)
    with pytest.raises(tuning.StudyError, match=r"member-\d does not go on from .*member-\d, as the other members say"):
        tuning.evolve(alike, dataset=small, path=tmp_path / "own")


def test_a_member_of_a_later_generation_is_not_taken_for_its_ancestor(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    tuning.evolve(exp, dataset=small, path=tmp_path / "own")
    first = tmp_path / "own" / "generation-000" / "member-0"
    shutil.rmtree(first)
    shutil.copytree(tmp_path / "own" / "generation-002" / "member-0", first)
    with pytest.raises(tuning.StudyError, match=r"member-0 has 3 rounds, and its generation ends after 1"):
        tuning.evolve(exp, dataset=small, path=tmp_path / "own")


def test_a_share_that_makes_a_whole_number_of_members_makes_that_number() -> None:
    """0.29 times 100 is a little less than 29."""
    space = Space({"client.optimizer.lr": Range("log", 0.01, 1.0)})
    members = [Descendant({"client.optimizer.lr": 0.1})] * 100
    section = EvolutionSection(members=100, share=0.29)
    found = generations.next_generation(section, space, members, [float(m) for m in range(100)], seed=0, generation=1)
    assert [m for m, each in enumerate(found) if each.parent != m] == list(range(29))
    assert {each.parent for each in found[:29]} <= set(range(71, 100))


def test_two_do_not_evolve_in_one_folder(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    tuning.evolve(exp, dataset=small, path=tmp_path / "own")
    with lock.locked(tmp_path / "own"), pytest.raises(raysim.RunFolderError, match=r"own is .* written"):
        tuning.evolve(exp, dataset=small, path=tmp_path / "own")


def test_one_that_diverges_goes_on_from_another() -> None:
    space = Space({"a": Range("uniform", 1.0, 9.0), "b": Listed((0.1, 1.0), ordered=True)})
    members = [Descendant({"a": 2.0, "b": 0.1}), Descendant({"a": 4.0, "b": 1.0}), Descendant({"a": 8.0, "b": 0.1})]
    section = EvolutionSection(members=3)
    found = generations.next_generation(section, space, members, [None, 0.5, None], seed=0, generation=1)
    assert [member.parent for member in found] == [1, 1, 1]
    assert found[1].values == members[1].values
    for member in (found[0], found[2]):
        assert member.values["a"] in (5.0, 3.2)
        assert member.values["b"] in (0.1, 1.0)
    with pytest.raises(tuning.StudyError, match="All members have diverged"):
        generations.next_generation(section, space, members, [None] * 3, seed=0, generation=1)


def test_members_that_diverge_have_no_value(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    space = {"client.optimizer.lr": {"grid": [0.1, 1e6]}}
    keys = {"tuning.space": space, "model": {"name": "mlp", "hidden": [8]}, "server.optimizer": {"name": "sgd"}}
    found = tuning.evolve(exp.changed(keys), dataset=small, path=tmp_path)
    first = [row for row in found.table.to_pylist() if row["generation"] == 0]
    assert {row["client.optimizer.lr"] for row in first if row["value"] is None} == {1e6}
    assert any(row["value"] is None for row in first)
    # Their rounds were trained: what they were is in the cost, as it is in that of a study.
    done = [
        len(own) - row["rounds"] + 1
        for row in found.table.to_pylist()
        if (own := rows(tmp_path / f"generation-{row['generation']:03}" / f"member-{row['member']}"))
    ]
    assert found.spent["rounds"] == sum(done)


def test_a_fixed_clip_level_is_that_of_the_member(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """Every copy went on with its parent's level, and the table said another one."""
    key = "server.clip.fixed"
    found = tuning.evolve(
        exp.changed({"server.clip": {"fixed": 0.5}, "tuning.space": {key: {"log": [1e-3, 1.0]}}}),
        dataset=small,
        path=tmp_path,
    )
    told = found.table.to_pylist()
    for row in told:
        last = rows(tmp_path / f"generation-{row['generation']:03}" / f"member-{row['member']}")[-1]
        assert last["clip_level"] == row[key]
    assert len({row[key] for row in told}) > 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuning.evolution.every": 1, "evaluation.every": 2}, "multiple of evaluation.every = 2"),
        ({"tuning.evolution.every": 3}, r"got tuning\.evolution\.every = 3 and rounds = 3"),
        ({"evaluation.every": 9}, r"got evaluation\.every = 9 and rounds = 3"),
        ({"tuning.evolution.members": 1}, "greater than or equal to 2"),
        ({"tuning.seeds": 2}, "take more members"),
        ({"tuning.space": {"server.weighting": {"choices": ["examples", "uniform"]}}}, "choices have no order"),
        ({"tuning.objective": {"name": "rounds_to_target", "target": 0.5}}, "rounds_to_target"),
        ({"tuning.space": {"rounds": {"grid": [2, 4]}}}, "rounds: the members of raysim evolve train equally long"),
        (
            {
                "server.clip": {"fixed": 0.5},
                "server.privacy": {"name": "gaussian", "noise_multiplier": 2.0, "epsilon": 9.0},
            },
            r"server\.privacy\.epsilon beside noise_multiplier may end them before",
        ),
        ({"tuning.space": {"server.optimizer.v0": {"grid": [0.1, 0.2]}}}, "v0: it says how a run begins"),
        (
            {"server.clip": {"initial": 1.0}, "tuning.space": {"server.clip.initial": {"uniform": [0.1, 2.0]}}},
            "initial: it says how a run begins",
        ),
        ({"stop": {"budget": {"rounds": 2}}}, r"\[stop\] would end some"),
        ({"client.correction": {"name": "scaffold"}, "server.optimizer.name": "sgd"}, "clients keep states"),
    ],
)
def test_what_cannot_evolve(
    changes: dict[str, Any], said: str, exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    with pytest.raises(raysim.RaysimError, match=said):
        tuning.evolve(exp.changed(changes), dataset=small, path=tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_keys_that_no_member_has_are_said(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {**dict(exp.tuning or {}), "evolution": {"members": 2}}
    plain = exp.changed({"rounds": 2, "tuning": {key: keys[key] for key in ("space", "objective", "evolution")}})
    tuning.evolve(plain, dataset=small, path=tmp_path / "plain")
    assert "raysim evolve" not in caplog.text
    unused: Any = {"trials": 3, "budget": {"rounds": 5}, "sampler": {"name": "random"}, "final": 0}
    found = tuning.evolve(plain.changed({"trials": 2}), dataset=small, path=tmp_path / "own", **unused)
    assert found.table == tuning.evolve(plain, dataset=small, path=tmp_path / "plain").table
    assert "does not use tuning.sampler, tuning.trials, tuning.budget, tuning.final: all members train" in caplog.text
    assert "trials = 2 has no part in raysim evolve" in caplog.text
    keys_of_runs = {"checkpoint.best": "eval/validation/loss", "evaluation.split": "train"}
    tuning.evolve(plain.changed(keys_of_runs), dataset=small, path=tmp_path / "plain")
    assert "raysim evolve does not use evaluation.split, checkpoint.best: members are scored on" in caplog.text


def test_a_member_does_not_go_on_with_other_data(experiment: Make, tmp_path: Path) -> None:
    """Its parent would have trained on examples of its validation clients."""
    space = {"data.partition.alpha": {"grid": [0.1, 10.0]}}
    data = {"name": "digits", "clients": 10, "partition": {"name": "dirichlet", "alpha": 1.0}}
    with pytest.raises(raysim.ExperimentError, match=r"partition\.alpha: .*trained on its validation clients"):
        tuning.evolve(experiment(data=data, tuning={"space": space}), path=tmp_path / "own")
    assert not (tmp_path / "own").exists()


PRIVATE = {"server.privacy": {"name": "gaussian", "noise_multiplier": 2.0}, "server.clip": {"fixed": 0.5}}


@pytest.mark.parametrize("key", ["server.privacy.noise_multiplier", "server.clip.fixed", "cohort.size"])
def test_what_privacy_counts_does_not_change_while_a_run_goes_on(
    key: str, exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """Epsilon of all rounds was that of the newest number: it fell from round to round."""
    space = {"tuning.space": {key: {"grid": [1, 2]}}}
    with pytest.raises(raysim.ExperimentError, match=f"with another {key}: server.privacy counts all rounds"):
        tuning.evolve(exp.changed({**PRIVATE, **space}), dataset=small, path=tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_no_run_goes_on_from_another_that_privacy_counts_otherwise(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    first = exp.changed({**PRIVATE, "tuning": None, "rounds": 1})
    raysim.run(first, dataset=small, path=tmp_path / "first", executor="local")
    with raysim.Runs(first, dataset=small, executor="local") as runs:
        for changes in ({"server.privacy.noise_multiplier": 4.0}, {"server.privacy": None}, {"cohort.size": 1}):
            with pytest.raises(raysim.ExperimentError, match="counts all rounds of a run alike, but"):
                runs.branch(first.changed(changes), tmp_path / "next", tmp_path / "first")
        assert not (tmp_path / "next").exists()
        runs.branch(first.changed({"client.optimizer.lr": 0.3}), tmp_path / "next", tmp_path / "first")
    assert (tmp_path / "next").exists()


def test_a_folder_is_of_one_experiment(exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path) -> None:
    short = exp.changed(["rounds=2"])
    tuning.evolve(short, dataset=small, path=tmp_path / "own")
    with pytest.raises(tuning.StudyError, match=r"other settings: .*share"):
        tuning.evolve(short.changed(["tuning.evolution.share=0.2"]), dataset=small, path=tmp_path / "own")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(EXPERIMENT)
    call = CliRunner().invoke
    told = call(app, ["evolve", "tiny.toml", "--set", "tuning.evolution.members=2", "--no-progress", "--json"])
    assert told.exit_code == 0, told.stderr
    model = json.loads(told.stdout)["model"]
    assert model == f"runs/tiny-evolution/generation-001/member-{json.loads(told.stdout)['best']}"
    # Its folder is a run's.
    assert call(app, ["evaluate", model, "--json"]).exit_code == 0


def test_what_a_killed_process_left_is_removed(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    left = atomic.beside(tmp_path / "own" / "evolution.json")
    left.parent.mkdir()
    left.write_text("{")
    tuning.evolve(exp.changed({"rounds": 2, "tuning.evolution.members": 2}), dataset=small, path=left.parent)
    assert not left.exists()
