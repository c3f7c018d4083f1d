"""Checks the folder of a pretrained model, as transformers saves it, before transformers reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from raysim.errors import ModelError
from raysim.storage.inside import flaw
from raysim.storage.reading import json_object

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", INDEX)


def configuration(folder: Path) -> dict[str, Any]:
    """Return what config.json says.

    Raises:
        ModelError: it is missing or damaged, says that weights are codes, or names code to download.
    """
    if not (file := folder / CONFIG).is_file():
        raise ModelError(f"{file} is missing: model.path must be a folder as transformers saves it.")
    config = json_object(file, ModelError)
    if "quantization_config" in config:
        raise ModelError(f"{file} says that the weights are quantised: raysim trains those that are numbers.")
    if (code := _code(config)) is not None:
        raise ModelError(f"{file} names code to download, {code!r:.100}: remove it, nothing is downloaded.")
    return config


def check_weights(folder: Path) -> None:
    """Raise ModelError unless the weights are safetensors, in files of the folder."""
    if not any((folder / name).is_file() for name in WEIGHTS):
        others = sorted(file.name for file in folder.glob("*.bin"))
        pickles = f" ({others[0]} is a pickle, which raysim does not read)" if others else ""
        raise ModelError(f"{folder / WEIGHTS[0]} is missing{pickles}: model.path must hold the weights as safetensors.")
    _check_index(folder)


def check_finite(folder: Path, module: nn.Module) -> None:
    """Raise ModelError if a weight that was read has a value that is not a finite number: every loss would be none."""
    for name, parameter in module.named_parameters():
        if not parameter.is_meta and parameter.numel() and not all(map(_is_finite, parameter.detach().aminmax())):
            raise ModelError(f"{folder}: the weights {name!r} must be finite numbers, but some are nan or inf.")


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite())


def _check_index(folder: Path) -> None:
    """Raise ModelError if the index of the weights, if there is one, names a file that is not in the folder."""
    index = folder / INDEX
    if index.is_file():
        names = json_object(index, ModelError).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ModelError(f"{index} must have the file of each weight as weight_map.")
        for name in sorted(set(names.values())):
            # A link may lead out of the folder: so do those of transformers' own cache.
            if (why := flaw(name)) is not None:
                raise ModelError(f"{index} names the file {name!r:.100}, which {why}: weights lie in the folder.")


def _code(said: Any) -> str | None:
    """Return the repository that a configuration names as the implementation of a layer; None if it names none."""
    if not isinstance(said, dict | list):
        return None
    for key, value in said.items() if isinstance(said, dict) else enumerate(said):
        if str(key).endswith("_implementation"):
            chosen = value.values() if isinstance(value, dict) else (value,)
            # Implementations that come with transformers have names without a slash.
            found = next((name for name in chosen if isinstance(name, str) and "/" in name), None)
        else:
            found = _code(value)
        if found is not None:
            return found
    return None
