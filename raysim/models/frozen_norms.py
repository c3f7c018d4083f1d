"""Finds BatchNorm layers whose parameters are frozen, and holds their running statistics still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def frozen_norms(module: nn.Module) -> list[str]:
    """Return the names of the BatchNorm layers with running statistics and frozen parameters.

    >>> norm = nn.BatchNorm1d(2)
    >>> frozen_norms(nn.Sequential(norm)), frozen_norms(nn.Sequential(norm.requires_grad_(False)))
    ([], ['0'])
    """
    return [
        name
        for name, child in module.named_modules()
        if isinstance(child, _BatchNorm)
        and child.running_mean is not None
        and child.weight is not None
        and not any(parameter.requires_grad for parameter in child.parameters())
    ]


@dataclass(frozen=True)
class HeldNorms:
    """A factory of modules whose frozen BatchNorm layers work as in evaluation, also while clients train."""

    factory: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        module = self.factory()
        if isinstance(module, nn.Module):
            for name in frozen_norms(module):
                norm = module.get_submodule(name).eval()
                # The module's train() calls this.
                norm.train = partial(_as_it_is, norm)  # type: ignore[method-assign]
        return module


def _as_it_is(norm: nn.Module, mode: bool = True) -> nn.Module:
    return norm
