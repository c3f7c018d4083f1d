"""The names in messages of the parts that workers call, and that are not raysim's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import raysim
from raysim.data.pooled import pool_clients
from raysim.engine.plan import own_parts
from raysim.engine.plan.resolve import resolve
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Distilbert
from raysim.models.softmax import cross_entropy

Make = Callable[..., raysim.Experiment]


class Delegates:
    """A split of a script."""

    def __init__(self, split: Any) -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)


def test_raysims_own_parts_have_no_names(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    assert own_parts.titles(resolve(experiment(), dataset=dataset)) == ()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_dataset_with_code_of_the_script_is_one(
    split: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    plan = resolve(experiment(), dataset=dataset, loss=cross_entropy)
    changed: dict[str, Any] = {split: Delegates(getattr(dataset, split))}
    own = replace(dataset, **changed)
    assert own_parts.titles(plan) == ("loss=",)
    assert own_parts.titles(replace(plan, dataset=own)) == ("dataset=", "loss=")


def test_a_splits_code_is_found_behind_views_of_it(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(), dataset=dataset)
    own = replace(dataset, train=Delegates(dataset.train))
    for view in (own.hold_out(0.4), pool_clients(own), pool_clients(own.hold_out(0.4))):
        assert own_parts.titles(replace(plan, dataset=view)) == ("dataset=",)
    assert own_parts.titles(replace(plan, dataset=pool_clients(dataset.hold_out(0.4)))) == ()


@pytest.mark.parametrize("section", [CausalLm, Distilbert])
def test_a_model_of_a_package_is_one(section: Any, experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(), dataset=dataset)
    of_package = plan.experiment.model_copy(update={"model": section.model_construct()})
    assert own_parts.titles(replace(plan, experiment=of_package)) == (f"the model {section.model_construct().name!r}",)
