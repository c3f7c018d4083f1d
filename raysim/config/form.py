"""Notices what a script's function returns in another form than it has to have, and copies what is kept of it.

A function may do so on some clients or in later rounds alone, which a trial before the first round does not see. What
it returns is stacked with other clients', written to files and read by compiled code, which take its bytes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor

from raysim.config.plain import shown


def has_form(returned: Any, like: Tensor) -> TypeGuard[Tensor]:
    """Whether it is a tensor of the same shape, dtype, layout and device; it costs no arithmetic.

    >>> import torch
    >>> like = torch.zeros(2)
    >>> has_form(torch.ones(2), like), has_form(torch.ones(2, 1), like), has_form(None, like)
    (True, False, False)
    """
    # A nested tensor has no shape: asking for it raises.
    return isinstance(returned, Tensor) and not returned.is_nested and _form(returned) == _form(like)


def has_values(tensor: Tensor) -> bool:
    """Whether it is a dense tensor, on any device where there are numbers; a nested one has no shape to ask for.

    >>> import torch
    >>> has_values(torch.zeros(2)), has_values(torch.zeros(2).to_sparse()), has_values(torch.zeros(2, device="meta"))
    (True, False, False)
    """
    return not tensor.is_nested and tensor.layout == torch.strided and tensor.device.type != "meta"


def is_plain(tensor: Tensor) -> bool:
    """Whether it is a dense tensor on the CPU.

    >>> import torch
    >>> is_plain(torch.zeros(2)), is_plain(torch.zeros(2).to_sparse()), is_plain(torch.zeros(2, device="meta"))
    (True, False, False)
    """
    return has_values(tensor) and tensor.device.type == "cpu"


def check_form(what: str, name: str, returned: Any, like: Tensor, error: type[Exception] = ValueError) -> None:
    """Refuse what has another form.

    Args:
        what: names the function, as the message begins.
        name: of what it returns.
        returned: by the function.
        like: has the form.
        error: the class of the error, which says what was returned, and what has to be.
    """
    if not has_form(returned, like):
        raise error(f"{what} must return {name} as {shown(like)}, but returned {shown(returned)}.")


def kept(returned: Tensor) -> Tensor:
    """Return a copy of a vector that outlives the call, as compiled code and files read it.

    A function may return one buffer again and again, or a part of a larger one: the vectors of several clients, or of
    several rounds, would all be its last. It may return a number's opposite that torch has yet to compute, such as
    `z.conj().imag`, a tensor with a gradient's history, or one of inference mode.

    >>> import torch
    >>> kept(torch.complex(torch.zeros(2), torch.ones(2)).conj().imag).is_neg()
    False
    """
    return returned.detach().clone(memory_format=torch.contiguous_format)


def kept_all(returned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of vectors by name; see `kept`."""
    return {name: kept(vector) for name, vector in returned.items()}


def check_forms(
    what: str, name: str, returned: Any, like: Mapping[str, Tensor], error: type[Exception] = ValueError
) -> None:
    """Refuse what is not a mapping of the same names to tensors of the same forms; see `check_form`."""
    if not isinstance(returned, Mapping) or set(returned) != set(like):
        got = sorted(map(str, returned)) if isinstance(returned, Mapping) else shown(returned)
        raise error(f"{what} must return {name} with the names {sorted(like)}, but returned {got}.")
    for key, tensor in returned.items():
        check_form(what, f"{name}[{key!r}]", tensor, like[key], error)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device
