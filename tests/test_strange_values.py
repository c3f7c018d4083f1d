"""Strange values end in raysim's errors, or in an experiment that runs: thousands of mutations of the JSON schema.

`scripts/fuzz-schema N` tries as many more as one likes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import Field

import raysim
from raysim.config import values
from raysim.config.plain import plain, shown
from raysim.engine.plan.resolve import resolve
from raysim.experiment import sweep
from raysim.experiment.expand import dataset_of
from raysim.models import section as models
from tests.support import carried, changes, strange_values
from tests.support.carried import BASE
from tests.support.mutated import Mutated, Schema
from tuning.section import section_of

SCHEMA = Schema.of_experiments()

BATCH = 50
"""Mutations of an example. Hypothesis chooses their seed: single choices would cost more than the mutations."""

PLACES = (("client", "batch_size"), ("cohort", "size"), ("server", "lr_schedule"), ("engine", "dtype"))
"""Keys that take no list, and their tables."""

few = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow],
)
"""The same examples in each run of the suite, which do not shrink: the script tries others."""


@pytest.fixture(autouse=True)
def _quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("raysim"), "disabled", True)


def mutations(seed: int, count: int = BATCH) -> Iterator[Mutated]:
    choose = random.Random(seed).choice
    return (SCHEMA.drawn(choose) for _ in range(count))


def experiment_of(table: Mapping[str, Any]) -> raysim.Experiment:
    return raysim.Experiment.model_validate({**BASE, **table})


@settings(few, max_examples=20)
@given(st.integers(0, 2**32))
def test_a_strange_table_is_refused_with_a_sentence_or_recorded_as_it_is(seed: int) -> None:
    for mutated in mutations(seed):
        carried.carry({**BASE, **mutated.table}, "validated")


@settings(few, max_examples=2)
@given(st.integers(0, 2**32))
def test_what_is_accepted_can_be_planned(seed: int) -> None:
    for mutated in mutations(seed, 25):
        carried.carry({**BASE, **_small(mutated.table)}, "planned")


@settings(few, max_examples=2)
@given(st.integers(0, 2**32))
def test_what_is_accepted_runs(seed: int) -> None:
    for mutated in mutations(seed, 25):
        carried.carry({**BASE, **_small(mutated.table)}, "run")


def _small(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without a model and without work that only takes long."""
    return {key: value for key, value in table.items() if key not in ("model", "evaluation")}


@settings(few, max_examples=2)
@given(st.integers(0, 2**32))
def test_strange_texts_of_set_and_sweep(seed: int) -> None:
    choose = random.Random(seed).choice
    for mutated in mutations(seed, 25):
        texts = changes.texts(mutated.table, choose)
        carried.carry_changes(BASE, texts, "validated")
        carried.carry_sweep(BASE, texts)


def test_an_error_of_one_strange_value_names_its_key() -> None:
    """Of a value that is not a table, in one of these tables: the last key is in the message."""
    choose = random.Random(0).choice
    for strange in (value for value in strange_values.STRANGE if not isinstance(value, Mapping)):
        key, inner = choose(PLACES)
        with pytest.raises(raysim.ExperimentError, match=rf"{key}\.{inner}"):
            experiment_of({key: {**BASE.get(key, {}), inner: [strange]}})


def test_every_number_text_and_list_has_bounds() -> None:
    schemas = [raysim.Experiment.model_json_schema(), Schema.of_experiments()._schema]
    open_ended = [path for schema in schemas for path in _unbounded(schema, "")]
    assert not open_ended


def _unbounded(schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, list):
        for place, inner in enumerate(schema):
            yield from _unbounded(inner, f"{path}[{place}]")
    if not isinstance(schema, Mapping):
        return
    low, high = {"minimum", "exclusiveMinimum"} & schema.keys(), {"maximum", "exclusiveMaximum"} & schema.keys()
    match schema.get("type"):
        case "integer" | "number" if not (low and high):
            yield path
        case "string" if not {"const", "enum", "maxLength"} & schema.keys():
            yield path
        case "array" if "maxItems" not in schema:
            yield path
        case "object" if "properties" not in schema and "maxProperties" not in schema:
            yield path
    for key, inner in schema.items():
        if key not in ("default", "examples", "required", "enum", "discriminator"):
            yield from _unbounded(inner, f"{path}.{key}")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"client": {"correction": {"name": "mime", "base": []}}}, "client.correction.base must be 'sgd'"),
        (
            {"client": {"batch_size": 2**63}},
            "client.batch_size must be a number of 64 bits, sign included, but got one of 65",
        ),
        ({"client": {"batch_size": 2**40}}, "client.batch_size must be less than or equal to 1_000_000 or 'full'"),
        ({"client": {"optimizer": {"lr": 1e308}}}, "client.optimizer.lr must be less than or equal to 1e6, but got 1e"),
        ({"engine": {"threads": 2**63}}, "engine.threads must be a number of 64 bits"),
        ({"model": {"name": "mlp", "hidden": [2**40]}}, r"model.hidden\[0\] must be less than or equal to 1_000_000"),
        ({"rounds": True}, "rounds must be an integer, but got True"),
        ({"rounds": "5"}, "rounds must be an integer, but got '5'"),
        ({"rounds": 5.0}, "rounds must be an integer, but got 5.0"),
        ({"client": {"lr_decay": "1"}}, "client.lr_decay must be a number, but got '1'"),
        ({"client": {"lr_decay": True}}, "client.lr_decay must be a number, but got True"),
        ({"client": {"shuffle": 1}}, "client.shuffle must be true or false, but got 1"),
        ({"client": {"lr_decay": float("nan")}}, "client.lr_decay must be a finite number, but got nan"),
        ({"name": "a" * 101}, "name must be a text of at most 100 characters"),
        ({"name": "a" * 5000}, "name must have at most 4096 characters, but has 5000: 'aaa"),
        ({"cohort": {"size": 1, "a\ud800": 1}}, r"a key of cohort is a text that is not valid Unicode: 'a\\ud800'"),
        ({"data": {"name": "digits", "clients": 2, "root": "a\0"}}, "data.root is a text with a NUL character"),
        ({"tuning": strange_values.nested(30, table=True)}, "is deeper than 16 tables"),
        ({"tuning": {"a": {"b": object()}}}, "tuning.a.b must be a text, a number, true or false, a list or a table"),
        (
            {"data": {"name": "mnist", "clients": 2, "root": "a" * 300}},
            "data.root: the names of a path have at most 200",
        ),
        ({"data": {"name": "mnist", "clients": 2, "root": "~nobody/x"}}, "not with that of another user"),
        ({"adversary": {"name": "sign_flip", "clients": [True]}}, r"adversary.clients\[0\] must be a string"),
        ({"client": {"schedule": [{}] * 999}}, "; and 979 more"),
    ],
)
def test_what_was_found_from_outside_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        experiment_of(table)


def test_integers_are_numbers_and_numbers_of_numpy_are_python_s() -> None:
    found = experiment_of({
        "rounds": np.int64(3),
        "client": {"optimizer": {"lr": 1}, "lr_decay": np.float32(0.5)},
        "evaluation": {"percentiles": np.array([5, 50.5])},
    })  # fmt: skip
    assert found.rounds == 3
    assert (found.client.optimizer.lr, found.client.lr_decay) == (1.0, 0.5)
    assert found.evaluation.percentiles == (5.0, 50.5)
    assert {type(found.rounds), type(found.client.lr_decay)} == {int, float}


def test_a_package_s_section_is_strict_too() -> None:
    class Theirs(raysim.Section):
        sizes: tuple[int, ...] = ()
        share: float = 0.5
        by_round: dict[int, int] = Field(default_factory=dict)

    assert Theirs.checked({"sizes": [1, 2], "share": 1, "by_round": {"3": 4}}).by_round == {3: 4}
    for wrong in ({"sizes": ["1"]}, {"sizes": [2**64]}, {"share": "0.5"}, {"by_round": {"3": True}}):
        with pytest.raises(raysim.ExperimentError):
            Theirs.checked(wrong)


def test_a_model_beyond_memory_is_refused_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: Any) -> None:
        pytest.fail("the module was made")

    monkeypatch.setattr("raysim.engine.plan.prepared_model.create", taken)
    huge = experiment_of({"model": {"name": "mlp", "hidden": [10**6, 10**6, 100]}})
    with pytest.raises(raysim.ModelError, match=r"'mlp' would have 1,000,\d{3},\d{3},\d{3} parameters .* 12,\d{3} GB"):
        resolve(huge, dataset=carried.dataset("mlp"))


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "resnet56"])
def test_a_model_s_size_is_known_without_making_it(name: str) -> None:
    from raysim.models import size

    section = experiment_of({"model": {"name": name}}).model
    assert section is not None
    shape = (3, 32, 32) if name in carried.IMAGES else (6,)
    before = torch.random.get_rng_state()
    found = size.num_params(section, shape, 9)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found == sum(each.numel() for each in models.factory(section, shape, 9)().parameters())


MANY = {"name": "synthetic", "clients": 10**12, "sizes": 10}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"cohort": {"size": 10**9}}, "cohort.size would be 1,000,000,000 clients at a time, and at most 10,000,000"),
        ({"cohort": {"size": 2, "growth": {"every": 1, "factor": 1e6}}, "rounds": 9}, "cohort.size would be"),
        (
            {"cohort": {"sampler": {"name": "bernoulli", "probability": 0.5}}},
            "cohort.sampler.probability would be 500,",
        ),
        (
            {"cohort": {"size": 2, "sampler": {"name": "md"}}},
            "cohort.sampler.name = 'md' would list every one of 1,000,",
        ),
        ({"adversary": {"name": "sign_flip", "clients": 0.5}}, "adversary.clients would list"),
        ({"server": {"diagnostics": {"probe": 1}}}, "server.diagnostics.probe would list"),
        ({"server": {"diagnostics": {"labels": True}}}, "server.diagnostics.labels would list"),
        (
            {"evaluation": {"split": "train", "clients": "all"}},
            "evaluation.clients of the split 'train' would be 1,000,",
        ),
        ({"evaluation": {"fine_tuning": {"steps": 1}}}, "evaluation.fine_tuning would list"),
        ({"pooled": True}, "pooled = true would list"),
        ({"data": {**MANY, "holdout": 0.5}}, "data.holdout lists every client"),
    ],
)
def test_more_clients_than_can_be_listed_are_refused_before_that(table: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        resolve(experiment_of({"data": MANY, **table}))


def test_a_million_million_clients_are_fine_where_none_is_listed() -> None:
    assert len(dataset_of(experiment_of({"data": MANY})).train) == 10**12
    assert resolve(experiment_of({"data": MANY})).fingerprint


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seed": range(10_001)}, "at most 10,000 combinations of values, but this one has 10,001"),
        ({"seed": list(range(200)), "rounds": list(range(1, 101))}, "has 20,000"),
        ({f"client.objective.constants.{'k' * 80}{i}": [1, 2] for i in range(3)}, "has no"),
        ({"seed": [object()]}, r"seed\[0\] must be a text, a number"),
        ({"seed": strange_values.nested(500, table=False)}, "is deeper than 16"),
    ],
)
def test_a_sweep_that_is_too_large_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        sweep.points(experiment_of({}), values)


def test_a_point_s_folder_has_a_name_that_file_systems_take() -> None:
    constants = {f"{letter * 60}": 0 for letter in "abcd"}
    exp = experiment_of({"client": {"objective": {"name": "own", "constants": {**constants, "text": ""}}}})
    (point,) = sweep.points(exp, {"client.objective.constants.text": ["t" * 61]})
    assert point.folder == "client.objective.constants.text=value-0"
    with pytest.raises(raysim.ExperimentError, match="named by its keys and values, in at most 200 characters"):
        sweep.points(exp, {f"client.objective.constants.{key}": [1] for key in constants})


def test_a_grid_of_a_million_million_configurations_is_not_listed() -> None:
    space = {"cohort.size": {"int": [1, 10**6]}, "client.epochs": {"int": [1, 10**6]}}
    assert section_of(experiment_of({"tuning": {"space": space}})).chosen_sampler().name == "tpe"
    with pytest.raises(raysim.ExperimentError, match="at most 100,000 configurations, but there are 1,000,000,000,000"):
        section_of(experiment_of({"tuning": {"space": space, "sampler": {"name": "grid"}}}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5_000, "nested too deep"),
        ("rounds = " + "9" * 5_000, "too many digits"),
        (".".join(["a"] * 3_000) + " = 1", "is deeper than 16"),
        ("rounds = 2024-02-29", "rounds must be a text, a number, true or false, a list or a table"),
    ],
)
def test_a_file_that_no_parser_likes_is_refused_with_its_name(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "strange.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(raysim.ExperimentError, match=rf"strange.toml.*{said}"):
        raysim.load(file)
    with pytest.raises(raysim.ExperimentError, match="cannot be read"):
        raysim.load(tmp_path)


def test_a_value_is_shown_in_one_short_printable_line() -> None:
    for value in strange_values.STRANGE:
        text = shown(value)
        assert text.isprintable()
        assert len(text) < 2_000
        text.encode()


def test_a_copy_is_plain_and_shares_nothing() -> None:
    given = {"a": [{"b": (1, 2)}], 3: range(2)}
    found = plain(given)
    assert found == {"a": [{"b": [1, 2]}], "3": [0, 1]}
    found["a"][0]["b"].append(3)
    assert given["a"] == [{"b": (1, 2)}]


def test_bounds_are_written_as_toml_reads_them() -> None:
    import tomllib

    for bound in (1, 1024, 10**9, 2**63, 1e6, 1e-12, 1e-20, 0.5, -1e300, 20.0):
        assert tomllib.loads(f"x = {values.written(bound)}")["x"] == bound


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": [[1.0] * 60_000] * 17}, r"up to a\[16\] must have at most 1,000,000 entries together"),
        (
            {"a": [1, {"b": [0, -(2**63), 2**63]}], "c": [float("nan")]},
            r"^a\[1\]\.b\[2\] must .* 64 bits.*; c\[0\] must be a",
        ),
        ({"a": strange_values.nested(17, table=False)}, r"^a(\[0\]){16} is deeper than 16 tables or lists$"),
    ],
)
def test_a_value_is_named_wherever_it_lies(given: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        plain(given)
