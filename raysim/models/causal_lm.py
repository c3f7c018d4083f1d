"""Defines causal language models from a folder on this machine, for texts with an answer to predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.errors import ModelError
from raysim.models import pretrained_folder
from raysim.models.model import ModelChoice
from raysim.storage.reading import parsing

_RECOMPUTES = ("activation_checkpointing_enable", "gradient_checkpointing_enable")


class CausalLm(ModelChoice, Section):
    """Any causal language model of transformers, such as Llama or GPT-2: the logits of the next token at each place.

    Texts are padded at their end, where no place before attends to, so they need no mask.
    """

    name: Literal["causal_lm"] = "causal_lm"
    path: FilePath = Field(
        description=(
            "Folder with config.json and model.safetensors, as transformers saves them, the same on every machine; "
            "nothing is downloaded."
        ),
        examples=["models/tinyllama"],
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type in which weights are read, and kept under adapters; trained ones have `engine.dtype`.",
    )
    recompute: bool = Field(
        False,
        description="Compute the activations inside each layer again in the backward pass, for less memory.",
    )


class LanguageModel(nn.Module):
    """(batch, time) token numbers -> (batch, time, vocabulary)."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model = language_model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each place's next token; not in bf16, where losses would be too coarse."""
        logits: Tensor = self.language_model(input_ids=x, use_cache=False).logits
        return logits.float() if logits.dtype == torch.bfloat16 else logits


def make(section: CausalLm, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (time,)."""
    if len(x_shape) != 1:
        raise ModelError(f"causal_lm takes texts (time,), but x has shape {x_shape}.")
    folder = Path(section.path).expanduser()
    _check_config(folder, x_shape[0], outputs)
    pretrained_folder.check_weights(folder)
    dtype = getattr(torch, section.dtype)
    language_model = _loaded(folder, dtype)
    pretrained_folder.check_finite(folder, language_model)
    for parameter in language_model.parameters():
        parameter.data = parameter.data.to(dtype)
    if section.recompute:
        # transformers 5 has another name for it.
        name = next(name for name in _RECOMPUTES if hasattr(language_model, name))
        with parsing(folder, "a model that can compute activations again", ModelError, verdict=""):
            getattr(language_model, name)({"use_reentrant": False})
    _keep_constants(language_model)
    return LanguageModel(language_model)


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    try:
        from transformers import AutoModelForCausalLM  # optional, and takes seconds to import
        from transformers.utils import logging
    except ImportError:
        raise ModelError(
            "model 'causal_lm' needs the package transformers: pip install 'raysim[transformers]'"
        ) from None
    shows = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with parsing(folder, "a causal language model that transformers reads", ModelError, verdict=""):
            made, found = AutoModelForCausalLM.from_pretrained(
                str(folder),
                # Otherwise that of config.json: weights would lose digits on their way.
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            if missing := sorted(found["missing_keys"]):
                raise ValueError(f"its weights lack {', '.join(missing[:3])}{' ...' if missing[3:] else ''}")
    finally:
        if shows:
            logging.enable_progress_bar()
    return made


def _check_config(folder: Path, length: int, outputs: int) -> None:
    """Refuse texts of other tokens, or with more places, than the model's configuration says."""
    config = pretrained_folder.configuration(folder)
    words = config.get("vocab_size")
    if isinstance(words, int) and words < outputs:
        raise ModelError(
            f"{folder} has a vocabulary of {words:,} tokens, but the data have {outputs:,}: data.tokenizer must be the "
            f"model's."
        )
    places = config.get("max_position_embeddings", config.get("n_positions"))
    if isinstance(places, int) and places < length:
        raise ModelError(f"{folder} takes texts of at most {places:,} tokens, but data.length is {length:,}.")


def _keep_constants(module: nn.Module) -> None:
    """Make frozen parameters of buffers that are not saved, such as the angles of rotary positions: they never change,
    and buffers would travel. A module whose angles follow the texts' lengths registers them anew, so they stay buffers.
    """
    for child in module.modules():
        if "dynamic" in (kind := str(getattr(child, "rope_type", ""))) or "longrope" in kind:
            continue
        for name in sorted(child._non_persistent_buffers_set):
            buffer = child._buffers[name]
            if buffer is not None and buffer.is_floating_point():
                delattr(child, name)
                child.register_parameter(name, nn.Parameter(buffer.clone(), requires_grad=False))
