"""Adapters: which layers get them, what is trained, and what bad names are told."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from raysim.errors import ExperimentError, ModelError
from raysim.models import lora
from raysim.models.lora import Lora, WithLora
from raysim.models.model import Model, create


def net() -> nn.Module:
    """Layers whose names end alike, and a part of torch's that reads its layers' weights itself."""
    return nn.ModuleDict(
        {
            "fc": nn.Linear(4, 6),
            "inner": nn.Sequential(nn.Linear(6, 6), nn.ModuleDict({"fc": nn.Linear(6, 6)})),
            "attention": nn.TransformerEncoderLayer(6, 2, 8),
            "head": nn.Linear(6, 2),
        }
    )


def made(**keys: Any) -> Model:
    return create(WithLora(net, Lora.checked({"r": 2, "targets": ["fc"], **keys})), 0, torch.float32)[0]


def test_only_layers_of_the_whole_name_get_adapters() -> None:
    assert made().params.names == ("fc.lora_A.default.weight", "fc.lora_B.default.weight")
    layers = {name.partition(".lora")[0] for name in made(targets=["*fc", "inner.0"]).params.names}
    assert layers == {"fc", "inner.0", "inner.1.fc"}


def test_without_a_and_with_whole_layers() -> None:
    model = made(freeze_a=True, whole=["head"])
    assert model.params.names == ("fc.lora_B.default.weight", "head.weight", "head.bias")
    assert model.params.num_values == 6 * 2 + 2 * 6 + 2
    assert "fc.lora_A.default.weight" in model.constants


def test_adapters_start_at_the_base_and_from_the_seed() -> None:
    one, two = (create(WithLora(net, Lora(targets=("fc",))), seed, torch.float32) for seed in (0, 1))
    (a, b), (other, _) = ([*model.params.views(weights.params).values()] for model, weights in (one, two))
    assert not b.any()
    assert not torch.equal(a, other)


@pytest.mark.parametrize(("alpha", "factor"), [(None, 1.0), (3.0, 1.5)])
def test_an_adapter_adds_alpha_over_r_times_b_a_x(alpha: float | None, factor: float) -> None:
    section = Lora(r=2, alpha=alpha, targets=("fc",))
    module = WithLora(net, section)()
    a, b = (module.get_parameter(f"fc.lora_{each}.default.weight") for each in "AB")
    nn.init.normal_(b)
    x = torch.randn(3, 4)
    layer = module.get_submodule("fc")
    wanted = module.get_submodule("fc.base_layer")(x) + factor * x @ a.T @ b.T
    torch.testing.assert_close(layer(x), wanted)


def test_layers_that_peft_would_take_for_others_are_not_trained_whole() -> None:
    with pytest.raises(ModelError, match=r"would take 'inner.1.fc' for 'fc': rename"):
        made(targets=["inner.1.fc"], whole=["fc"])
    assert "fc.weight" in made(targets=["inner.0"], whole=["fc"]).params.names


def test_tied_layers_are_not_trained_whole() -> None:
    def tied() -> nn.Module:
        module = nn.ModuleDict({"table": nn.Embedding(6, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 6)})
        module["head"].weight = module["table"].weight
        return module

    for layer, message in (("head", "'head.weight' is tied to 'table.weight'"), ("table", "tied to 'head.weight'")):
        with pytest.raises(ModelError, match=message):
            create(WithLora(tied, Lora(targets=("fc",), whole=(layer,))), 0, torch.float32)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"targets": ["hed"]},
            r"model.lora.targets: 'hed' matches no nn.Linear of the module \(did you mean 'head'\?\)",
        ),
        ({"targets": ["q_proj"]}, r"matches no nn.Linear of the module: it has fc, inner.0, .* and 1 more\."),
        (
            {"targets": ["attention"]},
            "'attention' matches 'attention', a TransformerEncoderLayer, but only layers of the class nn.Linear get",
        ),
        ({"whole": ["haed"]}, r"model.lora.whole: 'haed' matches no layer of the module \(did you mean 'head'\?\)"),
        ({"whole": ["*fc"]}, "'fc' is trained whole, so it takes no adapter"),
        (
            {"targets": ["attention.linear1"]},
            "a part of torch's TransformerEncoderLayer, which reads its weights itself",
        ),
    ],
)
def test_names_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        made(**keys)


@pytest.mark.parametrize("keys", [{"r": 0}, {"targets": []}, {"targets": [""]}, {"dropout": 1.0}, {"alpha": 0.0}])
def test_values_that_mean_nothing_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises((ExperimentError, ValidationError)):
        made(**keys)


def test_a_module_that_is_one_layer_is_refused() -> None:
    with pytest.raises(ModelError, match=r"needs layers with names.*nn\.Sequential"):
        create(WithLora(lambda: nn.Linear(2, 3), Lora(targets=("*",))), 0, torch.float32)


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install 'raysim\[adapters\]'"):
        made()


def test_a_merged_layer_is_tied_to_no_other() -> None:
    """The module without adapters has one tensor for both names, and its loader would take the last."""

    def tied() -> nn.Module:
        module = nn.ModuleDict({"table": nn.Embedding(6, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 6)})
        module["head"].weight = module["table"].weight
        return module

    merged = lora.merged(WithLora(tied, Lora(targets=("fc",)))())
    assert sorted(merged) == sorted(tied().state_dict())
    with pytest.raises(ModelError, match=r"'head\.weight' has an adapter and is tied to 'table\.weight'"):
        lora.merged(WithLora(tied, Lora(targets=("head",)))())


@pytest.mark.parametrize("name", ["lora_A", "base_layer"])
def test_names_of_peft_are_not_the_module_s(name: str) -> None:
    """By them adapters are known: the module's own layer would be trained, or be missing in what is merged."""

    def own() -> nn.Module:
        return nn.ModuleDict({"a": nn.ModuleDict({name: nn.Linear(4, 4)}), "fc": nn.Linear(4, 2)})

    with pytest.raises(ModelError, match=f"the module has 'a.{name}', and peft calls"):
        WithLora(own, Lora(targets=("fc",)))()
