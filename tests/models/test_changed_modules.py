"""A refused module of the script does not stay frozen, or with adapters; what others were is forgotten with them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import raysim
from raysim.errors import ModelError
from raysim.models import changed_modules
from raysim.models import section as models
from raysim.models.own_module import Own

Make = Callable[..., raysim.Experiment]


@pytest.mark.parametrize(
    "changes", [{"freeze": ["0.*"]}, {"lora": {"targets": ["0"], "r": 2}}, {"lora": {"targets": ["0"], "whole": ["2"]}}]
)
@pytest.mark.parametrize(
    "around", [lambda net: net, lambda net: nn.Sequential(net[0], net[1], nn.Linear(4, 3))], ids=["itself", "a layer"]
)
def test_a_module_of_the_script_that_is_refused_has_no_adapters_and_nothing_frozen(
    around: Callable[[nn.Module], nn.Module],
    changes: dict[str, Any],
    experiment: Make,
    dataset: raysim.FederatedDataset,
) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    net[2].bias.requires_grad_(False)
    before = {name: (value.clone(), value.requires_grad) for name, value in net.named_parameters()}
    exp = experiment(model={"name": "own", **changes})
    for _ in range(2):
        with pytest.raises(ModelError, match="two of its modules are the same"):
            list(raysim.rounds(exp, dataset=dataset, model=lambda: around(net)))
    after = dict(net.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, (value, _) in before.items())
    assert [one.requires_grad for one in after.values()] == [trained for _, trained in before.values()]
    assert not hasattr(net, "peft_config")


def test_what_modules_were_is_forgotten_with_them() -> None:
    factory = models.with_adapters(lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), Own(freeze=("0.*",)))
    gc.collect()
    kept = len(changed_modules._BEFORE)
    modules = [factory() for _ in range(3)]
    assert len(changed_modules._BEFORE) == kept + 9
    del modules
    gc.collect()
    assert len(changed_modules._BEFORE) == kept
