"""Causal language models from a folder: their numbers are those of transformers, and what the folder must hold."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

import raysim
from raysim.api import kept_model
from raysim.client.batches import draw
from raysim.data.tokens.answers import PADDING
from raysim.engine.plan.resolve import resolve
from raysim.errors import ModelError, RaysimError
from raysim.models.model import bind, create
from raysim.models.section import ModelSection, factory
from tests.support import language

LENGTH = 12
LR = 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its tokeniser, and lines of five users, two of whom have test lines."""
    made = language.write_model(tmp_path_factory.mktemp("language") / "model")
    language.write_lines(made / "data" / "train.jsonl")
    language.write_lines(made / "data" / "test.jsonl", users=("ann", "zoe"), each=2)
    return made


def experiment(folder: Path, **changed: Any) -> raysim.Experiment:
    given = {
        "rounds": 1,
        "data.name": "instructions",
        "data.root": str(folder / "data"),
        "data.test": "test.jsonl",
        "data.tokenizer": str(folder),
        "data.length": LENGTH,
        "model.name": "causal_lm",
        "model.path": str(folder),
        "client.optimizer.lr": LR,
        "client.batch_size": 2,
        "cohort.size": 2,
        "engine.workers": 0,
    }
    given = {**given, **{key.replace("__", "."): value for key, value in changed.items()}}
    table: dict[str, Any] = {}
    for key, value in given.items():
        *path, name = key.split(".")
        inside = table
        for part in path:
            inside = inside.setdefault(part, {})
        inside[name] = value
    return raysim.Experiment.model_validate(table)


def bits(folder: Path, **changed: Any) -> dict[str, torch.Tensor]:
    (done,) = raysim.rounds(experiment(folder, **changed))
    return dict(done.params)


def by_transformers(folder: Path) -> tuple[dict[str, torch.Tensor], torch.nn.Module]:
    """A round of FedAvg written down with transformers' own loss: labels that it shifts itself, and its own mean."""
    from transformers import AutoModelForCausalLM

    plan = resolve(experiment(folder))
    train, state = plan.dataset.train, plan.initial_state()
    updates, weights = [], []
    cohort = plan.cohorts().sample(plan.cohorts().init(), 0)
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for position in cohort.tolist():
        x, y = (torch.from_numpy(part.astype("int64")) for part in train.client(position))
        labels = torch.cat([torch.full((len(x), 1), -100), y.masked_fill(y == PADDING, -100)], 1)
        tokens = torch.cat([x, torch.zeros(len(x), 1, dtype=torch.int64)], 1)
        model = AutoModelForCausalLM.from_pretrained(folder).train()
        (batches,) = draw(plan.experiment.client, [len(x)], plan.experiment.seed, 0, [position])
        for first, last in pairwise(batches.bounds):
            rows = batches.order[first:last]
            model.zero_grad()
            model(input_ids=tokens[rows], labels=labels[rows]).loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= LR * parameter.grad
        updates.append({name: value - start[name] for name, value in model.state_dict().items()})
        weights.append(len(x))
    assert state.round == 0
    total = sum(weights)
    summed = {
        name: start[name] + sum(n / total * update[name] for n, update in zip(weights, updates, strict=True))
        for name in start
    }
    model.load_state_dict(summed)
    return summed, model.eval()


def test_a_round_has_the_numbers_of_a_loop_with_transformers(folder: Path, tmp_path: Path) -> None:
    wanted, model = by_transformers(folder)
    result = raysim.run(experiment(folder), path=tmp_path / "run")
    for name, value in wanted.items():
        torch.testing.assert_close(torch.as_tensor(result.params[f"language_model.{name}"]), value)
    # Scores of clients, and of all, from transformers' outputs.
    test = resolve(experiment(folder)).dataset.split("test")
    nll, hits, places = {}, {}, {}
    for position in range(len(test)):
        x, y = (torch.from_numpy(part.astype("int64")) for part in test.client(position))
        real, client = y != PADDING, test.id_of(position)
        with torch.no_grad():
            logits = model(input_ids=x).logits[real]
        nll[client] = float(torch.nn.functional.cross_entropy(logits, y[real], reduction="sum"))
        hits[client], places[client] = float((logits.argmax(-1) == y[real]).sum()), int(real.sum())
    (row,) = result.rounds.to_pylist()
    assert row["eval/test/accuracy"] == pytest.approx(sum(hits.values()) / sum(places.values()))
    mean = sum(nll.values()) / sum(places.values())
    assert row["eval/test/perplexity"] == pytest.approx(torch.tensor(mean).exp().item())
    rows = {own["client"]: own for own in result.clients.to_pylist()}
    assert rows.keys() == {"ann", "zoe"}
    for client, own in rows.items():
        assert own["accuracy"] == pytest.approx(hits[client] / places[client])
        assert own["perplexity"] == pytest.approx(torch.tensor(nll[client] / places[client]).exp().item())


@pytest.mark.parametrize("trainer", ["fused", "stacked", "vmap", "compiled"])
def test_other_trainers_decline_with_a_reason(folder: Path, trainer: str) -> None:
    with pytest.raises(ModelError, match=f"engine.trainer = '{trainer}' cannot be used: .+"):
        resolve(experiment(folder, engine__trainer=trainer))


def test_steps_are_recorded_or_the_reason_is_said(folder: Path) -> None:
    """transformers 5 looks at values inside `forward`, which no recording can; transformers 4 does not."""
    if resolve(experiment(folder)).choice.records:
        by_autograd = bits(folder, engine__trainer="one_by_one")
        for name, value in bits(folder).items():
            torch.testing.assert_close(value, by_autograd[name], rtol=1e-4, atol=1e-6)
    else:
        with pytest.raises(ModelError, match=r"engine.trainer = 'recorded' cannot be used: .+"):
            resolve(experiment(folder, engine__trainer="recorded"))
        assert resolve(experiment(folder)).choice.trainer == "one_by_one"


@pytest.mark.parametrize("more", [{}, {"engine__precision": "bf16"}, {"client__accumulate": 2}])
def test_activations_computed_again_have_the_same_bits(folder: Path, more: dict[str, Any]) -> None:
    kept, again = (
        bits(folder, engine__trainer="one_by_one", model__recompute=recompute, **more) for recompute in (False, True)
    )
    for name, value in kept.items():
        assert torch.equal(again[name], value)


@pytest.mark.parametrize(("recompute", "times"), [(False, 1), (True, 2)])
def test_a_layer_is_called_again_in_the_backward_pass(folder: Path, recompute: bool, times: int) -> None:
    module, calls = factory_of(folder, recompute=recompute)().train(), list[None]()
    module.language_model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(None))
    module(torch.ones(1, LENGTH, dtype=torch.int64)).sum().backward()
    assert len(calls) == times


def test_products_in_bf16_are_those_of_autocast(folder: Path) -> None:
    whole, rounded = bits(folder), bits(folder, engine__precision="bf16")
    assert any(not torch.equal(rounded[name], value) for name, value in whole.items())
    for name, value in whole.items():
        torch.testing.assert_close(rounded[name], value, rtol=0.1, atol=0.01)


# Of peft, about transformers.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_go_to_the_model_of_transformers(folder: Path, tmp_path: Path, dtype: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = {"r": 2, "targets": ["*.q_proj", "*.v_proj"], "dropout": 0.1}
    given, again = (
        experiment(folder, model__dtype=dtype, model__lora=lora, model__recompute=recompute)
        for recompute in (False, True)
    )
    result = raysim.run(given, path=tmp_path / "run")
    (recomputed,) = raysim.rounds(again)
    assert all("lora_" in name and torch.equal(recomputed.params[name], value) for name, value in result.params.items())
    raysim.export(tmp_path / "run", tmp_path / "adapter", adapter=True)
    raysim.export(tmp_path / "run", tmp_path / "whole.safetensors")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    plan = resolve(given)
    module = bind(plan.model, plan.initial, torch.device("cpu")).eval()
    module.load_state_dict(load_file(tmp_path / "whole.safetensors"))
    x = torch.arange(1, LENGTH).view(1, -1)
    assert torch.equal(loaded(input_ids=x).logits.float(), module(x))


def factory_of(folder: Path, x_shape: tuple[int, ...] = (LENGTH,), **keys: Any) -> Any:
    section: Any = TypeAdapter(ModelSection).validate_python({"name": "causal_lm", "path": str(folder), **keys})
    return factory(section, x_shape, len(language.WORDS))


def test_weights_are_read_in_their_type(folder: Path) -> None:
    module = factory_of(folder, dtype="bfloat16")()
    weight = module.language_model.lm_head.weight
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight, load_file(folder / "model.safetensors")["lm_head.weight"].bfloat16())
    x = torch.ones(1, LENGTH, dtype=torch.int64)
    assert module(x).dtype == torch.float32


@pytest.mark.parametrize("said", ["bfloat16", "float16"])
def test_weights_lose_no_digit_by_what_the_configuration_says(folder: Path, tmp_path: Path, said: str) -> None:
    other = copied(folder, tmp_path / "other", {"dtype": said, "torch_dtype": said})
    whole = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(factory_of(other)().language_model.lm_head.weight, whole)


def test_shards_lie_in_the_folder_though_links_lead_out_of_it(folder: Path, tmp_path: Path) -> None:
    """As in the cache of transformers."""
    part = copied(folder, tmp_path / "part", without=("model.safetensors",))
    names = load_file(folder / "model.safetensors")
    index = part / "model.safetensors.index.json"
    (part / "one.safetensors").symlink_to(folder / "model.safetensors")
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "one.safetensors")}))
    assert torch.equal(factory_of(part)().language_model.lm_head.weight, names["lm_head.weight"])
    (tmp_path / "outside.safetensors").symlink_to(folder / "model.safetensors")
    for map_, said in (
        (dict.fromkeys(names, "../outside.safetensors"), r"which has the part '\.\.'"),
        (dict.fromkeys(names, str(folder / "model.safetensors")), "which is absolute"),
        (["one.safetensors"], "must have the file of each weight"),
        (dict.fromkeys(names, 1), "must have the file of each weight"),
    ):
        index.write_text(json.dumps({"metadata": {}, "weight_map": map_}))
        with pytest.raises(ModelError, match=rf"index\.json .*{said}"):
            factory_of(part)()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "config.json says that the weights are quantised"),
        ({"attn_implementation": "some/kernels"}, "config.json names code to download, 'some/kernels'"),
        ({"text_config": [{"_attn_implementation": {"text": "some/kernels"}}]}, "names code to download"),
    ],
)
def test_a_configuration_brings_no_code_and_no_codes(
    folder: Path, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        factory_of(copied(folder, tmp_path / "other", config))()


def test_only_weights_travel(folder: Path) -> None:
    """Angles of rotary positions are constants."""
    model, weights = create(factory_of(folder), 0, torch.float32)
    saved = load_file(folder / "model.safetensors")
    assert model.buffers.size == 0
    assert set(model.params.names) == {f"language_model.{name}" for name in saved}
    assert "language_model.model.rotary_emb.inv_freq" in model.constants
    x = torch.arange(LENGTH)[None] % len(language.WORDS)
    module = bind(model, weights, torch.device("cpu")).eval()
    torch.testing.assert_close(module(x), factory_of(folder)().language_model(x).logits)


LORA = {"model.lora.r": 2, "model.lora.targets": ["*.q_proj", "*.v_proj"], "model.dtype": "bfloat16"}


def test_adapters_alone_travel_over_weights_that_stay_in_bf16(folder: Path) -> None:
    pytest.importorskip("peft")
    made = experiment(folder, **LORA)
    model = resolve(made).model
    saved = {f"language_model.{name}" for name in load_file(folder / "model.safetensors")}
    frozen = {name.replace(".base_layer.", ".") for name in model.constants if "rotary" not in name}
    assert frozen == saved
    assert {model.constants[name].dtype for name in model.constants if "rotary" not in name} == {torch.bfloat16}
    (done,) = raysim.rounds(made)
    # In each of two layers, A and B of rank 2 beside maps of 16 numbers to 16 and to 8.
    assert model.params.num_values == 2 * 2 * ((16 + 16) + (16 + 8))
    assert done.metrics["bytes_up"] == 2 * 4 * model.params.num_values
    again, in_pieces = (bits(folder, **LORA, **more) for more in ({"model.recompute": True}, {"client.accumulate": 2}))
    for name, value in done.params.items():
        if name in model.params.names:
            assert torch.equal(again[name], value)
            torch.testing.assert_close(in_pieces[name], value, rtol=0.02, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning")  # peft asks transformers by a former name
def test_exported_adapters_are_those_of_the_run_for_peft(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    made = experiment(folder, **{key: value for key, value in LORA.items() if key != "model.dtype"})
    result = raysim.run(made, path=tmp_path / "run")
    kept_model.export(tmp_path / "run", tmp_path / "adapter", adapter=True)
    base = AutoModelForCausalLM.from_pretrained(folder)
    elsewhere = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    module = resolve(made).model.module().eval()
    module.load_state_dict({name: torch.as_tensor(value) for name, value in result.params.items()}, strict=False)
    x = torch.arange(LENGTH)[None] % len(language.WORDS)
    torch.testing.assert_close(elsewhere(x).logits, module(x))


def test_no_place_sees_those_behind_it(folder: Path) -> None:
    module = factory_of(folder)().eval()
    x = torch.tensor([[2, 3, 4, 5, 0, 0]])
    torch.testing.assert_close(module(x)[:, :4], module(x[:, :4]))


def copied(folder: Path, to: Path, config: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> Path:
    to.mkdir()
    for file in folder.glob("*.*"):
        if file.name not in without:
            (to / file.name).write_bytes(file.read_bytes())
    if config:
        (to / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    return to


def test_a_folder_without_weights_is_named(folder: Path, tmp_path: Path) -> None:
    bare = copied(folder, tmp_path / "bare", without=("model.safetensors",))
    with pytest.raises(ModelError, match=r"bare/model.safetensors is missing: model.path must hold"):
        factory_of(bare)()
    (bare / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pytorch_model.bin is a pickle, which raysim does not read"):
        factory_of(bare)()


def test_a_folder_without_a_configuration_is_named(folder: Path, tmp_path: Path) -> None:
    bare = copied(folder, tmp_path / "bare", without=("config.json",))
    with pytest.raises(ModelError, match=r"^\S*bare/config.json is missing: model.path must be a folder"):
        factory_of(bare)()


def test_weights_that_lack_a_tensor_are_not_drawn(folder: Path, tmp_path: Path) -> None:
    part = copied(folder, tmp_path / "part")
    weights = load_file(part / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, part / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"part: expected a causal language model .* lack model.norm.weight"):
        factory_of(part)()


def test_damaged_weights_are_an_error_of_raysim(folder: Path, tmp_path: Path) -> None:
    part = copied(folder, tmp_path / "part")
    (part / "model.safetensors").write_bytes((part / "model.safetensors").read_bytes()[:-5])
    with pytest.raises(ModelError, match="part: expected a causal language model"):
        factory_of(part)()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab_size": 5}, "has a vocabulary of 5 tokens, but the data have 13: data.tokenizer must be the model's"),
        ({"max_position_embeddings": 7}, "takes texts of at most 7 tokens, but data.length is 12"),
    ],
)
def test_texts_that_do_not_fit_the_model(folder: Path, tmp_path: Path, config: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        factory_of(copied(folder, tmp_path / "other", config))()


def test_a_tokeniser_of_another_model_is_an_error_before_the_first_round(folder: Path, tmp_path: Path) -> None:
    for words, said in (
        ([*language.WORDS[:2], *reversed(language.WORDS[2:])], "'and' is token 3 there and token 11 in"),
        ([*language.WORDS, "zero"], "'zero' is token 13 there and no token in"),
    ):
        other = language.write_tokenizer(tmp_path / "other", words)
        with pytest.raises(RaysimError, match=f"must be that of the model, but {said}"):
            resolve(experiment(folder, data__tokenizer=str(other)))


def test_images_are_no_texts(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"takes texts \(time,\), but x has shape \(28, 28\)"):
        factory_of(folder, (28, 28))()


@pytest.mark.ray
def test_one_and_two_workers_make_the_same_bits(folder: Path, ray_cluster: Any) -> None:
    one, two = [bits(folder, rounds=1, cohort__size=4, engine__workers=workers) for workers in (1, 2)]
    for name, value in one.items():
        assert torch.equal(two[name], value)


def test_a_seed_that_draws_no_adapters_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bits(folder, **LORA, model__seed=3)
    assert not any("model.seed" in message for message in caplog.messages)
    bits(folder, model__seed=3)
    assert "model.seed = 3 draws nothing: model.path has all values" in caplog.messages
