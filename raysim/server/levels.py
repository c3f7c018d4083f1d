"""Says which levels of clipping and zeroing a state has before its first round, and where it goes on by other settings.

A fixed clip level is a setting, an adaptive level a state: a run that goes on from another one's state takes its own
fixed level, and goes on with an adaptive level only where the other one's was adaptive too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raysim.server.clipping import AdaptiveClip, ClipSection, Zeroing, initial
from raysim.server.state import Tensors


class Limiting(NamedTuple):
    """What an experiment says of clipping and zeroing; None: off."""

    clip: ClipSection | None
    zeroing: Zeroing | None


def first(limiting: Limiting) -> dict[str, Tensor]:
    """Return the levels of the first round.

    >>> first(Limiting(None, Zeroing(initial=0.5)))
    {'zeroing': tensor(0.5000, dtype=torch.float64)}
    """
    levels = {}
    if limiting.clip:
        levels["clip"] = scalar(initial(limiting.clip))
    if limiting.zeroing:
        levels["zeroing"] = scalar(limiting.zeroing.initial)
    return levels


def going_on(before: Limiting, levels: Tensors, after: Limiting) -> dict[str, Tensor]:
    """Return the levels of a run that goes on from another one's levels; before, after: of the other one, of the run.

    >>> adaptive = Limiting(AdaptiveClip(), None)
    >>> going_on(adaptive, {"clip": scalar(0.25)}, adaptive), going_on(Limiting(None, None), {}, adaptive)
    ({'clip': tensor(0.2500, dtype=torch.float64)}, {'clip': tensor(1., dtype=torch.float64)})
    """
    kept = []
    if isinstance(before.clip, AdaptiveClip) and isinstance(after.clip, AdaptiveClip):
        kept.append("clip")
    if before.zeroing and after.zeroing:
        kept.append("zeroing")
    return {**first(after), **{name: levels[name] for name in kept}}


def scalar(value: float) -> Tensor:
    """Return a level as a state has it."""
    return torch.tensor(value, dtype=torch.float64)
