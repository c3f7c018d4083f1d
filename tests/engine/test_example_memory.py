"""Where workers keep examples changes no bit of a run; and what is kept where."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import raysim
from raysim.data import DatasetWriter, FederatedDataset, Field
from raysim.data.on_device import Examples
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.run_folder import round_table
from tests.support.executors import bits
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
SIZES = (5, 9, 3, 12, 7)
CARD = torch.device("cuda")


def images(folder: Path) -> FederatedDataset:
    """Bytes with scale and offset, mapped, most clients across record batches; each also has test examples."""
    draw = np.random.default_rng(0)
    with DatasetWriter(
        folder, Field((1, 6, 6), "uint8", 1 / 255, -0.5), Field((), "int64"), 3, batch_bytes=4 * 44
    ) as writer:
        for k, n in enumerate(SIZES):
            for split, size in (("train", n), ("test", 4)):
                writer.write(
                    split, f"c{k}", draw.integers(0, 256, (size, 1, 6, 6), np.uint8), draw.integers(0, 3, size)
                )
    return FederatedDataset.open(folder)


def texts(folder: Path) -> FederatedDataset:
    draw = np.random.default_rng(0)
    with DatasetWriter(folder, Field((4,), "uint8"), Field((4,), "int16", padding=0), 6) as writer:
        for k, n in enumerate(SIZES):
            writer.write("train", f"c{k}", draw.integers(0, 6, (n, 4), np.uint8), draw.integers(0, 6, (n, 4), np.int16))
    return FederatedDataset.open(folder)


def numbers(folder: Path) -> FederatedDataset:
    """In memory, with real targets."""
    draw = np.random.default_rng(0)
    return FederatedDataset.from_clients(
        train={f"c{k}": (draw.standard_normal((n, 5)), draw.standard_normal((n, 2))) for k, n in enumerate(SIZES)}
    )


def labels(folder: Path) -> FederatedDataset:
    """In memory, in float32 as weights are, with clients held out."""
    rows = {name: (x.astype(np.float32), y) for name, (x, y) in make_clients([*SIZES, 4, 4]).items()}
    return FederatedDataset.from_clients(train=rows).hold_out(0.3)


LSTM = {"name": "lstm_char", "embedding": 2, "hidden": 4}
RUNS: dict[str, tuple[Callable[[Path], FederatedDataset], dict[str, Any]]] = {
    "images": (images, {"model": {"name": "cnn_mcmahan"}}),
    "augmented": (images, {"client": {"augment": {"name": "flip_crop", "padding": 1}, "batch_size": 4}}),
    "labels flipped": (images, {"adversary": {"name": "label_flip", "clients": ["c1", "c3"]}}),
    "fine-tuned": (images, {"evaluation": {"every": 2, "fine_tuning": {"steps": 2}}}),
    "one client": (images, {"pooled": True, "cohort": {"size": 1}}),
    "texts": (texts, {"model": LSTM, "evaluation": {"every": 2, "split": "train"}}),
    "real targets": (numbers, {"model": {"name": "linear"}}),
    "held out": (labels, {"evaluation": {"every": 1, "split": ["validation", "train"]}}),
    "full gradients": (labels, {"client": {"correction": {"name": "mime"}, "batch_size": 4}}),
    "remembering": (labels, {"client": {"correction": {"name": "scaffold"}, "batch_size": 4}}),
    "every update": (labels, {"server": {"aggregator": {"name": "median"}}}),
}


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        *product(RUNS, ["one_by_one", "fused", "stacked"]),
        # The others have layers, or losses, that the kernel does not know.
        *product([name for name in RUNS if name not in ("images", "texts")], ["compiled"]),
    ],
)
def test_where_examples_are_kept_changes_no_bit(name: str, trainer: str, tmp_path: Path, experiment: Make) -> None:
    make, sections = RUNS[name]
    data, made = make(tmp_path / "data"), []
    for examples in ("host", "device"):
        engine = {"workers": 0, "trainer": trainer, "chunk_size": 2, "examples": examples}
        exp = experiment(**{"rounds": 2, "cohort": {"size": 3}, **sections, "engine": engine})
        made.append([bits(finished) for finished in raysim.rounds(exp, dataset=data)])
    assert made[0] == made[1]


@pytest.mark.usefixtures("ray_cluster")
def test_nor_does_it_with_workers(tmp_path: Path, experiment: Make) -> None:
    data = images(tmp_path / "data")
    here = experiment(engine={"workers": 0, "chunk_size": 1, "examples": "host"}, cohort={"size": 4})
    there = experiment(
        engine={"workers": 2, "cpus_per_worker": 0.5, "chunk_size": 1, "examples": "device"}, cohort={"size": 4}
    )
    expected = [bits(finished) for finished in raysim.rounds(here, dataset=data)]
    assert [bits(finished) for finished in raysim.rounds(there, dataset=data)] == expected


def test_mates_of_a_process_upload_once_and_have_the_numbers_that_each_has_alone(
    tmp_path: Path, dataset: FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, uploaded = Examples.upload, []

    def upload(self: Examples, name: str, device: torch.device) -> None:
        uploaded.append(name)
        real(self, name, device)

    monkeypatch.setattr(Examples, "upload", upload)
    exp = experiment(engine={"workers": 0, "examples": "device"}, evaluation={"every": 1})
    wanted = [exp.changed([f"client.optimizer.lr={lr}", f"name=lr-{lr}"]) for lr in (0.1, 0.2, 0.3)]
    with raysim.Runs(exp, dataset=dataset) as runs:
        runs.start([(own, tmp_path / own.name) for own in wanted])
        list(runs.reports())
    assert uploaded == ["train", "test"]
    for own in wanted:
        alone = raysim.rounds(own.changed(["engine.examples=host"]), dataset=dataset)
        losses = [finished.metrics["eval/test/loss"] for finished in alone]
        assert round_table.read_rounds(tmp_path / own.name)["eval/test/loss"].to_pylist() == losses


def test_a_run_that_scores_another_split_uploads_no_more_than_that(
    dataset: FederatedDataset, experiment: Make, uploads: list[str]
) -> None:
    memory = ExampleMemory()
    for split in ("test", "train", "test"):
        exp = experiment(engine={"workers": 0, "examples": "device"}, evaluation={"split": split})
        memory.of(resolve(exp, dataset=dataset), torch.device("cpu"))
    assert uploads == ["train", "test"]


def test_runs_on_the_same_data_share_what_is_kept_until_none_is_left(
    dataset: FederatedDataset, experiment: Make
) -> None:
    memory, cpu = ExampleMemory(), torch.device("cpu")
    kept = experiment(engine={"workers": 0, "examples": "device"})
    plans = [
        resolve(exp, dataset=dataset)
        for exp in (kept, kept.changed(["seed=1"]), kept.changed(["engine.examples=host"]))
    ]
    one, other, on_host = (memory.of(plan, cpu) for plan in plans)
    assert one is other
    assert on_host is not one
    memory.keep_only({dataset.fingerprint})
    assert memory.of(plans[0], cpu) is one
    memory.keep_only(())
    assert memory.of(plans[0], cpu) is not one
    assert one.let_go()
    assert not on_host.let_go()


# What is kept on a card: a stand-in tells how much memory there is, and notes what would be uploaded.


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    monkeypatch.setattr(Examples, "upload", lambda self, name, device: noted.append(name))
    return noted


def a_card(
    monkeypatch: pytest.MonkeyPatch, free: float, total: float, allocated: float = 0, reserved: float = 0
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)


TRAIN_BYTES = sum(3 + 2 * i for i in range(20)) * (5 * 8 + 8)
TEST_BYTES = 100 * (5 * 8 + 8)


def test_on_a_card_a_split_may_take_a_quarter_of_what_this_process_has_left(
    dataset: FederatedDataset, experiment: Make, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(experiment(), dataset=dataset)
    least = 4 * TRAIN_BYTES
    for share, free, total, allocated, reserved, fits in (
        (1.0, least, 10 * least, 0, 0, True),
        (1.0, least - 1, 10 * least, 0, 0, False),
        (1.0, least - 5, 10 * least, 7, 12, True),
        (0.1, 10 * least, 10 * least, 0, 0, True),
        (0.1, 10 * least, 10 * least, 1, 1, False),
    ):
        uploads.clear()
        a_card(monkeypatch, free, total, allocated, reserved)
        ExampleMemory(share).of(plan, CARD)
        assert uploads == (["train", "test"] if fits else ["test"])


def test_on_a_card_only_what_a_run_meets_is_kept_unasked(
    experiment: Make, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_card(monkeypatch, 1e9, 1e9)
    many = make_clients([2] * 30)
    data = FederatedDataset.from_clients(train=many, test=many, validation=many)

    def kept(examples: str, **sections: Any) -> list[str]:
        uploads.clear()
        exp = experiment(engine={"workers": 0, "examples": examples}, **sections)
        ExampleMemory().of(resolve(exp, dataset=data), CARD)
        return list(uploads)

    assert kept("auto", rounds=5, cohort={"size": 6}) == ["train", "test"]
    assert kept("auto", rounds=4, cohort={"size": 6}) == ["test"]
    assert kept("auto", rounds=4, cohort={"size": 6}, evaluation={"clients": 29}) == []
    assert kept("auto", rounds=4, cohort={"size": 6}, evaluation={"split": ["train", "validation"]}) == [
        "train",
        "validation",
    ]
    assert kept("device", rounds=4, cohort={"size": 6}, evaluation={"clients": 29}) == ["train", "test"]
    assert kept("host", rounds=5, cohort={"size": 6}) == []


def test_on_a_cpu_nothing_is_copied_unasked(dataset: FederatedDataset, experiment: Make, uploads: list[str]) -> None:
    ExampleMemory().of(resolve(experiment(), dataset=dataset), torch.device("cpu"))
    assert uploads == []


# Memory that does not suffice.


def test_what_does_not_fit_is_sent_chunk_by_chunk_with_a_warning(
    dataset: FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [bits(finished) for finished in raysim.rounds(experiment(), dataset=dataset)]

    def full(self: Examples, name: str, device: torch.device) -> None:
        raise torch.OutOfMemoryError("1 kB is free")

    monkeypatch.setattr(Examples, "upload", full)
    asked = experiment(engine={"workers": 0, "examples": "device"})
    with caplog.at_level(logging.WARNING, "raysim"):
        assert [bits(finished) for finished in raysim.rounds(asked, dataset=dataset)] == expected
    train, test = caplog.messages
    assert "'train'" in train
    assert f"{TRAIN_BYTES / 1e6:.1f} MB" in train
    assert "1 kB is free" in train
    assert "'test'" in test


class OutOfMemoryOnce:
    """A loss for which memory does not suffice in the second round's first local step."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += outputs.requires_grad
        if self.calls == 40:
            raise torch.OutOfMemoryError("there is no room")
        return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("aggregator", ["mean", "median"])
def test_examples_make_room_where_training_needs_it(
    aggregator: str, dataset: FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def run(examples: str, loss: OutOfMemoryOnce) -> list[Any]:
        engine = {"workers": 0, "chunk_size": 3, "trainer": "one_by_one", "examples": examples}
        exp = experiment(engine=engine, server={"aggregator": {"name": aggregator}})
        return [bits(finished) for finished in raysim.rounds(exp, dataset=dataset, loss=loss)]

    never, once = OutOfMemoryOnce(), OutOfMemoryOnce()
    never.calls = 1000
    expected = run("host", never)
    with caplog.at_level(logging.WARNING, "raysim"):
        assert run("device", once) == expected
    assert once.calls > 40
    (said,) = caplog.messages
    assert "this process: examples leave the device" in said
    assert "there is no room" in said


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA card here")
def test_on_a_card_a_run_is_the_same_with_either(tmp_path: Path, experiment: Make) -> None:
    data, made = images(tmp_path / "data"), []
    for examples in ("host", "device"):
        exp = experiment(engine={"workers": 0, "examples": examples, "gpus_per_worker": 1}, cohort={"size": 4})
        made.append([bits(finished) for finished in raysim.rounds(exp, dataset=data)])
    assert made[0] == made[1]
