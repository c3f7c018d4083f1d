"""docs/methods.md: what the generator writes, which is what the parts say of themselves."""

from __future__ import annotations

import re

import pytest

from manual.choices import methods, refusal
from manual.methods import PAGE, page


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], list[str]]:
    """Cells by key and name."""
    key, found = "", {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## `"):
            key = line.strip("#` ")
        elif line.startswith("| `"):
            name, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|")))
            found[key, name.strip("`")] = cells
    return found


def test_the_page_is_as_the_parts_are(rows: dict[tuple[str, str], list[str]]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m manual.methods writes the page anew"
    assert list(rows) == [(each.key, each.part.name) for each in methods()]


@pytest.mark.parametrize(
    ("key", "name", "facts"),
    [
        # State of client and server, down, up, passes: by hand, from docs/algorithms.md.
        ("client.correction", "scaffold", ["n", "n", "2 n (8 n bytes)", "2 n (8 n bytes)", "1"]),
        ("client.correction", "mime", ["none", "n", "3 n (12 n bytes)", "2 n (8 n bytes)", "2; 2 gradients a step"]),
        # A gradient of all examples for the cohort's mean, it again for what it is taken off, and training.
        ("client.correction", "feddane", ["none", "none", "2 n (8 n bytes)", "2 n (8 n bytes)", "3"]),
        ("client.correction", "fedpd", ["2 n", "none", "n (4 n bytes)", "n (4 n bytes)", "1"]),
        ("server.optimizer", "adam", ["none", "2 n", "n (4 n bytes)", "n (4 n bytes)", "1"]),
        ("server.fairness", "afl", ["none", "N", "n (4 n bytes)", "n (4 n bytes)", "2"]),
        ("client.personalisation", "ditto", ["n", "n", "n (4 n bytes)", "n (4 n bytes)", "2"]),
        ("client.personalisation", "clusters", ["none", "none", "3 n (12 n bytes)", "n (4 n bytes)", "4"]),
        ("server.aggregator", "local_adaptivity", ["none", "none", "n (4 n bytes)", "2 n (8 n bytes)", "1"]),
    ],
)
def test_facts_are_those_of_the_equations(
    rows: dict[tuple[str, str], list[str]], key: str, name: str, facts: list[str]
) -> None:
    assert rows[key, name][2:7] == facts


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        # Of 99,985 numbers. Filled up to 2^17, a bit each; a hundredth, 32 bits and 17 for the place each.
        ("eden", "compressed (0.16 n bytes at bits = 1)"),
        ("top_k", "compressed (0.061 n bytes at fraction = 0.01)"),
    ],
)
def test_compressed_vectors_have_the_bytes_of_a_model_of_a_usual_size(
    rows: dict[tuple[str, str], list[str]], name: str, sent: str
) -> None:
    assert rows["client.compression", name][5] == sent


def test_a_choice_has_the_config_that_shows_it(rows: dict[tuple[str, str], list[str]]) -> None:
    assert rows["client.personalisation", "apfl"][9] == "`field_guide/apfl`"
    # Its table has no name, because there is no other choice.
    assert rows["client.posterior", "fedpa"][9] == "`field_guide/fedpa`"


def test_refusals_are_raysim_s(rows: dict[tuple[str, str], list[str]]) -> None:
    assert "`server.optimizer`: all but `sgd`" in rows["client.correction", "scaffold"][8]
    found = {(each.key, each.part.name): each for each in methods()}
    why = refusal(found["client.correction", "scaffold"], found["server.optimizer", "adam"])
    assert why is not None
    assert "is defined with server.optimizer.name = 'sgd'" in why
    assert refusal(found["cohort.sampler", "bernoulli"], found["server.optimizer", "adam"]) is None


@pytest.mark.parametrize(
    "name",
    # Of sections 2.3, 3, 7.3 and 7.5 of Wang et al. (2021).
    [
        *(
            "FedAvg",
            "FedSGD",
            "Local SGD",
            "FedOpt",
            "FedAvgM",
            "FedAdagrad",
            "FedAdam",
            "FedYogi",
            "AdaAlter",
            "SCAFFOLD",
            "Mime",
            "MimeLite",
        ),
        *("FedDANE", "FedProx", "FedDyn", "FedPD", "FedNova", "FedMA", "local_adaptivity", "Ditto", "MOCHA", "APFL"),
        *("FedPer", "LG-FedAvg", "FedRep", "FedRecon", "Reptile", "maml", "IFCA", "HypCluster"),
        *("FedPA", "FedDualAvg", "AFL", "q-FFL"),
        *("MAML", "QuPeL", "PFNM", "Model Fusion", "Fine-tuning", "Multi-task", "meta-learning", "interpolation"),
    ],
)
def test_a_reader_of_the_field_guide_finds_each_name(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", PAGE.read_text(encoding="utf-8"))
