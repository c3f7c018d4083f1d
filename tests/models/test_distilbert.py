"""DistilBERT from a folder: its size, its padding, and a round of it on tokens of the same folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

import raysim
from raysim.engine.plan.beginnings import log_beginning
from raysim.engine.plan.resolve import resolve
from raysim.errors import ModelError
from raysim.models.model import bind, create
from raysim.models.section import ModelSection, factory
from tests.support import strange_code

Make = Callable[..., raysim.Experiment]

WORDS, PLACES, WIDTH, LAYERS, HIDDEN = 20, 6, 8, 2, 16
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil", "up", "talks", "home", "win", "new", "chip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An encoder with fresh weights, and its tokeniser."""
    import transformers

    made = tmp_path / "distilbert"
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=PLACES, dim=WIDTH, n_layers=LAYERS, n_heads=2, hidden_dim=HIDDEN
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.DistilBertModel(config).save_pretrained(made)
    (made / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DistilBertTokenizer"}))
    return made


def made(folder: Path | str, outputs: int) -> Any:
    section = TypeAdapter(ModelSection).validate_python({"name": "distilbert", "path": str(folder)})
    return create(factory(section, (5,), outputs), 0, torch.float32)


def encoder(v: int, places: int, d: int, layers: int, h: int) -> int:
    """BERT's layers, without token types and pooler."""
    embeddings, attention, network, norms = (v + places) * d + 2 * d, 4 * (d * d + d), 2 * d * h + h + d, 2 * 2 * d
    return embeddings + layers * (attention + network + norms)


def classifier(d: int, outputs: int) -> int:
    return (d * d + d) + (d + 1) * outputs


def test_the_number_of_parameters_follows_from_the_folders_config(folder: Path) -> None:
    model, _ = made(folder, outputs=3)
    assert model.params.num_values == encoder(WORDS, PLACES, WIDTH, LAYERS, HIDDEN) + classifier(WIDTH, 3)


def test_the_papers_encoder_has_66_million() -> None:
    """Sanh et al. 2019, table 3."""
    assert round(encoder(30_522, 512, 768, 6, 3072) / 1e6) == 66


@pytest.mark.parametrize("said", ["bfloat16", "float16"])
def test_weights_lose_no_digit_by_what_the_configuration_says(folder: Path, said: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": said, "torch_dtype": said}))
    model, weights = made(folder, outputs=3)
    name = "embeddings.word_embeddings.weight"
    found = {key: value for key, value in weights.to_named(model).items() if key.endswith(name)}
    (read,) = found.values()
    assert torch.equal(read, load_file(folder / "model.safetensors")[name])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "config.json says that the weights are quantised"),
        ({"attn_implementation": "some/kernels"}, "config.json names code to download, 'some/kernels'"),
    ],
)
def test_a_configuration_brings_no_code_and_no_codes(folder: Path, config: dict[str, Any], said: str) -> None:
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    with pytest.raises(ModelError, match=said):
        made(folder, outputs=3)


def test_no_place_attends_to_padding(folder: Path) -> None:
    model, weights = made(folder, outputs=3)
    module = bind(model, weights, torch.device("cpu")).eval()
    torch.testing.assert_close(module(torch.tensor([[3, 4, 0]])), module(torch.tensor([[3, 4, 0, 0, 0]])))


@pytest.fixture
def a_round(folder: Path, tmp_path: Path, experiment: Make) -> Make:
    """A round on four texts of as many classes, with further keys of the model."""
    texts = ("Oil up", "Talks on", "Home win", "New chip")
    for split in ("train.csv", "test.csv"):
        (tmp_path / split).write_text("".join(f'"{label}","{text}",""\n' for label, text in enumerate(texts, 1)))
    tokens = {"name": "pretrained", "path": str(folder), "length": 5}
    return lambda **keys: experiment(
        rounds=1,
        data={"name": "ag_news", "clients": 2, "root": str(tmp_path), "tokens": tokens},
        model={"name": "distilbert", "path": str(folder), **keys},
        cohort={"size": 2},
        client={"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 2},
    )


# Of peft, about transformers.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_and_a_new_head_go_to_the_model_of_transformers(folder: Path, tmp_path: Path, a_round: Make) -> None:
    import peft
    import transformers

    lora = {"r": 2, "targets": ["*.q_lin", "*.v_lin"], "whole": ["*.classifier", "*.pre_classifier"]}
    raysim.run(a_round(lora=lora), path=tmp_path / "run")
    raysim.export(tmp_path / "run", tmp_path / "adapter", adapter=True)
    raysim.export(tmp_path / "run", tmp_path / "whole.safetensors")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), num_labels=4)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    plan = resolve(a_round(lora=lora))
    module = bind(plan.model, plan.initial, torch.device("cpu")).eval()
    module.load_state_dict(load_file(tmp_path / "whole.safetensors"))
    x = torch.tensor([[2, 5, 6, 3, 0]])
    assert torch.equal(loaded(input_ids=x, attention_mask=(x != 0).long()).logits, module(x))


def test_a_round_trains_every_layer_and_again_to_the_same_bits(folder: Path, a_round: Make) -> None:
    exp = a_round()
    (first,), (again,) = raysim.rounds(exp), raysim.rounds(exp)
    assert torch.equal(first.weights.params, again.weights.params)
    model, before = made(folder, outputs=4)
    start = model.params.views(before.params)
    still = {name for name, value in start.items() if torch.equal(first.params[name], value)}
    # A bias of all keys alike moves no share of attention: its gradient is zero, up to rounding.
    assert {name for name in still if "k_lin.bias" not in name} == set()
    assert (first.metrics["clients"], first.metrics["rejected"]) == (2, 0)


def test_an_encoder_that_lacks_weights_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    lacks = {name: value for name, value in weights.items() if "layer.1" not in name}
    assert len(lacks) < len(weights)
    save_file(lacks, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"distilbert: .*its weights lack distilbert\.transformer\.layer\.1\."):
        made(folder, outputs=3)


def test_a_pickle_of_weights_is_not_read(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pytorch_model.bin is a pickle, which raysim does not read"):
        made(folder, outputs=3)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_weights_are_finite(folder: Path, odd: float) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_lin.bias"))
    weights[name][2] = odd
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"the weights '.*q_lin\.bias' must be finite numbers, but some are nan or inf"
    ):
        made(folder, outputs=3)


def test_a_seed_that_draws_no_classifier_is_said(folder: Path, a_round: Make, caplog: pytest.LogCaptureFixture) -> None:
    import transformers

    log_beginning(resolve(a_round(seed=3)))
    assert not any("model.seed" in message for message in caplog.messages)
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), num_labels=4)
    whole.save_pretrained(folder)
    log_beginning(resolve(a_round(seed=3, lora={"r": 2, "targets": ["*.q_lin"]})))
    log_beginning(resolve(a_round()))
    assert not any("model.seed" in message for message in caplog.messages)
    log_beginning(resolve(a_round(seed=3)))
    assert "model.seed = 3 draws nothing: model.path has all values" in caplog.messages


def test_texts_with_more_places_than_the_encoder_are_named(folder: Path) -> None:
    section = TypeAdapter(ModelSection).validate_python({"name": "distilbert", "path": str(folder)})
    with pytest.raises(ModelError, match="texts of at most 6 tokens, but x has 7"):
        create(factory(section, (7,), 3), 0, torch.float32)


def test_tokens_of_another_tokeniser_are_refused(folder: Path, tmp_path: Path, a_round: Make) -> None:
    exp = a_round()
    with pytest.raises(raysim.ExperimentError, match=r"data\.tokens\.name must be 'pretrained', .*but is 'words'"):
        raysim.rounds(exp.changed({"data.tokens": {"name": "words", "vocabulary": 10, "length": 5}}))
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    raysim.rounds(exp.changed({"data.tokens.path": str(other)}))
    (other / "vocab.txt").write_text("\n".join((*PIECES[:5], *reversed(PIECES[5:]))) + "\n")
    with pytest.raises(
        raysim.ExperimentError, match=r"data\.tokens\.path = .* must be that of the model, but '.* is token"
    ):
        raysim.rounds(exp.changed({"data.tokens.path": str(other)}))


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing: model\.path must be a folder"):
        made(tmp_path / "nothing", outputs=3)


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'raysim\[transformers\]'"):
        made("anywhere", outputs=3)


def test_code_in_a_folder_is_neither_run_nor_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = strange_code.placed(folder, monkeypatch, "Config", "Model")
    auto = {"AutoConfig": "strange.Config", "AutoModelForSequenceClassification": "strange.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "strange", "auto_map": auto}))
    with pytest.raises(raysim.ModelError, match="expected a folder that transformers reads"):
        made(folder, 3)
    assert not ran.exists()
