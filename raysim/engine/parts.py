"""Names what a script passes beside the experiment, once for every function that takes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypedDict, TypeVar

import numpy.typing as npt

from raysim.data.dataset import FederatedDataset
from raysim.models.model import ModuleFactory
from raysim.models.task import Loss
from raysim.server.optimizers.own import Maker

P = ParamSpec("P")
R = TypeVar("R")


class Parts(TypedDict, total=False):
    """What a script passes beside the experiment, as keywords; what is left out is None.

    dataset, model, loss: stand in for `[data]`, `[model]` and the task's loss. `model` returns a new
        torch.nn.Module; `loss(outputs, targets)` returns one loss per example, shape (batch,).
    params: initial values by name, for every trainable parameter.
    server_optimizer: where `[server.optimizer]` is "own", a function from that section to the pair of functions.
    """

    dataset: FederatedDataset | None
    model: ModuleFactory | None
    loss: Loss | None
    params: Mapping[str, npt.ArrayLike] | None
    server_optimizer: Maker | None


def takes_parts(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of `**parts: Unpack[Parts]`: signature and help show each part, and no other keyword passes.

    Raises:
        TypeError: at a call with a keyword that there is none of; it names the nearest.
    """
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in Parts.__annotations__.items()}
    parts = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=k) for n, k in kinds.items()]
    allowed = {each.name for each in (*named, *parts)}

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords.keys() - allowed:
            near = get_close_matches(name, allowed, 1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*args, **keywords)

    checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{inspect.cleandoc(Parts.__doc__ or '')}\n"
    checked.__signature__ = signature.replace(parameters=[*named, *parts])  # type: ignore[attr-defined]
    return checked
