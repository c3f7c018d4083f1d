"""The files of the papers' experiments have the values that the papers print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import raysim
import tuning
from raysim.config import overrides
from raysim.server.privacy.accountant import Event, epsilon
from raysim.server.privacy.gaussian import Gaussian

ROOT = Path(__file__).parent.parent
PAPERS = ("adabest", "fedavg", "fedglad", "field_guide", "large_cohort", "pfl")
FILES = sorted(file for paper in PAPERS for file in (ROOT / "configs" / paper).glob("*.toml"))

DECADES = [0.001, 0.01, 0.1, 1.0, 10.0]
CLIP = {"server.clip.initial": 1.0, "server.clip.quantile": 0.8, "server.clip.lr": 0.2}
ADAM = {"server.optimizer.beta1": 0.9, "server.optimizer.beta2": 0.99, "server.optimizer.eps": 1e-3}

CHARLES = {"rounds": 1500, "cohort.size": 50, "client.epochs": 1, "server.optimizer.name": "adam", **ADAM, **CLIP}
CHARLES_SEARCH = {
    "tuning.seeds": 5,
    "tuning.space.client.optimizer.lr.grid": DECADES,
    "tuning.space.server.optimizer.lr.grid": DECADES,
}
YANG = {"data.clients": 100, "data.partition.alpha": 0.1, "data.partition.prior": "empirical", "cohort.size": 10}
YANG_MNIST = {**YANG, "rounds": 50, "client.optimizer.lr": 0.01, "client.batch_size": 64, "client.epochs": 5}
YANG_TEXTS = {**YANG, "client.optimizer.name": "adam", "client.optimizer.lr": 1e-3, "client.batch_size": 32}
GLAD = {"server.glad.beta": 0.9, "server.glad.gamma": 0.02}
VARNO = {
    "client.optimizer.lr": 0.1,
    "client.lr_decay": 0.998,
    "client.batch_size": 45,
    "client.fill_last_batch": True,
    "client.correction.mu": 0.02,
}
LANDMARKS = {"data.name": "gld", "model.groups": 2, "model.dropout": 0.0, "client.epochs": 1}
FEDAVG = {"client.optimizer.lr": 0.1, "server.optimizer.name": "sgd", "server.optimizer.lr": 1.0}
ROUND_TIME = {
    "systems.time.download_bytes_per_s": 0.75e6,
    "systems.time.upload_bytes_per_s": 0.25e6,
    "systems.time.slowdown": 7.0,
    "systems.time.overhead_s": 10.0,
}
TRANSFORMER = {
    "model.embedding": 96,
    "model.heads": 8,
    "model.hidden": 1536,
    "model.layers": 3,
    "model.dropout": 0.1,
    **ADAM,
}
PFL = {
    "rounds": 1000,
    "cohort.size": 100,
    "model.lora.r": 8,
    "data.length": 512,
    "client.batch_size": 4,
    "client.epochs": 1,
    "client.optimizer.lr": 0.1,
    "client.max_grad_norm": 1.0,
    "server.optimizer.name": "adam",
    "server.optimizer.lr": 0.01,
    "server.optimizer.eps": 1e-4,
    "server.lr_scaling.warmup": 50,
    "server.lr_schedule.name": "cosine",
    "evaluation.every": 10,
    "evaluation.batch_size": 12,
}
PFL_ADAM = {"server.optimizer.beta1": 0.9, "server.optimizer.beta2": 0.99, "server.weighting": "uniform"}
FIRST_20_PERCENT = "tuning.objective.window"
FEDAVG_GRID = [0.5, *(float(n) for n in range(1, 11))]

PRINTED: dict[str, list[tuple[str, Mapping[str, Any]]]] = {
    # McMahan et al. (2017)
    "fedavg/mnist_2nn": [
        ("table 1", {"data.clients": 100, "cohort.size": 10, "client.batch_size": 10, "client.epochs": 1}),
        ("section 3", {"model.hidden": [200, 200], "data.partition.name": "iid"}),
        ("tables 1 and 4", {"tuning.objective.name": "rounds_to_target", "tuning.objective.target": 0.97}),
    ],
    "fedavg/mnist_2nn_shards": [
        ("table 1", {"data.clients": 100, "cohort.size": 10, "client.batch_size": 10, "client.epochs": 1}),
        ("section 3", {"model.hidden": [200, 200], "data.partition.name": "shards"}),
        ("tables 1 and 4", {"tuning.objective.target": 0.97}),
    ],
    "fedavg/mnist_cnn": [
        ("table 2", {"cohort.size": 10, "client.batch_size": 10, "client.epochs": 5, "tuning.objective.target": 0.99}),
        ("figure 8", {"client.optimizer.lr": 0.215, "data.partition.name": "iid"}),
    ],
    "fedavg/mnist_cnn_shards": [
        ("table 2", {"cohort.size": 10, "client.batch_size": 10, "client.epochs": 5, "tuning.objective.target": 0.99}),
        ("figure 8", {"client.optimizer.lr": 0.1, "data.partition.name": "shards"}),
    ],
    "fedavg/shakespeare_roles": [
        ("table 2", {"client.batch_size": 10, "client.epochs": 5, "tuning.objective.target": 0.54, "cohort.size": 114}),
        ("figure 3", {"client.optimizer.lr": 1.47}),
    ],
    "fedavg/shakespeare_iid": [
        ("section 3", {"data.clients": 1146, "data.min_lines": 2, "data.partition.name": "iid"}),
        ("figure 3", {"client.optimizer.lr": 1.47}),
    ],
    "fedavg/cifar10": [
        ("table 3", {"cohort.size": 10, "client.batch_size": 50, "client.epochs": 5, "rounds": 2000}),
        ("figure 4", {"client.optimizer.lr": 0.15, "client.lr_decay": 0.99}),
    ],
    "fedavg/word_lstm": [
        ("section 3", {"cohort.size": 200, "client.batch_size": 8, "client.epochs": 1, "client.optimizer.lr": 9.0}),
        ("section 3", {"model.hidden": 256, "model.embedding": 192, "data.vocabulary": 10_000, "data.length": 10}),
        ("figure 10", {"evaluation.every": 20}),
    ],
    # Charles et al. (2021)
    "large_cohort/cifar100": [
        ("2.1, tables 3 and 4, A.3", {**CHARLES, "server.optimizer.lr": 0.01}),
        ("tables 2 and 5", {"client.optimizer.lr": 0.1, "client.batch_size": 20}),
        ("A.1", {"data.name": "fed_cifar100", "data.crop": 24, "data.standardise": True, "model.groups": 2}),
        ("2.1 and A.4", {**CHARLES_SEARCH, "tuning.holdout": 0.2}),
    ],
    "large_cohort/emnist": [
        ("2.1, tables 3 and 4, A.3", {**CHARLES, "server.optimizer.lr": 0.001}),
        ("tables 2 and 5", {"client.optimizer.lr": 0.1, "client.batch_size": 20}),
        ("2.1 and A.4", {**CHARLES_SEARCH, "tuning.holdout": 0.2}),
    ],
    "large_cohort/shakespeare": [
        ("2.1, tables 3 and 4, A.3", {**CHARLES, "server.optimizer.lr": 0.01}),
        ("tables 2 and 5", {"client.optimizer.lr": 10.0, "client.batch_size": 4}),
        ("2.1 and A.4", {**CHARLES_SEARCH, "tuning.holdout": 0.2}),
    ],
    "large_cohort/stackoverflow": [
        ("2.1, tables 3 and 4, A.3", {**CHARLES, "server.optimizer.lr": 1.0}),
        ("tables 2 and 5", {"client.optimizer.lr": 10.0, "client.batch_size": 32}),
        ("A.1", {"data.vocabulary": 10_000, "data.length": 20, "data.max_examples": 1000, "model.hidden": 670}),
        ("2.1 and A.4", CHARLES_SEARCH),
    ],
    "large_cohort/emnist_dynamic": [
        ("5.3", {**CHARLES, "cohort.growth.every": 300, "cohort.growth.factor": 2, "cohort.growth.max": 800}),
        ("tables 4 and 5", {"server.optimizer.lr": 0.001, "client.optimizer.lr": 0.1}),
        ("5.3 has no scaling", {"server.lr_scaling.rule": "none"}),
    ],
    "large_cohort/emnist_local_steps": [
        ("B.10, figure 42", {"client.batch_size": 1, "rounds": 1500, **FEDAVG, **CLIP})
    ],
    "large_cohort/emnist_stragglers": [
        ("B.5", {"systems.time.name": "straggler", "systems.time.alpha": 1.0, "cohort.size": 10}),
        ("tables 2, 4 and 5", {"client.batch_size": 20, **FEDAVG, **CLIP}),
    ],
    # Wang et al. (2021)
    "field_guide/cifar10_cross_silo": [
        ("A.3", {"data.clients": 10, "data.partition.alpha": 1.0, "cohort.size": 10}),
        ("figure 6", {"client.optimizer.lr": 0.01, "server.optimizer.lr": 1.0, "client.epochs": 1}),
        ("B.2", {"model.name": "resnet18_gn", "model.groups": 2}),
    ],
    "field_guide/landmarks": [("B.2, figures 4 and 5", {**LANDMARKS, **FEDAVG}), ("figure 3", {"rounds": 20_000})],
    "field_guide/landmarks_160k": [
        ("B.2, figure 7", {**LANDMARKS, **FEDAVG, "data.set": "gld160k", "cohort.size": 10}),
        ("figure 8", {"rounds": 11_500}),
    ],
    "field_guide/round_time": [
        ("B.2, figure 9", {**LANDMARKS, **FEDAVG}),
        ("5.4", {"systems.time.seconds_per_example": 0.127, **ROUND_TIME}),
    ],
    "field_guide/stackoverflow": [
        ("B.1, B.2", TRANSFORMER),
        ("figure 2", {"rounds": 2000}),
        ("figure 16", {"client.optimizer.lr": 0.01, "server.optimizer.lr": 1.0}),
    ],
    "field_guide/stackoverflow_time": [
        ("B.1, B.2", TRANSFORMER),
        ("equation 10", ROUND_TIME),
        ("figures 21 and 22", {"evaluation.clients": "all", "evaluation.examples": 10_000}),
    ],
    # Yang et al. (2023)
    "fedglad/mnist_fedavg": [
        ("tables 5, 16 and 18", {**YANG_MNIST, "server.optimizer.name": "sgd", "server.optimizer.lr": 1.0}),
        ("table 17", {"tuning.space.server.optimizer.lr.grid": FEDAVG_GRID, FIRST_20_PERCENT: [0, 9]}),
    ],
    "fedglad/mnist_fedavg_glad": [("tables 5, 16 and 18", {**YANG_MNIST, **GLAD, "server.optimizer.lr": 1.0})],
    "fedglad/mnist_fedavgm": [
        ("tables 5, 16 and 18", {**YANG_MNIST, "server.optimizer.name": "momentum", "server.optimizer.lr": 0.5}),
        (
            "table 17",
            {
                "tuning.space.server.optimizer.lr.grid": [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0],
                FIRST_20_PERCENT: [0, 9],
            },
        ),
    ],
    "fedglad/mnist_fedavgm_glad": [("tables 5, 16 and 18", {**YANG_MNIST, **GLAD, "server.optimizer.lr": 0.5})],
    "fedglad/mnist_fedadam": [
        ("tables 5, 16 and 18", {**YANG_MNIST, "server.optimizer.name": "adam", "server.optimizer.lr": 0.01}),
        (
            "table 17",
            {
                "tuning.space.server.optimizer.lr.grid": [
                    0.001,
                    0.002,
                    0.003,
                    0.004,
                    0.005,
                    0.01,
                    0.02,
                    0.03,
                    0.04,
                    0.05,
                ],
                FIRST_20_PERCENT: [0, 9],
            },
        ),
    ],
    "fedglad/mnist_fedadam_glad": [("tables 5, 16 and 18", {**YANG_MNIST, **GLAD, "server.optimizer.lr": 0.01})],
    "fedglad/mnist_bad_round": [("4.4", {**YANG_MNIST, **GLAD, "server.optimizer.lr": 1.0})],
    "fedglad/cifar10": [
        ("tables 5 and 16", {**YANG, "rounds": 500, "client.optimizer.lr": 0.1, "client.batch_size": 64}),
        ("tables 16 and 18", {**GLAD, "client.epochs": 5, "server.optimizer.lr": 0.5, "model.name": "resnet56"}),
        ("table 17", {"tuning.space.server.optimizer.lr.grid": FEDAVG_GRID, FIRST_20_PERCENT: [0, 99]}),
    ],
    "fedglad/ag_news": [
        ("table 19", {**YANG_TEXTS, "rounds": 100, "server.optimizer.lr": 0.5, "server.glad.gamma": 0.02}),
        ("appendix M", {"data.tokens.length": 128, "model.hidden": 300, "model.embedding": 300, "client.epochs": 1}),
        ("appendix M", {"model.vectors": "data/glove/glove.6B.300d.txt", "model.dropout": 0.2}),
    ],
    "fedglad/newsgroups": [
        ("table 19", {**YANG_TEXTS, "rounds": 200, "server.optimizer.lr": 1.0, "server.glad.gamma": 0.01}),
        ("appendix M", {"data.tokens.length": 128, "model.hidden": 300, "model.embedding": 300, "client.epochs": 1}),
        ("appendix M", {"model.vectors": "data/glove/glove.6B.300d.txt", "model.dropout": 0.2}),
    ],
    "fedglad/femnist": [
        ("appendix S", {"rounds": 500, "cohort.size": 20, "client.batch_size": 16, "client.epochs": 5}),
        ("appendix S", {"client.optimizer.lr": 0.01, "server.optimizer.lr": 1.0, **GLAD}),
    ],
    "fedglad/stackoverflow": [
        ("appendix S", {"rounds": 2500, "cohort.size": 20, "client.batch_size": 16, "client.epochs": 1}),
        ("appendix S", {"client.optimizer.lr": 0.1, "server.optimizer.lr": 0.5, **GLAD}),
    ],
    # Varno et al. (2022), the supplement
    "adabest/cifar100": [
        ("D.1, D.5", VARNO),
        ("D.3", {"data.clients": 1100, "data.partition.alpha": 0.3, "cohort.size": 5}),
    ],
    "adabest/emnist_letters": [
        ("D.1, D.5", VARNO),
        ("D.3", {"data.clients": 110, "data.partition.name": "iid", "cohort.size": 5}),
    ],
    "adabest/cifar10": [("D.1, D.5", VARNO)],
    # pfl-research, benchmarks/llm
    "pfl/oasst": [
        ("configs/oasst.yaml", PFL),
        ("train.py and argument_parsing.py", {**PFL_ADAM, "model.lora.alpha": 8, "data.test_users": 0.1}),
    ],
    "pfl/oasst_private": [
        ("configs/oasst.yaml", {**PFL, "server.clip.fixed": 0.1, "server.privacy.delta": 1e-6}),
        ("configs/oasst.yaml", {"server.privacy.noise_cohort_size": 5000}),
        ("train.py and argument_parsing.py", {**PFL_ADAM, "model.lora.alpha": 8, "data.test_users": 0.1}),
    ],
}
"""File -> where the paper prints values, and the values by dotted key."""

HELD_OUT = {"adabest/cifar100": (1000, 100), "adabest/emnist_letters": (100, 10)}
"""D.3 of the supplement: clients that train, and clients for tuning."""

FOR_A_QUESTION = {
    "adabest/fashion_adabest",
    "adabest/fashion_fedavg",
    "adabest/fashion_feddyn",
    "adabest/fashion_scaffold",
    "field_guide/apfl",
    "field_guide/clusters",
    "field_guide/compressed_eden",
    "field_guide/compressed_quantise",
    "field_guide/compressed_random_k",
    "field_guide/compressed_sign",
    "field_guide/compressed_top_k",
    "field_guide/ditto",
    "field_guide/fair_afl",
    "field_guide/fair_qffl",
    "field_guide/fair_superquantile",
    "field_guide/fair_tilt",
    "field_guide/feddualavg",
    "field_guide/fedex",
    "field_guide/fedpa",
    "field_guide/fedpd",
    "field_guide/fedper",
    "field_guide/fedrecon",
    "field_guide/fedrep",
    "field_guide/local_adaptivity",
    "field_guide/maml",
    "field_guide/power_of_choice",
    "field_guide/private",
    "field_guide/private_banded",
    "field_guide/private_distributed",
    "field_guide/private_local",
    "field_guide/private_mnist",
    "field_guide/private_tree",
    "field_guide/secure_sum",
    "field_guide/quadratic",
    "field_guide/reptile",
    "field_guide/shuffled",
    "large_cohort/digits",
    "large_cohort/digits_stragglers",
    "large_cohort/fashion_stand_in",
}
"""Files that take a paper's question to other data, for which it prints nothing."""


def named(file: Path) -> str:
    return file.relative_to(ROOT / "configs").with_suffix("").as_posix()


def rows() -> Iterator[Any]:
    for file, printed in PRINTED.items():
        for source, values in printed:
            yield pytest.param(file, values, id=f"{file}: {source}")


@pytest.mark.parametrize(("file", "printed"), list(rows()))
def test_a_value_is_the_one_that_the_paper_prints(file: str, printed: Mapping[str, Any]) -> None:
    exp = raysim.load(ROOT / "configs" / f"{file}.toml")
    found = dict(overrides.leaves(exp.model_dump(mode="json", by_alias=True)))
    assert {key: found.get(key, "absent") for key in printed} == printed


def test_every_file_of_a_paper_is_in_the_table() -> None:
    assert {named(file) for file in FILES} == PRINTED.keys() | FOR_A_QUESTION


@pytest.mark.parametrize("file", FILES, ids=named)
def test_a_file_says_once_what_is_not_the_papers(file: Path) -> None:
    comments = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert sum(line.startswith("# Ours: ") for line in comments) == 1


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "fedglad").glob("*.toml")), ids=named)
def test_the_mean_of_the_last_ten_rounds_can_be_taken(file: Path) -> None:
    """Yang et al. (2023), section 4.2: every figure of theirs is this mean."""
    assert raysim.load(file).evaluation.every == 1


@pytest.mark.parametrize(("file", "clients"), HELD_OUT.items())
def test_the_clients_for_tuning_are_as_many_as_in_the_paper(file: str, clients: tuple[int, int]) -> None:
    from raysim.data.holdout import Holdout

    data = raysim.load(ROOT / "configs" / f"{file}.toml").data
    assert data is not None
    assert data.clients is not None
    held = Holdout(data.clients, data.holdout, 0)
    assert (held.num_train, held.num_validation) == clients


def test_the_benchmarks_noise_keeps_its_epsilon_among_a_million_users() -> None:
    pytest.importorskip("dp_accounting")
    privacy = raysim.load(ROOT / "configs" / "pfl" / "oasst_private.toml").server.privacy
    assert isinstance(privacy, Gaussian)
    assert privacy.noise_multiplier is not None
    found = [
        epsilon("pld", Event(z, probability=5000 / 1_000_000), 1000, 1e-6)
        for z in (privacy.noise_multiplier, privacy.noise_multiplier - 0.001)
    ]
    assert found[0] < 2.0 < found[1]


@pytest.mark.parametrize("file", [file for file in FILES if "[tuning]" in file.read_text(encoding="utf-8")], ids=named)
def test_a_search_is_one_that_raysim_can_make(file: Path) -> None:
    exp = raysim.load(file)
    if exp.fedex is not None:
        # It searches for what each of its configurations sets.
        exp = raysim.load(file, unset=["fedex"])
    tuning.section_of(exp)
    # The file's own rate is one that the search finds.
    space = tuning.section_of(exp).parsed_space()
    # Defaults, too: what fedex.configs set is not said in the file.
    said = dict(overrides.leaves(exp.model_dump(mode="json")))
    for key, values in (space.grid or {}).items():
        assert said[key] in values, f"{key} = {said[key]} is not in the grid"
