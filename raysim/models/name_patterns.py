"""Finds a module's parameters and layers by patterns such as "features.*", and freezes parameters by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field
from torch import nn

from raysim.config import messages
from raysim.errors import ModelError
from raysim.models import changed_modules

Patterns = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=1_000)]
"""Of names, in which * stands for any letters."""


def matching(patterns: Sequence[str], names: Iterable[str], key: str, what: str) -> list[str]:
    """Return the names that match one of the patterns, in their order.

    Args:
        patterns: of whole names.
        names: those of a module.
        key: of the patterns, for messages.
        what: the names are those of, for messages.

    Raises:
        ModelError: a pattern matches nothing; names the nearest.

    >>> matching(["*.bias"], ["0.weight", "0.bias", "2.bias"], "model.freeze", "parameter")
    ['0.bias', '2.bias']
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            groups = {f"{name[:at]}.*" for name in names for at, letter in enumerate(name) if letter == "."}
            ends = {f"*.{name.rpartition('.')[2]}" for name in names}
            hint = messages.nearest(pattern, [*names, *sorted(groups), *sorted(ends)])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            has = f"it has {', '.join(names[:5])}{more}" if names else "it has none"
            raise ModelError(f"{key}: {pattern!r} matches no {what} of the module{hint}: {has}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


@dataclass(frozen=True)
class FreezesByName:
    """A factory of modules whose parameters of these names are frozen."""

    factory: Callable[[], nn.Module]
    patterns: tuple[str, ...]

    def __call__(self) -> nn.Module:
        module = self.factory()
        if isinstance(module, nn.Module):
            # A parameter of several names is frozen by any of them.
            named = dict(module.named_parameters(remove_duplicate=False))
            changed_modules.note(module)
            for name in matching(self.patterns, named, "model.freeze", "parameter"):
                named[name].requires_grad_(False)
            if not any(parameter.requires_grad for parameter in named.values()):
                raise ModelError(
                    f"model.freeze = {list(self.patterns)} leaves no trainable parameter, so there is nothing to learn."
                )
        return module
