"""What a study's trials are measured on, and that the test split is not part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

import raysim
from raysim.data.sources.digits import Digits
from tests.support.small_data import make_clients
from tuning import protocol, section_of

Make = Callable[..., raysim.Experiment]
DIGITS = {"name": "digits", "clients": 20}
KEYS = {"space": {"client.optimizer.lr": {"grid": [0.1, 1]}}}


def of(experiment: raysim.Experiment) -> raysim.Experiment:
    return protocol.evaluated_on_validation(experiment, section_of(experiment), None)


def test_a_fifth_of_the_training_clients_validate(experiment: Make) -> None:
    measured = of(experiment(data=DIGITS, tuning=KEYS))
    assert measured.data is not None
    assert (measured.data.holdout, measured.evaluation.split) == (0.2, "validation")
    made = raysim.dataset_of(measured)
    assert made.validation is not None
    assert (len(made.train), len(made.validation)) == (16, 4)


def test_the_test_split_is_recorded_if_that_is_asked_for(experiment: Make) -> None:
    asked = experiment(data=DIGITS, tuning={**KEYS, "record_test": True})
    assert of(asked).evaluation.split == ("validation", "test")
    without = raysim.FederatedDataset.from_clients(train=make_clients([9] * 10))
    with pytest.raises(raysim.ExperimentError, match=r"tuning\.record_test .* the test split, .* have none"):
        protocol.evaluated_on_validation(asked, section_of(asked), without)


@pytest.mark.parametrize("held", [{"holdout": 0.5}, {"holdout_examples": 0.25}])
def test_what_the_file_holds_out_stays(held: dict[str, float], experiment: Make) -> None:
    measured = of(experiment(data={**DIGITS, **held}, tuning=KEYS))
    assert isinstance(measured.data, Digits)
    kept = {"holdout": measured.data.holdout, "holdout_examples": measured.data.holdout_examples}
    assert kept == {"holdout": 0.0, "holdout_examples": 0.0, **held}


def test_a_script_s_dataset_is_divided_by_clients(small: raysim.FederatedDataset, tuned: Make) -> None:
    held = protocol.with_validation_clients(tuned(), section_of(tuned()), small)
    assert held is not None
    assert held.validation is not None
    assert (len(held.train), len(held.validation)) == (8, 2)
    assert protocol.with_validation_clients(tuned(), section_of(tuned()), held) is held


def test_the_objective_s_percentile_is_computed(experiment: Make) -> None:
    keys = {**KEYS, "objective": {"name": "percentile", "percentile": 12.5}}
    assert 12.5 in of(experiment(data=DIGITS, tuning=keys)).evaluation.percentiles


def test_every_configuration_has_the_same_seeds(experiment: Make) -> None:
    exp = experiment(data=DIGITS, seed=5, tuning={**KEYS, "seeds": 3})
    tuning = section_of(exp)
    one, other = (protocol.runs_of(of(exp), tuning, {"client.optimizer.lr": lr}) for lr in (0.1, 1.0))
    assert [run.seed for run in one] == [run.seed for run in other] == [5, 6, 7]
    # What is training and what validation is the same for all seeds.
    assert {run.data.seed for run in one if run.data} == {5}
    assert [run.client.optimizer.lr for run in one] == [0.1] * 3


@pytest.mark.parametrize("keys", [("name", "lr", "beta2"), ("lr", "beta2", "name")])
def test_a_choice_keeps_what_was_sampled_for_it(keys: tuple[str, ...], experiment: Make) -> None:
    sampled = {"name": "adam", "lr": 0.25, "beta2": 0.75}
    values = {f"server.optimizer.{key}": sampled[key] for key in keys}
    exp = experiment(data=DIGITS, tuning=KEYS)
    for made in (*protocol.runs_of(of(exp), section_of(exp), values), protocol.final_experiment(exp, values)):
        optimizer = made.server.optimizer.model_dump()
        assert {key: optimizer[key] for key in sampled} == sampled


def test_the_end_is_on_all_training_clients(experiment: Make) -> None:
    exp = experiment(data={**DIGITS, "holdout": 0.3}, evaluation={"split": "validation"}, tuning=KEYS)
    final = protocol.final_experiment(exp, {"client.optimizer.lr": 1.0})
    assert final.data is not None
    assert (final.data.holdout, final.evaluation.split, final.tuning) == (0.0, "test", None)
    several = experiment(data=DIGITS, evaluation={"split": ["validation", "train", "test"]}, tuning=KEYS)
    assert protocol.final_experiment(several, {}).evaluation.split == ("train", "test")


def test_only_what_watches_clients_that_are_there_stays(experiment: Make) -> None:
    target, patience = {"metric": "eval/validation/loss", "value": 0.5}, {"metric": "loss", "evaluations": 3}
    watches = {"checkpoint": {"best": "eval/validation/loss"}, "stop": {"target": target, "patience": patience}}
    exp = experiment(data={**DIGITS, "holdout": 0.3}, tuning=KEYS, **watches)
    trial, final = of(exp), protocol.final_experiment(exp, {})
    assert (trial.stop, trial.checkpoint) == (exp.stop, exp.checkpoint)
    assert final.stop is not None
    assert set(final.stop.metrics) == {"stop.patience.metric"}
    assert final.checkpoint.best is None
    assert protocol.final_experiment(experiment(data=DIGITS, tuning=KEYS, stop={"target": target}), {}).stop is None
    on_test = of(experiment(data=DIGITS, tuning=KEYS, checkpoint={"best": "eval/test/loss"}))
    assert on_test.checkpoint.best is None


def test_recorded_tests_end_no_trial(experiment: Make) -> None:
    asked = experiment(
        data=DIGITS,
        tuning={**KEYS, "record_test": True},
        stop={"patience": {"metric": "eval/test/loss", "evaluations": 1}},
    )
    with pytest.raises(
        raysim.ExperimentError, match=r"stop\.patience\.metric.*by the test split.*eval/validation/loss"
    ):
        of(asked)


@pytest.mark.parametrize(("clients", "share", "left"), [(2, 0.1, "0"), (2, 0.9, "2")])
def test_clients_are_left_on_both_sides(clients: int, share: float, left: str, experiment: Make) -> None:
    exp = experiment(data={**DIGITS, "clients": clients}, cohort={"size": 1}, tuning={**KEYS, "holdout": share})
    with pytest.raises(raysim.ExperimentError, match=f"at least one training and one validation client.* is {left}"):
        of(exp)


def test_regression_has_no_accuracy(tuned: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train={k: ([[1.0]] * 3, [0.5] * 3) for k in "abcde"})
    with pytest.raises(raysim.ExperimentError, match="accuracy needs classes"):
        protocol.evaluated_on_validation(tuned(), section_of(tuned()), data)


class Untouchable:
    """A split that nobody may look into."""

    def __len__(self) -> int:
        return 2

    def sizes(self, positions: Any = None) -> NoReturn:
        raise AssertionError("the test split was touched")

    client = id_of = position_of = arrays = sizes


def test_a_study_never_touches_the_test_split(small: raysim.FederatedDataset, tuned: Make, tmp_path: Any) -> None:
    import tuning

    guarded = replace(small, test=Untouchable())
    exp = tuned(final=0, objective={"name": "loss"})
    study = tuning.tune(exp, dataset=guarded, path=tmp_path)
    assert study.counts == {"finished": 3}
    assert not any("test" in name for name in study.trials.column_names)
