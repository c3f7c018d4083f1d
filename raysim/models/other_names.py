"""Takes initial values under each name of a tensor that a module has under several, as its state_dict() does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy.typing as npt
import torch
from torch import nn

from raysim.errors import ModelError
from raysim.models.layout import given_tensor


def under_first_names(module: nn.Module, named: Mapping[str, npt.ArrayLike]) -> dict[str, npt.ArrayLike]:
    """Return the values under the names by which a model knows its tensors: the first name of each.

    Raises:
        ModelError: two names of one tensor have different values.
    """
    first, kept = dict[int, str](), dict(named)
    every = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for name, tensor in chain(*every):
        known = first.setdefault(id(tensor), name)
        if name == known or name not in kept:
            continue
        value = kept.pop(name)
        if known in kept and not torch.equal(given_tensor(known, kept[known]), given_tensor(name, value)):
            raise ModelError(
                f"params[{known!r}] and params[{name!r}] are one tensor of the model, but their values differ: pass "
                f"one of them."
            )
        kept.setdefault(known, value)
    return kept
