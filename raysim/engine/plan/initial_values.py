"""Reads the initial values that `model.init` names: tensors by name, or a checkpoint of the same model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from raysim.errors import ModelError
from raysim.models import holdable
from raysim.models.layout import Layout
from raysim.models.lora import base_name, is_adapter
from raysim.models.model import Model, ModelChoice, Weights, replace_frozen, replace_params
from raysim.run_folder import checkpoint, experiment_record, files, frozen
from raysim.storage import sealed
from raysim.storage.nearby import nearest
from raysim.storage.reading import parsing, regular

log = logging.getLogger("raysim")

WRAPPER = "module."
"""What torch's modules of data parallelism put before each name."""

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")

MOST_NAMED = 5
"""Names in a message."""


def read(section: ModelChoice | None, model: Model, drawn: Weights) -> tuple[Model, Weights]:
    """Return model and weights with the values of the section's file; as they are, if it names none.

    A file may lack layers whose parameters are trained, such as a new head: they keep their drawn values, and a warning
    names them.

    Raises:
        ModelError: it is not a safetensors file, or its names or shapes are not the model's; says which.
        CheckpointError: it is a damaged checkpoint.
    """
    if section is None or section.init is None:
        return model, drawn
    place = Path(section.init).expanduser().absolute()
    try:
        file = regular(place, ModelError)
    except ModelError as error:
        hint = ""
        if not os.path.lexists(place):
            hint = nearest(place).strip() or (
                "A run whose file was moved goes on with its new place: raysim run FILE --set model.init=PLACE "
                "--resume, or raysim.run(experiment.changed({'model.init': place}), resume=True)."
            )
        raise ModelError(f"model.init: {error} {hint}".rstrip()) from None
    if file.suffix in PICKLES:
        raise ModelError(
            f"model.init: {file} must be a safetensors file, because one of {file.suffix} can run code when it is "
            f"read. If you trust it, write one: safetensors.torch.save_file(torch.load({file.name!r}), "
            f"{file.with_suffix('.safetensors').name!r}); of a whole module, torch.load({file.name!r}, "
            "weights_only=False).state_dict()."
        )
    with parsing(f"model.init: {file}", "a safetensors file", ModelError, ""), safe_open(file, "pt") as opened:
        tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        by_raysim = {"checksum", "experiment", "rounds"} & (opened.metadata() or {}).keys()
    if "weights.params" in tensors:
        tensors = _of_checkpoint(file)
    elif len(by_raysim) > 1:
        sealed.check(file, ModelError, "Export the model again.")
    given = _checked(file, tensors, model, section.lora is not None)
    if section.seed is not None and given.keys() >= {*model.params.names, *filter(is_adapter, model.constants)}:
        log.warning("model.seed = %d draws nothing: model.init: %s has all values", section.seed, file)
    named = drawn.to_named(model) | given
    model, others = replace_frozen(model, named)
    weights = replace_params(model, drawn, others)
    holdable.check_initial({**model.constants, **model.params.views(weights.params)}, f"model.init: {file}: ")
    return model, weights


def _of_checkpoint(file: Path) -> dict[str, Tensor]:
    """The values of a checkpoint by the names that its run's folder records, and the frozen ones there."""
    folder = file.resolve().parents[1]
    recorded = experiment_record.stored_tensors(folder)
    if recorded is None:
        raise ModelError(
            f"model.init: {file} must lie in its run's folder, whose {files.RECORD} records the names and shapes of "
            f"its tensors, but that does not: `raysim export` writes a run's model with its names."
        )
    weights = checkpoint.read(file, experiment_record.stored_owner(folder)).weights
    named = frozen.read(folder)
    with parsing(folder / files.RECORD, "names and shapes of the tensors in checkpoints", ModelError):
        for part, record in recorded.items():
            named |= Layout.recorded(record).views(getattr(weights, part))
    return named


def _checked(file: Path, found: Mapping[str, Tensor], model: Model, has_adapters: bool) -> dict[str, Tensor]:
    """The values by the model's names; a file without adapters has the names of the module without them."""
    module = model.module()
    of_base = has_adapters and not any(map(is_adapter, found))
    first = {id(t): name for name, t in chain(module.named_parameters(), module.named_buffers())}
    names = {
        base_name(name) if of_base else name: first[id(tensor)]
        for name, tensor in chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        if not (of_base and is_adapter(name))
    }
    parts = {part.name: part for part in model.parts}
    values: dict[str, Tensor] = {}
    met: dict[str, str] = {}
    for name, value in found.items():
        if (own := names.get(name)) is None:
            continue
        if own in values and not torch.equal(values[own], value.to(values[own].dtype)):
            raise ModelError(
                f"model.init: {file} must have one value of tied tensors, but {met[own]!r} and {name!r} differ."
            )
        values[own], met[own] = value, name
    # What a state dict leaves out, a file may leave out.
    kept = [base_name(name) if of_base else name for name in module.state_dict()]
    missing = [name for name in kept if name in names and names[name] not in values]
    extra = [name for name in found if name not in names]
    if (
        missing
        and not extra
        and _are_whole_layers(missing, found)
        and all(names[n] in model.params.names for n in missing)
    ):
        # A new head on a trained backbone. A frozen tensor or a buffer that is drawn would be a mistake.
        log.warning("model.init: %s lacks %s, which keep their drawn values", file, _listed(missing, verb=False))
    elif missing or extra:
        complaints = [f"{_listed(each)} {what}" for each, what in ((missing, "missing"), (extra, "unknown")) if each]
        wrapped = {name.removeprefix(WRAPPER) for name in found}
        all_wrapped = found and len(wrapped) == len(found) and all(name.startswith(WRAPPER) for name in found)
        strip = (
            f" Those of the file begin with {WRAPPER!r}, as DistributedDataParallel and DataParallel save them: save "
            f"module.module.state_dict()."
            if all_wrapped and wrapped <= names.keys()
            else ""
        )
        raise ModelError(
            f"model.init: {file} must have the names of the model's tensors: {'; '.join(complaints)}.{strip}"
        )
    for name, value in values.items():
        part = parts[name]
        if tuple(value.shape) != part.shape or value.is_floating_point() != part.dtype.is_floating_point:
            raise ModelError(
                f"model.init: {file} must have the shapes of the model's tensors, but {name!r} is "
                f"{tuple(value.shape)} of {value.dtype}, and the model's is {part.shape} of {part.dtype}."
            )
    layouts = (model.params, model.buffers, model.counters)
    return {n: value for n, value in values.items() if n in model.constants or any(n in each.names for each in layouts)}


def _are_whole_layers(missing: Iterable[str], found: Iterable[str]) -> bool:
    """Whether the file has values, and none of a layer of which it lacks one."""
    there = {name.rpartition(".")[0] for name in found}
    return bool(there) and not any(name.rpartition(".")[0] in there for name in missing)


def _listed(names: list[str], verb: bool = True) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    is_or_are = f" {'is' if len(names) == 1 else 'are'}" if verb else ""
    return f"{', '.join(map(repr, names[:MOST_NAMED]))}{more}{is_or_are}"
