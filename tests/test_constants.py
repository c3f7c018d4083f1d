"""The constants of a script's part are the experiment's: no call of a part changes them for the calls that follow."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import raysim
from raysim.config.own_part import Constants

Make = Callable[..., raysim.Experiment]


def growing(facts: Any) -> Any:
    if facts.examples > 20:
        facts.constants["q"] += 1
    return facts.examples ** facts.constants["q"]


def late(at: Any) -> Any:
    if at.round > 0:
        at.constants["first"] += 1
    return [(at.constants["first"] + i) % at.population for i in range(at.size)]


def shrinking(section: Any) -> raysim.Transform:
    def apply(at: raysim.TransformAt) -> Any:
        if at.round > 0:
            section.constants["share"] *= 0.5
        return at.delta * section.constants["share"]

    return raysim.Transform(apply)


@pytest.mark.parametrize(
    ("key", "constants", "parts"),
    [
        ("server.weighting", {"q": 1.0}, {"weighting": growing}),
        ("cohort.sampler", {"first": 1}, {"sampler": late}),
        ("client.transform", {"share": 1.0}, {"transform": shrinking}),
    ],
)
def test_a_part_that_changes_its_constants_is_refused(
    key: str, constants: dict[str, Any], parts: Any, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(cohort={"size": 20}).changed({key: {"name": "own", "constants": constants}})
    before = exp.model_dump()
    with pytest.raises(raysim.RaysimError, match="constants cannot be changed"):
        list(raysim.rounds(exp, dataset=dataset, **parts))
    assert exp.model_dump() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.__setitem__("a", 2),
        lambda c: c.__delitem__("a"),
        lambda c: c.update(a=2),
        lambda c: c.setdefault("b", 2),
        lambda c: c.pop("a"),
        lambda c: c.popitem(),
        lambda c: c.clear(),
        lambda c: c.__ior__({"a": 2}),
    ],
)
def test_constants_have_no_way_to_be_changed(change: Callable[[Constants], object]) -> None:
    constants = Constants(a=1)
    with pytest.raises(TypeError, match="constants cannot be changed"):
        change(constants)
    assert constants == {"a": 1}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_of_constants_are_constants(copied: Callable[[Constants], object]) -> None:
    made = copied(Constants(a=1))
    assert type(made) is Constants
    assert made == {"a": 1}
