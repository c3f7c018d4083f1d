"""Calls a function that a script or a package brings, before the first round, and refuses what it does wrong.

It gets vectors of the model's size with numbers that differ, and zeros in the gaps. Refused are errors, arguments that
are written to, and vectors of another shape or dtype or with numbers in the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raysim.config.form import has_form
from raysim.config.global_draws import ADVICE, draws
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition, copied
from raysim.config.user_call import raised
from raysim.errors import ExperimentError
from raysim.models.layout import Layout

PURE = "It must be a function of its arguments alone."
"""What messages say to do about a function that is not."""


SCALES = (1.0, 30.0, 0.03)
"""Of rows that are unlike."""

ROUNDING = 1e-3
"""Share of a row's change by which it may differ when other rows are beside it: products round otherwise."""


def probe(layout: Layout, like: Tensor, rows: int | None = None) -> Tensor:
    """Numbers between -0.1 and 0.1, (P,) or (rows, P), in the dtype of `like` and on its device."""
    numbers = torch.arange(1, (rows or 1) * layout.size + 1, dtype=torch.float64, device=like.device)
    flat = numbers.sin_().mul_(0.1).to(like.dtype).view(*[] if rows is None else [rows], layout.size)
    return layout.map(lambda name, tensor: tensor, flat)


def unequal_sum(numbers: Tensor) -> Tensor:
    """The sum of sin(k) times the k-th number: behind a softmax a plain sum is constant.

    >>> unequal_sum(torch.tensor([1.0, 0.0]))
    tensor(0.8415)
    """
    factors = torch.arange(1, numbers.numel() + 1, device=numbers.device, dtype=torch.float64).sin_()
    return (numbers.reshape(-1) * factors.to(numbers.dtype)).sum()


def unlike_rows(layout: Layout, like: Tensor) -> Tensor:
    """`probe` of one row for each of `SCALES`, times that: whoever takes a maximum, a mean or a bound over several rows
    shows."""
    scales = torch.tensor(SCALES, dtype=like.dtype, device=like.device)
    return probe(layout, like, rows=len(SCALES)) * scales.unsqueeze(-1)


def check_rows(title: str, verb: str, together: Tensor, alone: Sequence[Tensor], before: Tensor) -> None:
    """Refuse a function of several rows that makes of a row something else than of that row alone.

    Args:
        title: how messages name the function.
        verb: what it does with a row, as in "step".
        together: what it made of all rows (K, P).
        alone: what it made of each.
        before: the rows that it was given; a difference is compared with what the function changed in the row.

    Raises:
        ExperimentError: a row differs.
    """
    for made, own, given in zip(together, alone, before, strict=True):
        limit = ROUNDING * (own - given).abs().max() + ROUNDING**2 * given.abs().max()
        if not bool((((made - own).abs() <= limit) | (made == own) | (made.isnan() & own.isnan())).all()):
            raise ExperimentError(
                f"{title} must {verb} each row of a stack (K, P) as it does one client's (P,), because clients are "
                f"trained together here, but the rows differ: reduce over the last axis only, or set engine.trainer = "
                f"'fused' or 'one_by_one'."
            )


def called(title: str, function: Callable[..., Any], *arguments: Any, writes: tuple[str, ...] = ()) -> Any:
    """Return what the function returns.

    Args:
        title: how messages name it.
        function: the user's.
        arguments: records, mappings and tensors.
        writes: arguments that it may write to, as in "argument 1".

    Raises:
        ExperimentError: it raised, or wrote to an argument; from the error that it raised.
    """
    given = [(name, tensor) for i, argument in enumerate(arguments, 1) for name, tensor in _tensors(argument, i)]
    before = [tensor.clone() for _, tensor in given]
    try:
        with torch.no_grad(), draws() as drew:
            returned = function(*arguments)
            drawn = drew()
    except Exception as error:
        raise ExperimentError(f"{title} raised {raised(error)}") from error
    if drawn:
        raise ExperimentError(f"{title} {ADVICE}.")
    for (name, tensor), old in zip(given, before, strict=True):
        if not name.startswith(writes or ("\0",)) and not torch.equal(tensor, old):
            raise ExperimentError(f"{title} must not write to its arguments, but wrote to {name}: clone it first.")
    return returned


def tried(title: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the function returns; it is called once more with the same arguments. See `called`.

    Raises:
        ExperimentError: as `called` raises; or the second call returned something else.
    """
    once = called(title, function, *arguments)
    before, own = copied(once), OwnGenerators(function)
    again = called(title, function, *arguments)
    check_repetition(title, before, again, ExperimentError, PURE, own.drew())
    return once


def check_vector(title: str, name: str, returned: Any, like: Tensor, layout: Layout) -> None:
    """Refuse what is not a vector like `like`, or has numbers in the gaps between the layout's tensors.

    Raises:
        ExperimentError: says what was returned, and what has to be.
    """
    if not has_form(returned, like):
        raise ExperimentError(f"{title} must return {name} as {shown(like)}, but returned {shown(returned)}.")
    if returned.shape[-1] == layout.size and not layout.has_zero_gaps(returned):
        if not returned.isfinite().all():
            raise ExperimentError(f"{title} returned {name} with values that are not finite.")
        raise ExperimentError(
            f"{title} must leave zeros between the parameters of a flat vector, but {name} has other numbers there: "
            f"make it by layout.map(function, vector), or multiply it by layout.vector({{}}, default=1.0)."
        )


def check_vectors(title: str, what: str, returned: Any, like: Mapping[str, Tensor], layout: Layout) -> None:
    """Refuse a mapping whose names are not those of `like`, or whose vectors are not like these; see `check_vector`."""
    if not isinstance(returned, Mapping):
        raise ExperimentError(
            f"{title} must return {what} as a mapping from names to tensors, but returned {shown(returned)}."
        )
    if set(returned) != set(like):
        raise ExperimentError(
            f"{title} must return {what} with the names {sorted(like)}, but returned {sorted(returned)}."
        )
    for name, vector in returned.items():
        check_vector(title, f"{what}[{name!r}]", vector, like[name], layout)


def _tensors(value: Any, place: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an argument, with their names in messages."""
    if isinstance(value, Tensor):
        yield f"argument {place}", value
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from _named(value._asdict())
    elif isinstance(value, Mapping):
        yield from _named(value, f"argument {place}")


def _named(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in values.items():
        path = f"{within}[{name!r}]" if within else name
        if isinstance(value, Tensor):
            yield path, value
        elif isinstance(value, Mapping):
            yield from _named(value, path)
