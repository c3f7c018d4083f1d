"""Trainer and chunk size: what "auto" means, and what cannot be had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.client.trainers.trainer_table import TrainingConditions, choose
from raysim.errors import ExperimentError, ModelError
from raysim.models.lstm import Lstm
from raysim.models.task import Task, task_for
from tests.support.kernel import needs_kernel

TINY = nn.Linear(60, 10)
MIDDLE = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
LARGE = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
RECURRENT = nn.Sequential(Lstm(8, 64, 1), nn.Linear(64, 90))
OWN = nn.Sequential(nn.Linear(60, 10), nn.Softplus())


def beside_dropout(*layers: nn.Module) -> nn.Module:
    """What the kernel does not take."""
    return nn.Sequential(nn.Dropout(0.5), *layers)


STACKED = beside_dropout(TINY)
FUSED = beside_dropout(MIDDLE)


def chosen(
    module: nn.Module, task: Task | None = None, obstacles: StepObstacles | None = None, **changes: Any
) -> TrainerChoice:
    given: dict[str, Any] = {
        "trainer": "auto", "chunk_size": "auto", "precision": "float32", "dtype": "float32", "device_kind": "cpu",
        "batch_size": 10, "by_kernel": True, "threads": 1,
    }  # fmt: skip
    found = obstacles or StepObstacles()
    return choose(TrainingConditions(**(given | changes)), module, task or task_for(10, None), None, lambda *_: found)


@pytest.mark.parametrize(
    ("module", "trainer", "usual"),
    [
        (TINY, "compiled", 64),
        (MIDDLE, "compiled", 16),
        (LARGE, "compiled", 4),
        (nn.Linear(3000, 1000), "fused", 4),
        (STACKED, "stacked", 64),
        (FUSED, "interpreted", 16),
        (OWN, "interpreted", 32),
        # Of a size at which others are stacked.
        (RECURRENT, "interpreted", 32),
        (nn.Sequential(Lstm(8, 16, 1), nn.Linear(16, 90)), "stacked", 64),
    ],
)
def test_on_a_cpu_the_size_decides(module: nn.Module, trainer: str, usual: int) -> None:
    choice = chosen(module)
    assert (choice.trainer, choice.usual) == (trainer, usual)


@pytest.mark.parametrize(
    ("batch_size", "places", "trainer"), [(4, 20, "stacked"), (4, 80, "interpreted"), (20, 20, "interpreted")]
)
def test_a_tiny_lstm_is_stacked_where_a_batch_has_few_places(batch_size: int, places: int, trainer: str) -> None:
    needs_kernel()
    small = nn.Sequential(Lstm(8, 16, 1), nn.Linear(16, 90))
    assert chosen(small, batch_size=batch_size, places=places).trainer == trainer
    # Without the passes it is stacked.
    for without in ({"precision": "bf16"}, {"threads": 2}, {"batch_size": "full"}):
        given = {"batch_size": batch_size, "places": places} | without
        assert chosen(small, **given).trainer == "stacked"


@pytest.mark.parametrize(("features", "most"), [(60, 512), (1_000, 104), (4_000, 64)])
def test_a_stack_of_tiny_clients_may_have_many_and_one_of_larger_ones_fewer(features: int, most: int) -> None:
    choice = chosen(beside_dropout(nn.Linear(features, 10)))
    assert (choice.trainer, choice.usual, choice.most) == ("stacked", 64, most)


def test_overhead_weighs_less_the_more_an_example_costs_and_nothing_without_a_client_axis() -> None:
    overhead = [chosen(beside_dropout(nn.Linear(features, 10))).overhead for features in (10, 100, 1_000, 4_000)]
    assert overhead == sorted(overhead, reverse=True)
    assert overhead[0] > 10 * overhead[-1] > 0
    assert chosen(TINY).overhead == chosen(FUSED).overhead == chosen(OWN).overhead == 0


@pytest.mark.parametrize("module", [TINY, MIDDLE, LARGE, RECURRENT])
def test_on_a_card_whatever_can_be_stacked_is(module: nn.Module) -> None:
    assert chosen(module, device_kind="cuda").trainer == "stacked"


def test_a_loss_of_the_users_is_not_stacked() -> None:
    own = task_for(10, lambda outputs, targets: outputs.sum(1))
    assert chosen(TINY, own).trainer == "interpreted"
    with pytest.raises(ModelError, match="a loss of your own may look at its whole batch"):
        chosen(TINY, own, trainer="stacked")


def test_a_mean_over_places_is_not_stacked() -> None:
    by_place = task_for(10, None, padding=-1, by_place=True)
    assert chosen(TINY, by_place).trainer == "interpreted"
    with pytest.raises(ModelError, match="their number, which differs between the clients"):
        chosen(TINY, by_place, trainer="stacked")


def test_a_batch_in_pieces_is_computed_by_autograd() -> None:
    assert chosen(TINY, accumulate=2).trainer == "one_by_one"
    with pytest.raises(ModelError, match=r"'fused' cannot be used: client.accumulate = 2 adds gradients of autograd"):
        chosen(TINY, trainer="fused", accumulate=2)


@pytest.mark.parametrize(
    ("module", "task", "reason"),
    [
        (nn.Sequential(nn.BatchNorm1d(3)), task_for(10, None), "BatchNorm '0' takes its statistics"),
        (TINY, task_for(10, lambda outputs, targets: outputs.sum(1)), "a loss of your own may look at the whole one"),
    ],
)
def test_a_batch_whose_examples_depend_on_each_other_stays_whole(module: nn.Module, task: Task, reason: str) -> None:
    assert chosen(module, task).trainer != "stacked"
    with pytest.raises(ModelError, match=reason):
        chosen(module, task, accumulate=2)


def test_the_reason_names_the_layer() -> None:
    with pytest.raises(ModelError, match=r"engine.trainer = 'fused' cannot be used: layer '1' \(Softplus\)"):
        chosen(OWN, trainer="fused")


def test_a_given_chunk_size_is_kept_for_any_cohort() -> None:
    assert [chosen(TINY, chunk_size=7).chunk_size(cohort) for cohort in (10, 1000)] == [7, 7]


def test_small_cohorts_are_cut_finer_so_that_workers_stay_level() -> None:
    assert [chosen(STACKED).chunk_size(cohort) for cohort in (1, 3, 60, 600)] == [1, 1, 20, 60]
    assert [chosen(TINY).chunk_size(cohort) for cohort in (1, 3, 60, 600)] == [1, 1, 15, 60]


@pytest.mark.parametrize(("batch_size", "trainer"), [(64, "compiled"), (65, "interpreted"), ("full", "fused")])
def test_the_kernel_takes_small_batches(batch_size: int | str, trainer: str) -> None:
    assert chosen(MIDDLE, batch_size=batch_size).trainer == trainer
    assert chosen(TINY, batch_size=batch_size).trainer == "compiled"


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_reduced_precision_needs_float32_weights(precision: str) -> None:
    with pytest.raises(ExperimentError, match=r"needs engine\.dtype = 'float32'"):
        chosen(TINY, precision=precision, dtype="float64")


def test_tf32_needs_a_card() -> None:
    with pytest.raises(ExperimentError, match="a precision of NVIDIA cards"):
        chosen(TINY, precision="tf32")
    assert chosen(TINY, precision="tf32", device_kind="cuda").trainer == "stacked"


def test_with_several_threads_the_kernel_takes_tiny_clients_only() -> None:
    assert [chosen(module, threads=2).trainer for module in (TINY, MIDDLE)] == ["compiled", "fused"]


def test_the_kernel_takes_plain_sgd_and_beside_it_the_forms_that_step_together() -> None:
    assert [chosen(module, by_kernel=False).trainer for module in (TINY, MIDDLE)] == ["stacked", "interpreted"]


def test_a_chunk_of_the_kernel_weighs_more_examples_the_less_they_cost() -> None:
    calls = [chosen(module).call for module in (TINY, MIDDLE, LARGE)]
    assert calls == sorted(calls, reverse=True)
    assert calls[0] > 10 * calls[1] > 0
    assert chosen(FUSED).call == chosen(STACKED).call == 0


def test_the_precision_does_not_change_the_trainer_but_where_there_is_a_kernel() -> None:
    assert [chosen(module, precision="bf16").trainer for module in (TINY, MIDDLE)] == ["stacked", "fused"]
    assert [chosen(FUSED, precision=precision).trainer for precision in ("float32", "bf16")] == ["interpreted", "fused"]
    assert [chosen(OWN, precision=precision).trainer for precision in ("float32", "bf16")] == [
        "interpreted",
        "recorded",
    ]
    # Its LSTM stays in float32.
    assert [chosen(RECURRENT, precision=precision).trainer for precision in ("float32", "bf16")] == [
        "interpreted",
        "recorded",
    ]
    for module, device_kind in ((STACKED, "cpu"), (STACKED, "cuda"), (RECURRENT, "cuda")):
        exact, reduced = (
            chosen(module, precision=precision, device_kind=device_kind) for precision in ("float32", "bf16")
        )
        assert exact == reduced


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), "draws"),
        (nn.LSTM(3, 2), "no batching rule"),
        (Lstm(3, 2, 1), "no batching rule"),
        (nn.BatchNorm1d(3), "buffers"),
    ],
)
def test_vmap_says_what_it_cannot_take(module: nn.Module, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        chosen(module, trainer="vmap")


def test_choosing_draws_nothing() -> None:
    before = torch.get_rng_state()
    chosen(TINY)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_of_which_an_operator_is_not_known_have_their_hand_written_backward() -> None:
    unknown = StepObstacles(None, "it calls something")
    assert [chosen(module, obstacles=unknown).trainer for module in (FUSED, OWN)] == ["fused", "recorded"]
    assert "it calls something" in chosen(OWN, obstacles=unknown).why
    neither = StepObstacles("it branches", "it branches")
    assert [chosen(module, obstacles=neither).trainer for module in (FUSED, OWN)] == ["fused", "one_by_one"]


def test_the_largest_modules_are_recorded_or_fused() -> None:
    own = nn.Sequential(nn.Linear(2000, 1000), nn.Softplus())
    assert [chosen(module).trainer for module in (own, nn.Linear(3000, 1000))] == ["recorded", "fused"]


class Watching(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


CONVOLVING = nn.Sequential(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 128, 5, groups=128), nn.Flatten(), nn.Linear(128, 10))
SMALL_MAPS = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8, 10))


@pytest.mark.parametrize("trainer", ["recorded", "interpreted", "one_by_one"])
def test_convolutions_are_computed_in_c(trainer: str) -> None:
    needs_kernel()
    choice = chosen(CONVOLVING, trainer=trainer)
    assert (choice.kernels.winograd, choice.kernels.depthwise) == (True, True)


@pytest.mark.parametrize("without", [{"threads": 2}, {"device_kind": "cuda"}, {"precision": "bf16"}])
def test_convolutions_are_torchs(without: dict[str, Any]) -> None:
    assert not any(chosen(CONVOLVING, trainer="one_by_one", **without).kernels)


def test_steps_by_autograd_look_for_large_convolutions_alone() -> None:
    needs_kernel()
    assert not any(chosen(SMALL_MAPS, trainer="one_by_one").kernels)
    assert chosen(SMALL_MAPS, trainer="recorded").kernels == KernelsUsed(winograd=True, depthwise=True)


TEXTS = task_for(10_004, None, padding=0)


@pytest.mark.parametrize("task", [TEXTS, task_for(10_004, None)], ids=["texts", "classes"])
@pytest.mark.parametrize("trainer", ["recorded", "fused"])
def test_cross_entropy_over_many_classes_is_computed_in_c(trainer: str, task: Task) -> None:
    needs_kernel()
    assert chosen(MIDDLE, task, trainer=trainer, classes=10_004).kernels.classes


@pytest.mark.parametrize(
    "without",
    [{"classes": 255}, {"threads": 2}, {"device_kind": "cuda"}, {"dtype": "float64"}, {"trainer": "one_by_one"}],
)
def test_otherwise_it_is_torchs(without: dict[str, Any]) -> None:
    given: dict[str, Any] = {"trainer": "recorded", "classes": 10_004} | without
    assert not chosen(MIDDLE, TEXTS, **given).kernels.classes


def test_a_loss_of_ones_own_is_none_over_classes() -> None:
    task = task_for(10_004, lambda outputs, targets: outputs.sum(-1))
    assert not chosen(MIDDLE, task, trainer="recorded", classes=10_004).kernels.classes


@pytest.mark.parametrize(
    ("task", "trainer", "counted"),
    [(TEXTS, "recorded", True), (TEXTS, "fused", False), (task_for(10_004, None, uncounted=(1,)), "recorded", False)],
    ids=["recorded", "fused", "without padding"],
)
def test_outputs_of_places_that_count_alone_are_for_recorded_texts(task: Task, trainer: str, counted: bool) -> None:
    needs_kernel()
    assert chosen(MIDDLE, task, trainer=trainer, classes=10_004).kernels.counted is counted


@pytest.mark.parametrize("module", [OWN, FUSED], ids=["own", "layers"])
@pytest.mark.parametrize("task", [TEXTS, task_for(10_004, None)], ids=["texts", "classes"])
def test_where_a_batch_has_many_outputs_steps_are_not_interpreted(module: nn.Module, task: Task) -> None:
    needs_kernel()
    many, few = (chosen(module, task, classes=10_004, labels=labels) for labels in (7, 6))
    assert (few.trainer, few.kernels.classes) == ("interpreted", False)
    assert many.trainer == ("recorded" if module is OWN else "fused")
    assert many.kernels.classes


WORDS = nn.Sequential(nn.Embedding(10_004, 96), Lstm(96, 670, 1), nn.Linear(670, 10_004))


def test_large_lstms_of_padded_texts_are_trained_on_packed_ones() -> None:
    needs_kernel()
    choice = chosen(WORDS, TEXTS)
    assert (choice.trainer, choice.kernels.lstm) == ("fused", True)
    assert chosen(WORDS, task_for(10_004, None)).trainer == "recorded"
    without = {"threads": 2}, {"device_kind": "cuda", "trainer": "fused"}, {"dtype": "float64"}
    assert not any(chosen(WORDS, TEXTS, **one).kernels.lstm for one in without)


def test_a_mode_of_torch_sees_each_convolution() -> None:
    needs_kernel()
    assert any(chosen(CONVOLVING, trainer="one_by_one").kernels)
    with Watching():
        assert not any(chosen(CONVOLVING, trainer="one_by_one").kernels)
