"""Split models: groups of parameters that match `local` stay at the client, unsent; the server's stay x_0.

local_epochs = 0    all groups train together: FedPer (the last layers are local), LG-FedAvg (the first layers)
local_epochs > 0    so many epochs of the local groups alone, at `lr`; then the client's work on the others: FedRep
keep = false        local groups start at x_0 in every round, and at scoring, which repeats those epochs: FedRecon

Personal model: the client's local groups, with the other groups of x. Until a client takes part its local groups are
those of x_0.

Sources: Arivazhagan et al. (2019); Liang et al. (2020); Collins et al. (2021);
Singhal et al. (2021); docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from raysim.client.personalisation.personalisation import (
    Ended,
    OwnPass,
    PersonalAt,
    Personalisation,
    PersonalSection,
)
from raysim.config.section import Section
from raysim.config.values import Factor, Name
from raysim.errors import ExperimentError
from raysim.models.layout import Layout

if TYPE_CHECKING:
    from raysim.client.section import ClientSection


def _listed(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


class SplitModel(PersonalSection, Section):
    """Split models: some groups of parameters stay at the client (FedPer, LG-FedAvg, FedRep, FedRecon)."""

    name: Literal["split"] = "split"
    local: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1_000), BeforeValidator(_listed)] = Field(
        description='Patterns of the names of the groups that stay, such as "*.bias"; one or several.'
    )
    local_epochs: Annotated[int, Field(ge=0, le=10**6)] = Field(
        0, description="Epochs of the local groups alone, before the others train. 0: all groups train together."
    )
    keep: bool = Field(True, description="Local groups go on from round to round; otherwise they start at x_0 again.")
    lr: Factor | None = Field(None, description="Learning rate of the local epochs. Absent: the clients' of the round.")

    @model_validator(mode="after")
    def _a_rate_of_epochs(self) -> SplitModel:
        if self.lr is not None and not self.local_epochs:
            raise ValueError(
                f"lr is the learning rate of the local epochs, and there are none: remove lr = {self.lr:g}, or set "
                f"local_epochs"
            )
        return self

    @property
    def keeps(self) -> bool:
        """Whether clients keep their local groups."""
        return self.keep


def make(section: SplitModel, client: ClientSection, layout: Layout) -> Personalisation:
    """The local groups of x are those of x_0, so clients without a vector of their own start from x.

    Raises:
        ExperimentError: a pattern matches no group, or together they match all.

    >>> from raysim.client.section import ClientSection
    >>> layout = Layout.of([("body", torch.zeros(1)), ("head", torch.zeros(1))])
    >>> split = make(SplitModel(local="head"), ClientSection(), layout)
    >>> x, own = layout.vector({"body": 1.0, "head": 0.0}), layout.vector({"body": 0.0, "head": 5.0})
    >>> at = PersonalAt(x, own, train=lambda start: start, gradient=lambda: x)
    >>> [piece.item() for piece in layout.pieces(split.scored(at))]
    [1.0, 5.0]
    >>> moved = Ended(split.start(at), layout.vector({"body": 2.0, "head": 3.0}), None)
    >>> [piece.item() for piece in layout.pieces(split.after(at, moved))]
    [0.0, 8.0]
    """
    local = _groups(section.local, layout)
    others = tuple(name for name in layout.names if name not in local)
    own_groups = layout.only(local)

    def joined(at: PersonalAt) -> Tensor:
        return at.x if not section.keep else _replaced(own_groups, at.x, at.own)

    def begun(at: PersonalAt) -> Tensor:
        return at.train(joined(at)) if section.local_epochs else joined(at)

    def after(at: PersonalAt, ended: Ended) -> Tensor:
        return _replaced(own_groups, torch.zeros_like(ended.delta), ended.start + ended.delta)

    own = None
    if section.local_epochs:
        own = OwnPass(client.with_work(epochs=section.local_epochs), section.lr, held=others)
    return Personalisation(
        scored=joined if section.keep else begun,
        start=begun,
        after=after if section.keep else None,
        own=own,
        held=local if section.local_epochs else (),
        unsent=local,
    )


def _groups(patterns: tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    named = f"the model's groups are {', '.join(layout.names)}"
    for pattern in patterns:
        if not layout.matching([pattern]):
            raise ExperimentError(f"client.personalisation.local: {pattern!r} matches no group: {named}.")
    names = layout.matching(patterns)
    if len(names) == len(layout.names):
        raise ExperimentError(
            f"client.personalisation.local = {list(patterns)} matches every group, so nothing would be sent: {named}."
        )
    return names


def _replaced(groups: Layout, whole: Tensor, by: Tensor) -> Tensor:
    """A new vector: `whole`, with these groups of `by`."""
    vector = whole.clone()
    for piece, own in zip(groups.pieces(vector), groups.pieces(by), strict=True):
        piece.copy_(own)
    return vector
