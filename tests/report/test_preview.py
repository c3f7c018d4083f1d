"""What `check` says of an experiment whose every figure can be worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim import Experiment, FederatedDataset
from raysim.engine.plan.resolve import resolve
from raysim.report import preview
from raysim.run_folder import experiment_record

Make = Callable[..., Experiment]


def said(experiment: Experiment, dataset: FederatedDataset, path: Path = Path("missing")) -> dict[str, str]:
    lines = preview.text(resolve(experiment, dataset=dataset), path).splitlines()
    width = max(len(line.split("  ")[0]) for line in lines)
    return {line[: width + 2].strip(): line[width + 2 :].strip() for line in lines}


def clients(sizes: list[int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {f"c{i}": (np.zeros((n, 4), np.float32), np.arange(n) % 3) for i, n in enumerate(sizes)}


def test_every_line_of_a_small_experiment(experiment: Make) -> None:
    data = FederatedDataset.from_clients(train=clients([3, 8, 12]), test=clients([5]))
    wanted = experiment(
        model={"name": "linear"},
        cohort={"size": 3},
        rounds=10,
        client={"batch_size": 4, "epochs": 2},
        engine={"workers": 0},
    )
    lines = said(wanted, data)
    assert lines["data"] == "from the script: x float32[4], y int64[], 3 classes"
    assert lines["train"] == "3 clients, 23 examples, 3 to 12 each (median 8)"
    assert lines["test"] == "1 client, 5 examples, 5 to 5 each (median 5)"
    # 4 x 3 weights and 3 biases.
    assert lines["model"] == "linear: 15 parameters in 2 tensors, float32"
    assert lines["cohort"] == "3 of 3 clients, uniform"
    # Two epochs of ceil(3/4), ceil(8/4), ceil(12/4) batches.
    assert lines["local steps"] == "2 to 6 a client, 12 in the first round"
    # Three clients receive and send 15 values of 4 bytes, ten times.
    assert lines["transfer"] == "180 B down and 180 B up a round; 3.6 kB in all, were clients real"
    assert lines["rounds"] == "10, a checkpoint every 50"
    assert lines["evaluation"] == "test, all clients, every 2 rounds and after the last"
    assert lines["engine"] == "in this process, 1 thread each"
    assert lines["folder"] == "missing"


@pytest.mark.parametrize(
    ("keys", "transfer"),
    [
        ({"client": {"mid_round_dropout": 0.4}}, "in the first round; about {} in all, were"),
        ({"cohort": {"size": 5, "sampler": {"name": "md"}}}, "in the first round; about {} in all, were"),
        (
            {"systems": {"time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}, "deadline_s": 0.5}},
            "in the first round; about {} in all, were",
        ),
        ({"stop": {"budget": {"rounds": 3}}}, "a round; {} in all at most, as it may end earlier, were"),
        (
            {"stop": {"budget": {"rounds": 3}}, "client": {"mid_round_dropout": 0.4}},
            "in the first round; about {} in all at most, as it may end earlier, were",
        ),
    ],
)
def test_what_is_transferred_in_all_is_said_as_far_as_the_first_round_tells(
    keys: dict[str, Any], transfer: str, experiment: Make, dataset: FederatedDataset
) -> None:
    line = said(experiment(rounds=10, **keys), dataset)["transfer"]
    assert re.search(transfer.format(r"[\d.]+ \w?B"), line), line


def test_chunks_are_counted(experiment: Make, dataset: FederatedDataset) -> None:
    lines = said(experiment(engine={"workers": 0, "chunk_size": 3}), dataset)
    assert lines["chunks"] == "3 a round, of up to 3 clients, so at most 3 workers have work"


def test_workers_and_their_share_of_the_machine(experiment: Make, dataset: FederatedDataset) -> None:
    engine = {"workers": 4, "cpus_per_worker": 0.5, "gpus_per_worker": 0.25, "threads": 2}
    lines = said(experiment(engine=engine), dataset)
    assert lines["engine"] == "4 workers on Ray, 0.5 CPU and 0.25 GPU each, 2 threads each"


def test_data_without_a_test_split_are_not_evaluated(experiment: Make) -> None:
    data = FederatedDataset.from_clients(train=clients([3] * 7))
    assert said(experiment(), data)["evaluation"] == "none: the data have no test split"


def test_a_folder_that_is_in_the_way_is_said(experiment: Make, dataset: FederatedDataset, tmp_path: Path) -> None:
    assert "exists already" in said(experiment(), dataset, tmp_path)["folder"]


def test_the_fingerprint_is_that_of_the_run(experiment: Make, dataset: FederatedDataset, tmp_path: Path) -> None:
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    assert said(experiment(), dataset)["fingerprint"] == experiment_record.stored_fingerprint(tmp_path / "run")


def test_what_the_server_does_beside_its_step_is_said(experiment: Make, dataset: FederatedDataset) -> None:
    server = {"aggregator": {"name": "krum", "f": 2}, "clip": {"fixed": 3}, "glad": {"gamma": "inf"}}
    lines = said(experiment(server=server, adversary={"name": "sign_flip", "clients": 0.1}), dataset)
    assert lines["aggregator"] == "krum (f = 2)"
    assert lines["clipping"] == "fixed = 3.0"
    assert lines["FedGLAD"] == "beta = 0.9, gamma = inf, scope = group"
    assert lines["adversary"] == "sign_flip (clients = 0.1)"
    # Seven updates of four groups, each in steps of 32 numbers: 5 x 8, 8, 8 x 3 and 3 take 64 + 32 + 32 + 32.
    assert lines["kept updates"].startswith(f"{7 * 160 * 4 / 1000:.3g} kB a round, in shards in the object store: krum")


def test_a_total_is_said_of_rounds_that_cost_alike_only(experiment: Make) -> None:
    """With a growing cohort it was that of the first round, times the rounds."""
    data = FederatedDataset.from_clients(train=clients([6] * 8))
    for cohort in (
        {"size": 1, "growth": {"every": 2, "factor": 2.0}},
        {"sampler": {"name": "bernoulli", "probability": 0.5}},
    ):
        lines = said(experiment(model={"name": "linear"}, cohort=cohort, rounds=8), data)
        assert lines["transfer"].endswith("up in the first round, were clients real; the size of cohorts changes")


def test_simulated_devices_are_said(experiment: Make) -> None:
    data = FederatedDataset.from_clients(train=clients([6, 6, 6]))
    systems = {"time": {"name": "straggler", "alpha": 2.0, "lambda": 0.0}, "over_selection": 1.5}
    lines = said(experiment(model={"name": "linear"}, cohort={"size": 2}, systems=systems), data)
    assert lines["cohort"] == "3 of 3 clients, uniform"
    assert lines["devices"] == "straggler (alpha = 2.0, lambda = 0.0)"
    # Two of three alike clients are waited for: 6 examples of 2 s.
    assert lines["reports"] == "2 count in the first round, which takes 12 s of simulated time"
    # 15 values of 4 bytes: three clients receive them, two send some.
    assert lines["transfer"].startswith("180 B down and 120 B up a round")


def test_a_secure_sum_says_what_its_numbers_can_hold(experiment: Make, dataset: FederatedDataset) -> None:
    """Sums of integers e are from -2^23 to 2^23, in units of 2^-8: of updates from -2^15 to 2^15."""
    sums = {"bits": 24, "fraction_bits": 8}
    lines = said(experiment(server={"secure_sum": sums}), dataset)
    assert lines["secure sum"] == (
        "24 bits a number, in steps of 0.00391; a cohort's sum of examples times update wraps around outside -32,768 "
        "to 32,768"
    )
    alike = said(experiment(server={"secure_sum": {**sums, "fraction_bits": 23}, "weighting": "uniform"}), dataset)
    assert alike["secure sum"].endswith("in steps of 1.19e-07; a cohort's sum of updates wraps around outside -1 to 1")
    assert "secure sum" not in said(experiment(), dataset)


def test_what_changes_over_the_rounds_is_said(experiment: Make, dataset: FederatedDataset) -> None:
    """The first round's lines alone were those of a run in which nothing changes."""
    client = {"lr_decay": 0.9, "schedule": [{"round": 3, "epochs": 2}, {"round": 5, "batch_size": 8}]}
    server = {"lr_scaling": {"rule": "sqrt", "reference": 5}, "lr_schedule": {"name": "cosine", "length": 9}}
    wanted = experiment(client=client, server=server, cohort={"size": 7, "growth": {"every": 2, "factor": 1.5}})
    text = preview.text(resolve(wanted, dataset=dataset), Path("missing"))
    for line in (
        "sgd (lr = 0.1, momentum = 0.0, weight_decay = 0.0), the rate times 0.9 after every round",
        "from round 3 on: epochs = 2",
        "from round 5 on: batch_size = 8",
        "rule = sqrt, reference = 5.0, warmup = 0, from = zero",
        "cosine (length = 9",
        "7 of 20 clients, uniform, times 1.5 every 2 rounds",
    ):
        assert line in text


def test_what_ends_a_run_and_what_is_scored_is_said(experiment: Make, dataset: FederatedDataset) -> None:
    wanted = experiment(
        stop={"target": {"metric": "eval/test/accuracy", "value": 0.9}, "budget": {"rounds": 3}},
        checkpoint={"best": "eval/test/loss"},
        evaluation={"examples": 30, "fine_tuning": {"steps": 2, "split": "train"}},
    )
    text = preview.text(resolve(wanted, dataset=dataset), Path("missing"))
    for label, line in (
        ("stop", "target: metric = eval/test/accuracy, value = 0.9, last = 1"),
        ("stop", "budget: rounds = 3"),
        ("best model", "kept by eval/test/loss, the smallest"),
        ("evaluation", "test, all clients, 30 examples of theirs at most, every 10 rounds and after the last"),
        ("fine-tuning", "steps = 2, split = train"),
    ):
        assert any(found.startswith(label) and found.endswith(line) for found in text.splitlines()), line
