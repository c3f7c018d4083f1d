"""The base of every configuration record: frozen, strict about keys, and clear when something is wrong.

A concept's configuration stands beside its code (`server/sgd.py` holds both the equation and `Sgd`); the experiment
only composes. Each default is therefore written once.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the experiment. Unknown keys are errors; values cannot change after validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
