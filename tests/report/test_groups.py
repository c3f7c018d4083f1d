"""Runs that differ in seeds only are one method; what tells methods apart names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.report.groups import Group, group_runs, headline
from raysim.report.looks import GREY, NAMED, SERIES, looks
from raysim.report.runs import read_all
from tests.support.run_folders import accuracies, write


def of(folder: Path) -> tuple[list[Group], list[str]]:
    return group_runs(read_all([folder])[0])


def test_other_seeds_are_trials_and_other_settings_are_methods(tmp_path: Path) -> None:
    for size in (5, 10):
        for seed in range(3):
            write(tmp_path / f"{size}-{seed}", accuracies(0.5, 0.6), seed=seed, cohort={"size": size})
    groups, notes = of(tmp_path)
    assert [(group.label, group.keys, len(group.runs)) for group in groups] == [
        ("cohort.size = 5", {"cohort.size": 5}, 3),
        ("cohort.size = 10", {"cohort.size": 10}, 3),
    ]
    assert not notes


def test_how_closely_a_run_was_watched_and_where_it_ran_makes_no_method(tmp_path: Path) -> None:
    write(tmp_path / "a", accuracies(0.5, 0.6))
    write(tmp_path / "b", accuracies(0.5, 0.6), seed=1, evaluation={"every": 7}, engine={"workers": 3}, name="other")
    groups, _ = of(tmp_path)
    assert [len(group.runs) for group in groups] == [2]


def test_another_sample_of_clients_or_another_fine_tuning_is_another_method(tmp_path: Path) -> None:
    """Its figures are of other clients, or of other models: they are no trial of the same, and no duplicate."""
    for folder, clients in (("few", 3), ("many", 30)):
        write(tmp_path / "samples" / folder, accuracies(0.5, 0.6), evaluation={"clients": clients})
    groups, notes = of(tmp_path / "samples")
    assert [group.label for group in groups] == ["evaluation.clients = 3", "evaluation.clients = 30"]
    assert notes == ["Runs are compared whose evaluations take different samples: evaluation.clients is 3, 30."]
    for folder, lr in (("slow", 0.01), ("fast", 0.5)):
        write(tmp_path / "tuned" / folder, accuracies(0.5, 0.6), evaluation={"fine_tuning": {"steps": 1, "lr": lr}})
    groups, notes = of(tmp_path / "tuned")
    assert sorted(group.label for group in groups) == [f"evaluation.fine_tuning.lr = {lr}" for lr in (0.01, 0.5)]
    assert not notes


def test_the_same_settings_and_seeds_are_counted_once_the_longer_run(tmp_path: Path) -> None:
    write(tmp_path / "a", accuracies(0.5, 0.6))
    write(tmp_path / "b", accuracies(0.5, 0.6, 0.7), rounds=3)
    ((group,), notes) = of(tmp_path)
    assert [run.path.name for run in group.runs] == ["b"]
    assert [note.partition(" has ")[2].startswith("the settings and seeds of") for note in notes] == [True]


def test_another_choice_is_one_difference_and_its_own_keys_count_among_its_own(tmp_path: Path) -> None:
    for name, optimizer in {
        "a": {"name": "adam", "lr": 0.1},
        "b": {"name": "adam", "lr": 0.2},
        "c": {"name": "sgd", "lr": 1.0},
    }.items():
        write(tmp_path / name, accuracies(0.5, 0.6), server={"optimizer": optimizer})
    assert [group.label for group in of(tmp_path)[0]] == [
        "server.optimizer = adam, server.optimizer.lr = 0.1",
        "server.optimizer = adam, server.optimizer.lr = 0.2",
        "server.optimizer = sgd",
    ]


def test_methods_with_many_differences_are_called_by_their_names(tmp_path: Path) -> None:
    client = {"optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 3, "epochs": 2}
    write(tmp_path / "a", accuracies(0.5, 0.6), name="first")
    write(tmp_path / "b", accuracies(0.5, 0.6), name="second", client=client, cohort={"size": 9})
    groups, _ = of(tmp_path)
    assert [group.label for group in groups] == ["first", "second"]
    assert groups[1].keys["client.batch_size"] == 3


def test_runs_of_one_name_are_called_by_what_varies_among_them(tmp_path: Path) -> None:
    """As a study's trials beside another run, from which they differ in many keys."""
    for lr in (0.1, 0.5):
        client = {"optimizer": {"name": "sgd", "lr": lr}, "batch_size": 3, "epochs": 2}
        write(tmp_path / f"{lr}", accuracies(0.5, 0.6), name="study", client=client, cohort={"size": 7})
    write(tmp_path / "other", accuracies(0.5, 0.6), name="base")
    assert [group.label for group in of(tmp_path)[0]] == [
        "study, client.optimizer.lr = 0.1",
        "study, client.optimizer.lr = 0.5",
        "base",
    ]


def test_runs_of_a_scripts_own_model_are_told_apart_by_name(tmp_path: Path) -> None:
    for seed, name in enumerate(("mine", "mine", "yours")):
        write(tmp_path / f"{seed}", accuracies(0.5, 0.6), name=name, seed=seed, model=None)
    groups, _ = of(tmp_path)
    assert [(group.label, len(group.runs)) for group in groups] == [("run = mine", 2), ("run = yours", 1)]


@pytest.mark.parametrize("part", ["loss", "params"])
@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_runs_of_a_scripts_own_loss_or_values_are_told_apart_by_name(
    part: str, seeds: tuple[int, int], tmp_path: Path
) -> None:
    for name, seed in zip(("mine", "yours"), seeds, strict=True):
        write(tmp_path / name, accuracies(0.5, 0.6), name=name, seed=seed, passed=(part,))
    groups, notes = of(tmp_path)
    assert [group.label for group in groups] == [f"{part} = mine", f"{part} = yours"]
    assert not notes


def test_runs_from_other_initial_values_are_other_methods(tmp_path: Path) -> None:
    for name, init in {"drawn": None, "given": "a.safetensors"}.items():
        write(tmp_path / name, accuracies(0.5, 0.6), model={"name": "linear", "init": init})
    groups, notes = of(tmp_path)
    assert [group.label for group in groups] == ["model.init = none", "model.init = a.safetensors"]
    assert not notes


def test_other_data_are_a_warning_that_names_them(tmp_path: Path) -> None:
    for clients in (20, 30):
        write(tmp_path / "settings" / f"{clients}", accuracies(0.5, 0.6), data={"name": "digits", "clients": clients})
    assert of(tmp_path / "settings")[1] == ["Runs of different data are compared: data.clients is 20, 30."]
    for name, rate in {"one": 0.1, "other": 0.2}.items():
        client = {"optimizer": {"name": "sgd", "lr": rate}}
        write(tmp_path / "script" / name, accuracies(0.5, 0.6), data=None, data_fingerprint=name, client=client)
    (note,) = of(tmp_path / "script")[1]
    assert note.startswith("Runs of different data are compared: those of ")


OWN_TABLE = {"name": "arrow", "train": "own.parquet"}


def of_table(path: Path, file: str, seed: int, fingerprint: str, **settings: Any) -> None:
    data = {"name": "arrow", "train": f"{file}.parquet", **settings}
    write(path, accuracies(0.5, 0.6), data=data, seed=seed, data_fingerprint=fingerprint)


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_runs_of_other_tables_are_neither_trials_of_one_method_nor_counted_once(
    seeds: tuple[int, int], tmp_path: Path
) -> None:
    for file, seed in zip(("easy", "hard"), seeds, strict=True):
        of_table(tmp_path / file, file, seed, file)
    groups, notes = of(tmp_path)
    assert [group.label for group in groups] == ["data.train = easy.parquet", "data.train = hard.parquet"]
    assert notes[0] == "Runs of different data are compared: data.train is easy.parquet, hard.parquet."
    assert not any("counted" in note for note in notes)


def test_draws_by_the_seed_make_no_other_tables(tmp_path: Path) -> None:
    for seed in range(3):
        of_table(tmp_path / f"{seed}", "own", seed, f"drawn {seed}", holdout=0.5)
    of_table(tmp_path / "other", "other", 3, "drawn 3", holdout=0.5)
    assert [len(group.runs) for group in of(tmp_path)[0]] == [3, 1]


def test_a_table_in_another_folder_is_the_same_where_its_content_is(tmp_path: Path) -> None:
    for seed, file in enumerate(("here", "there")):
        of_table(tmp_path / file, file, seed, "the same")
    ((group,), notes) = of(tmp_path)
    assert (len(group.runs), notes) == (2, [])


def test_a_table_that_was_changed_between_runs_makes_two_methods(tmp_path: Path) -> None:
    for name in ("before", "later"):
        of_table(tmp_path / name, "own", 0, f"{name} 1234")
    groups, (note,) = of(tmp_path)
    assert [group.label for group in groups] == ["data.fingerprint = before 1", "data.fingerprint = later 12"]
    assert note.startswith("Runs of different data are compared: ")


@pytest.mark.parametrize(("seed", "sizes"), [(0, [1, 1]), (1, [2])], ids=["of one seed", "of two"])
def test_a_scripts_data_may_follow_from_the_seed_and_from_nothing_else(
    seed: int, sizes: list[int], tmp_path: Path
) -> None:
    for place, its in enumerate((0, seed)):
        found = f"drawn {place}"
        write(tmp_path / f"{place}", accuracies(0.5), data=None, name="mine", seed=its, data_fingerprint=found)
    assert [len(group.runs) for group in of(tmp_path)[0]] == sizes


def test_a_fingerprint_is_of_whichever_trial_has_one(tmp_path: Path) -> None:
    """An older raysim recorded none."""
    for seed, found in enumerate((None, "first 12", "second 1")):
        write(tmp_path / f"{seed}", accuracies(0.5), data=OWN_TABLE, seed=seed, data_fingerprint=found)
    labels = [group.label for group in of(tmp_path)[0]]
    assert labels == ["data.fingerprint = first 12", "data.fingerprint = second 1"]


def test_runs_of_a_scripts_data_have_none_beside_tables_that_were_changed(tmp_path: Path) -> None:
    for name in ("before", "later"):
        write(tmp_path / name, accuracies(0.5), data=OWN_TABLE, data_fingerprint=f"{name} 1234")
    write(tmp_path / "script", accuracies(0.5), data=None, name="mine", data_fingerprint="mine 1234")
    assert "data = none, run = mine" in [group.label for group in of(tmp_path)[0]]


def test_the_same_data_are_no_warning(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path / f"{seed}", accuracies(0.5, 0.6), seed=seed, data_fingerprint=f"dealt {seed}")
    assert of(tmp_path)[1] == []


def test_looks_are_distinct_until_there_are_too_many_and_then_the_best_are_named() -> None:
    assert len(set(looks([0.0] * NAMED))) == NAMED
    many = looks(float(i) for i in range(40))
    assert [i for i, look in enumerate(many) if look.is_named] == list(range(40 - len(SERIES), 40))
    assert {look.colour for look in many if not look.is_named} == {GREY}


def test_the_headline_is_the_test_accuracy_where_there_is_one(tmp_path: Path) -> None:
    row = {"loss": 1.0, "accuracy": 0.1, "eval/train/accuracy": 0.2, "eval/test/loss": 1.0, "eval/test/accuracy": 0.3}
    for number, best in enumerate(("eval/test/accuracy", "eval/train/accuracy", "eval/test/loss", "accuracy", "loss")):
        write(tmp_path / f"{number}", [row], rounds=1)
        assert headline(of(tmp_path / f"{number}")[0]) == best
        del row[best]


def test_runs_whose_part_of_a_script_has_other_code_are_other_methods(tmp_path: Path) -> None:
    """Also with other seeds, which would be averaged as trials of one method."""
    own = {"aggregator": {"name": "own"}}
    for place, digest in enumerate(("3.11/3:aaaa", "3.11/3:bbbb", "3.11/3:aaaa", "3.12/3:cccc")):
        code = {"aggregator": digest, "loss": "3.11/3:same"}
        write(
            tmp_path / f"{place}",
            accuracies(0.5),
            seed=place,
            server=own,
            passed=("aggregator",),
            code=code,
            # Their clients are dealt by the seed, which is no difference to be told.
            data_fingerprint=f"of seed {place}",
        )
    groups, notes = of(tmp_path)
    assert [[run.path.name for run in group.runs] for group in groups] == [["0", "2", "3"], ["1"]]
    assert [group.label for group in groups] == ["code of aggregator = aaaa", "code of aggregator = bbbb"]
    (note,) = notes
    assert note.startswith("The code of aggregator= differs between runs of the same settings, so they are methods of")
    assert all(str(tmp_path / name) in note for name in ("0", "1"))


def test_a_run_that_goes_on_from_another_is_no_trial_of_those_that_began_by_its_settings(tmp_path: Path) -> None:
    """Its first rounds were trained by other settings, which its record does not have."""
    for seed in range(2):
        write(tmp_path / f"whole-{seed}", accuracies(0.5, 0.6), seed=seed)
        write(tmp_path / f"branch-{seed}", accuracies(0.7, 0.8), seed=seed, goes_on=(1, f"of seed {seed}"))
    runs, notes = read_all([tmp_path])
    (note,) = notes
    assert all(str(tmp_path / f"branch-{seed}") in note for seed in range(2))
    assert note.endswith("goes on from another run: its first round is that run's, whose settings may be others.")
    groups, told = group_runs(runs)
    assert not told
    assert {group.label: [run.path.name for run in group.runs] for group in groups} == {
        "rounds of another run = 1": ["branch-0", "branch-1"],
        "rounds of another run = none": ["whole-0", "whole-1"],
    }


def test_runs_of_one_seed_that_go_on_from_different_runs_are_different_methods(tmp_path: Path) -> None:
    write(tmp_path / "0", accuracies(0.5, 0.6), goes_on=(1, "a"))
    write(tmp_path / "1", accuracies(0.7, 0.8), goes_on=(1, "b"))
    write(tmp_path / "2", accuracies(0.7, 0.8), goes_on=(1, "b"))
    groups, (told,) = of(tmp_path)
    assert [[run.path.name for run in group.runs] for group in groups] == [["0"], ["1"]]
    assert "2 has the settings and seeds of" in told
    assert len({group.label for group in groups}) == 2
    # Their data are the same: a label by these would name what does not tell them apart.
    assert not any("fingerprint" in group.label or "data" in group.label for group in groups)


def test_runs_of_the_same_code_or_of_none_that_is_known_are_one_method(tmp_path: Path) -> None:
    own = {"aggregator": {"name": "own"}}
    known = {"aggregator": "3.11/3:aaaa"}
    for place, code in enumerate((known, known, None)):
        write(tmp_path / f"{place}", accuracies(0.5), seed=place, server=own, passed=("aggregator",), code=code)
    ((group,), notes) = of(tmp_path)
    assert len(group.runs) == 3
    assert not notes


def test_labels_tell_code_apart_only_where_it_alone_does(tmp_path: Path) -> None:
    for place, digest in enumerate(("3.11/3:aaaa", "3.11/3:bbbb")):
        own = {"aggregator": {"name": "own", "label": f"rule-{place}"}}
        write(tmp_path / f"{place}", accuracies(0.5), server=own, passed=("aggregator",), code={"aggregator": digest})
    groups, notes = of(tmp_path)
    assert [group.label for group in groups] == [f"server.aggregator = rule-{place}" for place in range(2)]
    assert not notes


def test_code_that_not_all_have_tells_no_methods_apart(tmp_path: Path) -> None:
    own = {"aggregator": {"name": "own"}}
    for place, (digest, data) in enumerate((("3.11/3:aaaa", "one"), ("3.11/3:bbbb", "one"), (None, "another"))):
        code = None if digest is None else {"aggregator": digest}
        write(
            tmp_path / f"{place}",
            accuracies(0.5),
            server=own,
            data=OWN_TABLE,
            data_fingerprint=data,
            passed=("aggregator",),
            code=code,
        )
    groups, notes = of(tmp_path)
    assert [len(group.runs) for group in groups] == [1, 1, 1]
    assert not any("code of" in group.label for group in groups)
    assert any(note.startswith("Runs of different data are compared") for note in notes)
