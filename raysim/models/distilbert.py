"""Defines DistilBERT (Sanh et al. 2019) from a folder on this machine, for texts with one label."""

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


class Distilbert(ModelChoice, Section):
    """The pretrained encoder and a linear classifier over its first place; all weights are trained.

    The classifier is that of the folder, if it has one, else a fresh one. `data.tokens` must be `pretrained` with the
    same tokeniser; 0 is padding, which no place attends to.
    """

    name: Literal["distilbert"] = "distilbert"
    path: FilePath = Field(
        description=(
            "Folder with config.json and model.safetensors, as transformers saves them, the same on every machine; "
            "nothing is downloaded."
        )
    )


class Classifier(nn.Module):
    """(batch, time) token numbers -> (batch, outputs).

    Args:
        encoder: the encoder of transformers, with its classifier.
        is_drawn: whether the folder has no classifier, so that a fresh one was drawn.
    """

    def __init__(self, encoder: Any, is_drawn: bool = True) -> None:
        super().__init__()
        self.encoder, self.is_drawn = encoder, is_drawn

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each text."""
        logits: Tensor = self.encoder(input_ids=x, attention_mask=(x != 0).long()).logits
        return logits


def make(section: Distilbert, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for texts of shape (batch, time)."""
    if len(x_shape) != 1:
        raise ModelError(f"distilbert takes texts (time,), but x has shape {x_shape}.")
    try:
        from transformers import AutoModelForSequenceClassification  # optional, and takes seconds to import
    except ImportError:
        raise ModelError(
            "model 'distilbert' needs the package transformers: pip install 'raysim[transformers]'"
        ) from None
    folder = Path(section.path).expanduser()
    pretrained_folder.configuration(folder)
    pretrained_folder.check_weights(folder)
    with parsing(folder, "a folder that transformers reads as model.path", ModelError, verdict=""):
        # A stranger's folder may name code of its own, for which transformers would ask at the terminal.
        encoder, found = AutoModelForSequenceClassification.from_pretrained(
            str(folder),
            # Otherwise that of config.json: weights would lose digits on their way.
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            num_labels=outputs,
            trust_remote_code=False,
            output_loading_info=True,
        )
        # Only the classifier may be drawn.
        if missing := sorted(key for key in found["missing_keys"] if key.startswith(f"{encoder.base_model_prefix}.")):
            raise ValueError(f"its weights lack {', '.join(missing[:3])}{' ...' if missing[3:] else ''}")
    pretrained_folder.check_finite(folder, encoder)
    places = getattr(encoder.config, "max_position_embeddings", None)
    if isinstance(places, int) and places < x_shape[0]:
        raise ModelError(f"{folder} takes texts of at most {places:,} tokens, but x has {x_shape[0]:,}: lower length.")
    return Classifier(encoder, bool(found["missing_keys"]))
