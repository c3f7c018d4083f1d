"""A key without effect is refused with what to do; a record, which has the defaults of all keys, is read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import raysim
from raysim.models.resnet56 import Resnet56, make

Make = Callable[..., raysim.Experiment]

SYNTHETIC = {"name": "synthetic", "clients": 5}
MAML = {"name": "maml", "alpha": 0.1}


def personal(keys: dict[str, Any]) -> dict[str, Any]:
    return {"client": {"optimizer": {"name": "sgd", "lr": 0.1}, "personalisation": {**MAML, **keys}}}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (personal({"delta": 0.5}), r"delta is the length of a difference, and hessian = 'exact' takes none: set"),
        (personal({"delta": 0.5, "hessian": "none"}), r"or leave delta out"),
        ({"server": {"lr_scaling": {"from": "base"}}}, r"says where a warm-up begins, and there is none: set warmup"),
        ({"data": {**SYNTHETIC, "iid": True, "alpha": 0.5}}, "alpha and beta have no part in iid = true"),
        ({"data": {**SYNTHETIC, "sizes": 10, "max_examples": 50}}, "max_examples caps lognormal sizes"),
    ],
)
def test_a_key_without_effect_is_refused(keys: dict[str, Any], why: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        experiment(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        personal({"hessian": "none"}),
        personal({"hessian": "difference", "delta": 0.5}),
        {"server": {"lr_scaling": {"from": "base", "warmup": 3}}},
        {"server": {"lr_scaling": {"warmup": 0}}},
        {"data": {**SYNTHETIC, "iid": True}},
        {"data": {**SYNTHETIC, "sizes": 10}},
    ],
)
def test_its_record_is_read_again(keys: dict[str, Any], experiment: Make) -> None:
    made = experiment(**keys)
    assert raysim.Experiment.model_validate(json.loads(made.to_json())) == made


def test_a_recorded_model_is_made_again() -> None:
    recorded = Resnet56.model_validate(Resnet56().model_dump())
    make(recorded, (3, 8, 8), 10)
    with pytest.raises(raysim.ModelError, match=r"belongs to model.norm = 'group'"):
        make(Resnet56(groups=4), (3, 8, 8), 10)
