"""Runs that begin with a file's values, freeze a part of the model, or train adapters, which peft reads."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import raysim
from raysim.api import kept_model
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.models.lora import Lora, WithLora
from raysim.run_folder import files

Make = Callable[..., raysim.Experiment]
LORA = {"r": 2, "alpha": 3.0, "targets": ["0", "2"]}


class Tied(nn.Module):
    """A weight of two names, a buffer that no state dict has, and one that every state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)
        self.other.weight = self.one.weight
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.other(self.norm(torch.tanh(self.one(x)))) * self.scale)
        return out


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def written(path: Path, make: Callable[[], nn.Module], seed: int = 1) -> Path:
    """A state dict in a file, as people save it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = make().state_dict()
    save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    return path


@pytest.fixture
def here(experiment: Make) -> Callable[..., raysim.Experiment]:
    return lambda **model: experiment(model={"name": "own", **model}, rounds=2)


@pytest.mark.parametrize("make", [net, Tied])
def test_a_run_begins_with_the_values_of_a_file(
    make: Callable[[], nn.Module], tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    file = written(tmp_path / "base.safetensors", make)
    plan = resolve(here(init=str(file)), dataset=dataset, model=make)
    named, base = plan.initial.to_named(plan.model), load_file(file)
    assert all(torch.equal(value, base[name]) for name, value in named.items() if name != "scale")
    drawn = resolve(here(), dataset=dataset, model=make).initial
    assert not torch.equal(plan.initial.params, drawn.params)


def test_a_new_head_keeps_its_drawn_values_and_is_named(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    file = changed(written(tmp_path / "base.safetensors", net), **{"2.weight": None, "2.bias": None})
    plan = resolve(here(init=str(file)), dataset=dataset, model=net)
    assert f"model.init: {file} lacks '2.weight', '2.bias', which keep their drawn values" in caplog.messages
    named = plan.initial.to_named(plan.model)
    drawn = resolve(here(), dataset=dataset, model=net)
    assert torch.equal(named["0.weight"], load_file(file)["0.weight"])
    assert torch.equal(named["2.weight"], drawn.initial.to_named(drawn.model)["2.weight"])
    # A frozen layer without values would never get any.
    with pytest.raises(raysim.ModelError, match=r"'2\.weight', '2\.bias' are missing"):
        resolve(here(init=str(file), freeze=["2.*"]), dataset=dataset, model=net)


def test_a_seed_that_draws_nothing_is_said(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    whole = written(tmp_path / "base.safetensors", net)
    resolve(here(init=str(whole)), dataset=dataset, model=net)
    headless = changed(written(tmp_path / "body.safetensors", net), **{"2.weight": None, "2.bias": None})
    resolve(here(init=str(headless), seed=3), dataset=dataset, model=net)
    resolve(here(init=str(whole), seed=3, lora={"targets": ["0"]}), dataset=dataset, model=net)
    assert not any("model.seed" in message for message in caplog.messages)
    resolve(here(init=str(whole), seed=3), dataset=dataset, model=net)
    assert f"model.seed = 3 draws nothing: model.init: {whole} has all values" in caplog.messages


def test_a_pickle_is_answered_with_how_to_write_the_file(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    torch.save(net().state_dict(), tmp_path / "base.pt")
    with pytest.raises(raysim.ModelError, match=r"save_file\(torch\.load\('base\.pt'\), 'base\.safetensors'\)"):
        resolve(here(init=str(tmp_path / "base.pt")), dataset=dataset, model=net)


def test_a_weight_of_two_names_may_have_one_in_the_file(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    # As safetensors.torch.save_model writes it.
    file = changed(written(tmp_path / "base.safetensors", Tied), **{"one.weight": None})
    plan = resolve(here(init=str(file)), dataset=dataset, model=Tied)
    assert torch.equal(plan.initial.to_named(plan.model)["one.weight"], load_file(file)["other.weight"])


def test_a_weight_of_two_names_has_one_value_in_the_file(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    file = changed(written(tmp_path / "base.safetensors", Tied), **{"one.weight": torch.ones(5, 5)})
    with pytest.raises(raysim.ModelError, match=r"tied tensors, but 'one.weight' and 'other.weight' differ"):
        resolve(here(init=str(file)), dataset=dataset, model=Tied)


@pytest.mark.parametrize("keys", [{"lora": LORA}, {"freeze": ["0.*"]}])
def test_frozen_parts_have_the_values_of_a_base_without_adapters(
    keys: dict[str, Any], tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    file = written(tmp_path / "base.safetensors", net)
    plan = resolve(here(init=str(file), **keys), dataset=dataset, model=net)
    held = {name.replace(".base_layer", ""): value for name, value in plan.model.constants.items()}
    assert torch.equal(held["0.weight"], load_file(file)["0.weight"])


def test_a_run_goes_on_with_another_ones_checkpoint_or_export(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    first = raysim.run(here(lora=LORA), path=tmp_path / "run", dataset=dataset, model=net)
    kept_model.export(tmp_path / "run", tmp_path / "whole.safetensors", dataset=dataset, model=net)
    newest = max(files.checkpoints(tmp_path / "run").items())[1]
    for file in (newest, tmp_path / "whole.safetensors"):
        plan = resolve(here(lora=LORA, init=str(file)).changed(["seed=5"]), dataset=dataset, model=net)
        named = plan.initial.to_named(plan.model)
        assert all(torch.equal(named[name], value) for name, value in first.params.items())
        drawn = resolve(here(lora=LORA), dataset=dataset, model=net).model.constants
        assert all(torch.equal(plan.model.constants[name], value) for name, value in drawn.items())


def changed(file: Path, **values: torch.Tensor | None) -> Path:
    held: dict[str, Any] = {**load_file(file), **values}
    save_file({name: value for name, value in held.items() if value is not None}, file)
    return file


def test_files_of_other_names_and_shapes_or_kinds_are_refused(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    def refused(file: Path, message: str) -> None:
        with pytest.raises(raysim.ModelError, match=message) as caught:
            resolve(here(init=str(file)), dataset=dataset, model=net)
        assert "model.init" in str(caught.value)
        assert str(file) in str(caught.value)

    def base() -> Path:
        return written(tmp_path / "base.safetensors", net)

    refused(changed(base(), **{"0.bias": None, "1.more": torch.ones(2)}), "'0.bias' is missing; '1.more' is unknown")
    refused(changed(base(), **{"0.bias": None}), "'0.bias' is missing")
    refused(changed(base(), **{"0.bias": torch.ones(7)}), r"'0.bias' is \(7,\).*the model's is \(6,\)")
    refused(changed(base(), **{"0.bias": torch.ones(6, dtype=torch.int64)}), "'0.bias' is .*int64")
    refused(tmp_path / "nothing.safetensors", "is missing")
    refused(changed(base(), **{"0.bias": torch.full((6,), torch.nan)}), "6 of the 6 of '0.bias' are not")
    refused(tmp_path, r"must be a file, but is a folder\.$")
    torch.save(net().state_dict(), tmp_path / "pickled.safetensors")
    refused(tmp_path / "pickled.safetensors", "expected a safetensors file")


def test_a_checkpoint_is_read_by_its_names_and_shapes(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    def narrow() -> nn.Module:
        # As many numbers as those of `net`, gaps included.
        return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))

    def begun(run: str, make: Callable[[], nn.Module], **model: Any) -> Plan:
        newest = max(files.checkpoints(tmp_path / run).items())[1]
        return resolve(here(init=str(newest), **model), dataset=dataset, model=make)

    first = raysim.run(here(freeze=["0.*"]), path=tmp_path / "run", dataset=dataset, model=net)
    # What is frozen may be another.
    named = begun("run", net).initial.to_named(begun("run", net).model)
    assert all(torch.equal(named[name], value) for name, value in first.params.items())
    with pytest.raises(raysim.ModelError, match="must have the shapes of the model's tensors"):
        begun("run", narrow)
    raysim.run(here(lora=LORA), path=tmp_path / "lora", dataset=dataset, model=net)
    with pytest.raises(raysim.ModelError, match=r"lora_A.default.weight' is \(2, 5\).*the model's is \(4, 5\)"):
        begun("lora", net, lora={**LORA, "r": 4})
    (tmp_path / "run" / "experiment.json").unlink()
    with pytest.raises(raysim.ModelError, match=r"must lie in its run's folder.*raysim export"):
        begun("run", net)


def test_frozen_values_are_finite_too(tmp_path: Path, dataset: raysim.FederatedDataset, here: Make) -> None:
    file = changed(written(tmp_path / "base.safetensors", net), **{"0.bias": torch.full((6,), torch.inf)})
    with pytest.raises(raysim.ModelError, match=rf"{file}: .*6 of the 6 of '0\.bias' are not"):
        resolve(here(init=str(file), freeze=["0.*"]), dataset=dataset, model=net)
    with pytest.raises(raysim.ModelError, match=r"6 of the 6 of '0\.bias' are not"):
        resolve(here(freeze=["0.*"]), dataset=dataset, model=net, params=load_file(file))


def test_the_fingerprint_has_the_values_and_not_the_place(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    def fingerprint(file: Path | None) -> str:
        return resolve(here(init=None if file is None else str(file)), dataset=dataset, model=net).fingerprint

    one = fingerprint(written(tmp_path / "one.safetensors", net))
    assert fingerprint(written(tmp_path / "moved.safetensors", net)) == one
    assert fingerprint(written(tmp_path / "one.safetensors", net, seed=2)) != one
    assert fingerprint(None) != one


def test_a_folder_begun_with_other_values_is_refused(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    file = written(tmp_path / "base.safetensors", net)
    raysim.run(here(init=str(file)), path=tmp_path / "run", dataset=dataset, model=net)
    raysim.resume(tmp_path / "run", rounds=3, dataset=dataset, model=net)
    written(file, net, seed=2)
    with pytest.raises(raysim.RunFolderError, match=r"the values of model\.init"):
        raysim.resume(tmp_path / "run", rounds=4, dataset=dataset, model=net)


def test_clusters_do_not_begin_with_one_file(tmp_path: Path, dataset: raysim.FederatedDataset, here: Make) -> None:
    file = written(tmp_path / "base.safetensors", net)
    exp = here(init=str(file)).changed({"client.personalisation": {"name": "clusters", "count": 2}})
    with pytest.raises(raysim.ExperimentError, match=r"model\.init is one: leave it out"):
        resolve(exp, dataset=dataset, model=net)


def test_clients_send_their_adapters_only(dataset: raysim.FederatedDataset, here: Make) -> None:
    adapters = 2 * (5 + 6) + 2 * (6 + 3)
    *_, last = raysim.rounds(here(lora=LORA), dataset=dataset, model=net)
    assert sum(value.numel() for value in last.params.values()) == adapters
    assert last.metrics["bytes_up"] == 7 * 4 * adapters
    *_, last = raysim.rounds(here(lora={**LORA, "freeze_a": True}), dataset=dataset, model=net)
    assert last.metrics["bytes_up"] == 7 * 4 * 2 * (6 + 3)


def test_a_model_of_the_experiment_takes_adapters(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    model = {"name": "mlp", "hidden": [8], "lora": {"targets": ["fc*"]}}
    *_, last = raysim.rounds(experiment(model=model), dataset=dataset)
    assert all("lora_" in name for name in last.params)


def test_own_needs_a_script(here: Make, dataset: raysim.FederatedDataset) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"model.name = 'own', so model= must be passed"):
        resolve(here(), dataset=dataset)


def test_peft_reads_what_is_exported_with_the_same_outputs(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    import peft

    exp = here(lora={**LORA, "dropout": 0.2, "targets": ["0"], "whole": ["2"]})
    raysim.run(exp, path=tmp_path / "run", dataset=dataset, model=net)
    # A stranger's folder may have links; a file takes their place.
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").symlink_to(tmp_path / "mine")
    kept_model.export(tmp_path / "run", tmp_path / "adapter", adapter=True, dataset=dataset, model=net)
    assert (tmp_path / "mine").read_text() == "precious"
    kept_model.export(tmp_path / "run", tmp_path / "whole.safetensors", dataset=dataset, model=net)
    assert exp.model is not None
    assert exp.model.lora is not None
    trained = WithLora(net, exp.model.lora)().eval()
    trained.load_state_dict(load_file(tmp_path / "whole.safetensors"))
    base = net()
    first = resolve(here(), dataset=dataset, model=net)
    base.load_state_dict(first.initial.to_named(first.model))
    x = torch.linspace(-1, 1, 35).view(7, 5)
    without = base(x)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(loaded(x), trained(x))
    assert loaded.peft_config["default"].modules_to_save == ["2"]
    assert not torch.allclose(loaded(x), without)


def test_adapters_of_one_run_never_lie_beside_the_settings_of_another(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """peft scales tensors by alpha / r, so those of an export before, which another one broke off, would be others."""
    parts: Any = {"dataset": dataset, "model": net}
    out = tmp_path / "adapter"
    for alpha in (4.0, 64.0):
        raysim.run(here(lora={**LORA, "targets": ["0"], "alpha": alpha}), path=tmp_path / f"{alpha}", **parts)
    kept_model.export(tmp_path / "4.0", out, adapter=True, **parts)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(kept_model, "save", full)
        # The same settings: the older tensors stay.
        with pytest.raises(OSError, match="No space"):
            kept_model.export(tmp_path / "4.0", out, adapter=True, **parts)
        assert (out / "adapter_model.safetensors").exists()
        with pytest.raises(OSError, match="No space"):
            kept_model.export(tmp_path / "64.0", out, adapter=True, **parts)
    assert not (out / "adapter_model.safetensors").exists()
    kept_model.export(tmp_path / "64.0", out, adapter=True, **parts)
    assert (out / "adapter_model.safetensors").exists()


def test_adapters_are_added_to_their_layers(tmp_path: Path, dataset: raysim.FederatedDataset, here: Make) -> None:
    """Plain torch takes the file, and gives the outputs of the module with adapters."""
    run = tmp_path / "run"
    parts: dict[str, Any] = {"dataset": dataset, "model": net}
    raysim.run(here(lora=LORA), path=run, **parts)
    kept_model.export(run, tmp_path / "with.safetensors", **parts)
    kept_model.export(run, tmp_path / "merged.safetensors", merged=True, **parts)
    plain, adapted = net(), WithLora(net, Lora.model_validate(LORA))()
    plain.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    adapted.load_state_dict(load_file(tmp_path / "with.safetensors"))
    x = torch.randn(4, 5)
    assert torch.allclose(plain(x), adapted(x), atol=1e-6)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            value.mul_(0 if "lora_B" in name else 1)
    assert not torch.allclose(plain(x), adapted(x), atol=1e-6)
    with pytest.raises(raysim.ExperimentError, match=r"adapter writes the adapters alone, .* choose one"):
        kept_model.export(run, tmp_path / "both", adapter=True, merged=True, **parts)


def test_frozen_values_that_were_drawn_are_said(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    mlp = {"name": "mlp", "hidden": [6]}
    base = tmp_path / "base.safetensors"
    raysim.run(experiment(model=mlp, rounds=1), path=tmp_path / "run", dataset=dataset)
    kept_model.export(tmp_path / "run", base, dataset=dataset)
    for init, said in ({"init": str(base)}, False), ({}, True):
        caplog.clear()
        raysim.rounds(experiment(model={**mlp, "freeze": ["fc1.*"], **init}, rounds=1), dataset=dataset)
        assert ("model.freeze freezes values that the seed has drawn" in caplog.text) is said


def test_a_module_in_place_of_the_section_s_is_said(
    dataset: raysim.FederatedDataset, experiment: Make, here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    raysim.rounds(here(), dataset=dataset, model=net)
    assert "is trained" not in caplog.text
    raysim.rounds(experiment(model={"name": "mlp", "hidden": [6]}, rounds=1), dataset=dataset, model=net)
    assert "model= is trained, and the 'mlp' of [model] is not: set model.name = 'own'" in caplog.text


def test_all_parts_that_a_recorded_run_needs_are_named_at_once(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    raysim.run(here().changed({"data": None}), path=tmp_path / "run", dataset=dataset, model=net)
    calls: dict[str, Callable[[], object]] = {
        "export(path, out": lambda: raysim.export(tmp_path / "run", tmp_path / "out"),
        "evaluate(path": lambda: raysim.evaluate(tmp_path / "run"),
        "replay(path, round": lambda: raysim.replay(tmp_path / "run", 0),
        "resume(path": lambda: raysim.resume(tmp_path / "run"),
    }
    for beginning, call in calls.items():
        advice = f"raysim.{beginning}, dataset=..., model=...)"
        with pytest.raises(raysim.RunFolderError, match=re.escape(advice)):
            call()


def test_a_run_without_adapters_has_none_to_export(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make
) -> None:
    raysim.run(here(), path=tmp_path / "run", dataset=dataset, model=net)
    with pytest.raises(raysim.ModelError, match="trains no adapters"):
        kept_model.export(tmp_path / "run", tmp_path / "adapter", adapter=True, dataset=dataset, model=net)


def test_who_exports_adapters_is_told_of_statistics_that_they_lack(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    parts: Any = {"dataset": dataset, "model": Tied}
    for held in (True, False):
        exp = here(lora={"r": 1, "targets": ["head"]})
        exp = exp.changed({"client.hold_frozen_norms": held, "client.batch_size": "full"})
        raysim.run(exp, path=tmp_path / f"{held}", **parts)
        caplog.clear()
        kept_model.export(tmp_path / f"{held}", tmp_path / "adapter", adapter=True, **parts)
        assert ("training has changed norm.running_mean, norm.running_var:" in caplog.text) is not held


def test_peft_reads_a_norm_that_is_trained_whole_with_its_statistics(
    tmp_path: Path, dataset: raysim.FederatedDataset, here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    import peft

    parts: Any = {"dataset": dataset, "model": Tied}
    exp = here(lora={"r": 1, "targets": ["head"], "whole": ["norm"]}).changed({"client.batch_size": "full"})
    raysim.run(exp, path=tmp_path / "run", **parts)
    caplog.clear()
    kept_model.export(tmp_path / "run", tmp_path / "adapter", adapter=True, **parts)
    assert "running statistics" not in caplog.text
    kept_model.export(tmp_path / "run", tmp_path / "merged.safetensors", merged=True, **parts)
    expected, merged = Tied(), load_file(tmp_path / "merged.safetensors")
    expected.load_state_dict(merged)
    assert merged["norm.running_mean"].any()
    base, first = Tied(), resolve(here(), **parts)
    # Without the second name of the tied weight, and with the buffer that no state dict has.
    base.load_state_dict(first.initial.to_named(first.model), strict=False)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    x = torch.linspace(-1, 1, 35).view(7, 5)
    assert torch.allclose(loaded(x), expected.eval()(x), atol=1e-5)


def test_norms_under_adapters_stay_still_if_they_are_held(dataset: raysim.FederatedDataset, here: Make) -> None:
    for held in (True, False):
        exp = here(lora={"r": 1, "targets": ["head"]})
        exp = exp.changed({"client.hold_frozen_norms": held, "client.batch_size": "full"})
        *_, last = raysim.rounds(exp, dataset=dataset, model=Tied)
        assert bool(last.params["norm.running_mean"].any()) is not held


def test_a_module_that_writes_to_a_frozen_parameter_is_refused(dataset: raysim.FederatedDataset, here: Make) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner.weight.data.clamp_(-0.1, 0.1)
            out: torch.Tensor = self.head(self.inner(x))
            return out

    with pytest.raises(raysim.ModelError, match="writes to a frozen parameter"):
        resolve(here(freeze=["inner.*"]), dataset=dataset, model=Writes)
