"""Padding, unknown words and marks: what loss and accuracy count of a row of labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim.client.trainers import loss_gradient
from raysim.data import DatasetWriter, FederatedDataset, Field
from raysim.data.describe import describe
from raysim.errors import DataError
from raysim.models.task import Task, cross_entropy, hits, task_for
from raysim.report.label_picture import shown_labels

PAD, WORD, OTHER, UNKNOWN, END = range(5)
MASKED = task_for(5, None, padding=PAD, uncounted=(UNKNOWN, END))


def sure_of(labels: list[list[int]]) -> torch.Tensor:
    """Outputs that give one label all the weight at each place."""
    return 100 * torch.nn.functional.one_hot(torch.tensor(labels), 5).double()


@pytest.mark.parametrize("task", [MASKED, task_for(5, None)], ids=["padded", "whole"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_outputs_of_few_digits_do_not_round_the_share_of_hits(task: Task, dtype: torch.dtype) -> None:
    targets = torch.tensor([[WORD] * 7])
    outputs = sure_of([[WORD, WORD, WORD, OTHER, OTHER, OTHER, OTHER]]).to(dtype)
    assert task.correct is not None
    assert task.correct(outputs, targets).item() == pytest.approx(3 / 7, rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("places", [None, 7], ids=["one_label", "several_labels"])
@pytest.mark.parametrize("task", [MASKED, task_for(5, None)], ids=["padded", "whole"])
def test_outputs_of_few_digits_do_not_round_the_losses_of_an_evaluation(
    task: Task, places: int | None, dtype: torch.dtype
) -> None:
    if places is None and task is MASKED:
        pytest.skip("padding marks places of a row")
    shape = (9,) if places is None else (9, places)
    outputs = torch.randn(*shape, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.full(shape, WORD)
    exact = -torch.log_softmax(outputs.double(), -1)[..., WORD]
    with torch.no_grad():
        losses = task.losses(outputs, targets)
    expected = exact if places is None else exact.mean(1)
    assert losses.double().tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_accuracy_is_over_places_with_words_only() -> None:
    targets = torch.tensor([[WORD, OTHER, UNKNOWN, END], [WORD, END, PAD, PAD]])
    outputs = sure_of([[WORD, WORD, UNKNOWN, END], [WORD, END, PAD, PAD]])
    assert MASKED.correct is not None
    assert MASKED.counted is not None
    # Two of the three words are right; right guesses of marks and padding are not counted.
    assert MASKED.correct(outputs, targets).tolist() == [1 / 4, 1 / 4]
    assert MASKED.counted(targets).tolist() == [2 / 4, 1 / 4]


def test_the_loss_is_the_mean_over_all_places_but_padding() -> None:
    targets = torch.tensor([[WORD, UNKNOWN, END, PAD], [WORD, PAD, PAD, PAD], [PAD, PAD, PAD, PAD]])
    outputs = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = [cross_entropy(row, target) for row, target in zip(outputs, targets, strict=True)]
    expected = torch.stack([each[0][:3].mean(), each[1][0], torch.tensor(0.0, dtype=torch.float64)])
    torch.testing.assert_close(MASKED.losses(outputs, targets), expected)


def test_a_place_of_padding_may_hold_anything() -> None:
    targets = torch.tensor([[WORD, PAD]])
    outputs = torch.zeros(1, 2, 5).index_fill(1, torch.tensor([1]), math.inf)
    assert MASKED.losses(outputs, targets).tolist() == pytest.approx([math.log(5)])


labels = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4)


@given(labels=labels, seed=st.integers(0, 1000))
def test_the_gradient_by_hand_is_autograds(labels: list[list[int]], seed: int) -> None:
    targets = torch.tensor(labels)
    outputs = torch.randn(*targets.shape, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    outputs.requires_grad_()
    (expected,) = torch.autograd.grad(MASKED.losses(outputs, targets).sum(), outputs)
    made, factor, _ = loss_gradient.for_task(MASKED)(outputs.detach(), targets)
    torch.testing.assert_close(made * factor, expected)
    assert loss_gradient.by_rows(MASKED)


@given(labels=labels, seed=st.integers(0, 1000))
def test_without_marked_labels_it_is_the_plain_task(labels: list[list[int]], seed: int) -> None:
    targets = torch.tensor(labels)
    outputs = torch.randn(*targets.shape, 5, generator=torch.Generator().manual_seed(seed))
    unmarked = task_for(5, None, padding=9, uncounted=(10,))
    assert unmarked.correct is not None
    torch.testing.assert_close(unmarked.losses(outputs, targets), cross_entropy(outputs, targets))
    torch.testing.assert_close(unmarked.correct(outputs, targets), hits(outputs, targets))
    assert task_for(5, None) == Task(cross_entropy, hits)


BY_PLACE = task_for(5, None, padding=-1, by_place=True)


@given(labels=st.lists(st.lists(st.integers(-1, 4), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_gradient_by_hand_of_a_mean_over_places_is_autograds(labels: list[list[int]]) -> None:
    targets = torch.tensor(labels)
    outputs = torch.randn(*targets.shape, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs.requires_grad_()
    mean = BY_PLACE.mean(BY_PLACE.losses(outputs, targets), targets, targets)
    places = targets != -1
    if places.any():
        torch.testing.assert_close(mean, cross_entropy(outputs[places], targets[places]).mean())
    (expected,) = torch.autograd.grad(mean, outputs)
    made, factor, _ = loss_gradient.for_task(BY_PLACE)(outputs.detach(), targets)
    torch.testing.assert_close(made * factor / len(targets), expected)
    assert not loss_gradient.by_rows(BY_PLACE)


def test_a_mean_over_places_needs_padding() -> None:
    with pytest.raises(DataError, match="padding must say which"):
        Field((4,), "int64", by_place=True)


def test_a_loss_of_the_users_is_averaged_over_examples() -> None:
    own = task_for(5, cross_entropy, padding=0, by_place=True)
    assert own.weights is None


def test_marks_are_for_rows_of_labels() -> None:
    with pytest.raises(DataError, match="mark places of a row"):
        Field((), "int64", padding=0)


class Guess(nn.Module):
    """WORD at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([3.0, 9.0, 2.0, 8.0, 7.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias.expand(*x.shape, 5)


def texts(path: Any) -> FederatedDataset:
    rows = {
        "long": [[WORD, OTHER, UNKNOWN, END], [OTHER, OTHER, WORD, END]],
        "short": [[WORD, END, PAD, PAD]],
        "none": [[END, PAD, PAD, PAD]],
    }
    with DatasetWriter(
        path, Field((4,), "int64"), Field((4,), "int64", padding=PAD, uncounted=(UNKNOWN, END)), 5
    ) as to:
        for split in ("train", "test"):
            for client, y in rows.items():
                to.write(split, client, np.zeros((len(y), 4), np.int64), np.array(y))
    return FederatedDataset.open(path)


@pytest.mark.parametrize("trainer", ["one_by_one", "vmap"])
def test_a_run_reports_what_counts(tmp_path: Any, trainer: str) -> None:
    """The learning rate is too small for the guess to change."""
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "client": {"optimizer": {"name": "sgd", "lr": 1e-9}, "batch_size": 1},
            "cohort": {"size": 3},
            "engine": {"workers": 0, "trainer": trainer, "dtype": "float64"},
            "evaluation": {"every": 1},
        }
    )
    data = texts(tmp_path / "data")
    result = raysim.run(exp, dataset=data, model=Guess, path=tmp_path / "run")
    row = result.rounds.to_pylist()[-1]
    # Words: [1 of 2, 1 of 3], [1 of 1], none: 3 of 6.
    assert row["eval/test/accuracy"] == pytest.approx(3 / 6)
    by_client = {each["client"]: each["accuracy"] for each in result.clients.to_pylist()}
    assert by_client["long"] == pytest.approx(2 / 5)
    assert by_client["short"] == 1
    assert math.isnan(by_client["none"])
    assert row["eval/test/p50"] == pytest.approx((2 / 5 + 1) / 2)
    # In training a client's accuracy has the weight of its examples.
    assert row["accuracy"] == pytest.approx((2 * 2 / 5 + 1 * 1 + 1 * 0) / 4)


def test_the_marks_are_part_of_the_data(tmp_path: Any) -> None:
    opened = texts(tmp_path / "data")
    assert (opened.y.padding, opened.y.uncounted) == (PAD, (UNKNOWN, END))
    clients = {opened.train.id_of(k): opened.train.client(k) for k in range(3)}
    plain = FederatedDataset.from_clients(clients, test=clients)
    assert plain.fingerprint != opened.fingerprint


@pytest.mark.parametrize("trainer", ["fused", "stacked", "vmap"])
def test_every_form_leaves_padding_out(tmp_path: Any, trainer: str) -> None:
    def final(trainer: str) -> dict[str, torch.Tensor]:
        exp = raysim.Experiment.model_validate(
            {
                "rounds": 2,
                "client": {"optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 1, "epochs": 2},
                "cohort": {"size": 3},
                "engine": {"workers": 0, "trainer": trainer, "dtype": "float64"},
            }
        )
        *_, last = raysim.rounds(exp, dataset=texts(tmp_path / trainer), model=words_to_words)
        return {name: value.clone() for name, value in last.params.items()}

    made, expected = final(trainer), final("one_by_one")
    for name, value in expected.items():
        torch.testing.assert_close(made[name], value, rtol=1e-9, atol=1e-12)


def by_place(path: Any) -> FederatedDataset:
    rows = {
        "long": [[WORD, WORD, WORD, OTHER], [WORD, WORD, -1, -1]],
        "short": [[OTHER, -1, -1, -1]],
        "none": [[-1] * 4],
    }
    with DatasetWriter(path, Field((4,), "int64"), Field((4,), "int64", padding=-1, by_place=True), 5) as to:
        for split in ("train", "test"):
            for client, y in rows.items():
                to.write(split, client, np.zeros((len(y), 4), np.int64), np.array(y))
    return FederatedDataset.open(path)


def test_a_run_reports_loss_and_perplexity_by_place(tmp_path: Any) -> None:
    """The learning rate is too small for the guess to change; fine-tuning scores clients before and after."""
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "client": {"optimizer": {"name": "sgd", "lr": 1e-9}, "batch_size": 1},
            "cohort": {"size": 3},
            "evaluation": {"fine_tuning": {"steps": 1}},
            "engine": {"workers": 0, "dtype": "float64"},
        }
    )
    result = raysim.run(exp, dataset=by_place(tmp_path / "data"), model=Guess, path=tmp_path / "run")
    (row,) = result.rounds.to_pylist()
    word, other = -torch.log_softmax(Guess().bias.detach().double(), -1)[[WORD, OTHER]]
    loss = float(5 * word + 2 * other) / 7
    assert row["eval/test/loss"] == pytest.approx(loss)
    assert row["eval/test/perplexity"] == pytest.approx(math.exp(loss))
    assert row["eval/test/accuracy"] == pytest.approx(5 / 7)
    assert row["eval_tuned/test/perplexity"] == pytest.approx(math.exp(loss))
    losses = {"long": float(5 * word + other) / 6, "short": float(other), "none": 0.0}
    rows = {own["client"]: own for own in result.clients.to_pylist() if own["split"] == "test"}
    for client, wanted in losses.items():
        assert rows[client]["loss"] == pytest.approx(wanted)
        assert rows[client]["perplexity"] == pytest.approx(math.exp(wanted))
    # A round's loss is the mean of the clients' by their examples: each local step here has one.
    assert row["loss"] == pytest.approx((2 * losses["long"] + losses["short"] + losses["none"]) / 4)


def test_a_perplexity_can_choose_the_best_model(tmp_path: Any) -> None:
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "client": {"optimizer": {"name": "sgd", "lr": 0.1}},
            "cohort": {"size": 3},
            "checkpoint": {"best": "eval/test/perplexity"},
            "engine": {"workers": 0},
        }
    )
    assert raysim.run(exp, dataset=by_place(tmp_path / "data"), model=Guess, path=tmp_path / "run").rounds.num_rows == 1


def words_to_words() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))


def test_padding_is_no_label_of_a_dataset(tmp_path: Any) -> None:
    data = texts(tmp_path / "data")
    said = [line.split() for line in describe(data).splitlines()]
    assert said.count([f"{PAD}", "0", "0.0", "%"]) == len(data.splits)
    counts, ids, *_ = shown_labels(data, "train")
    # WORD 2, OTHER 3, UNKNOWN 1 and END 2 times in "long".
    assert dict(zip(ids, counts.T.tolist(), strict=True)) == {
        "long": [0, 2, 3, 1, 2],
        "short": [0, 1, 0, 0, 1],
        "none": [0, 0, 0, 0, 1],
    }


def test_padding_is_no_label_that_cohorts_have_alike(tmp_path: Any) -> None:
    """The cosine of "none", one END, with all three clients: 4 / |(3, 3, 1, 4)|."""
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "cohort": {"sampler": {"name": "replay", "cohorts": [["none"]]}},
            "server": {"diagnostics": {"labels": True}},
            "engine": {"workers": 0},
        }
    )
    (done,) = raysim.rounds(exp, dataset=texts(tmp_path / "data"), model=Guess)
    assert done.metrics["label_similarity"] == pytest.approx(4 / math.sqrt(3**2 + 3**2 + 1**2 + 4**2))
