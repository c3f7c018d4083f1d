"""The base of every configuration record: frozen, strict about keys, and clear when something is wrong.

A concept's configuration stands beside its code (`server/sgd.py` holds both the equation and `Sgd`); the experiment
only composes. Each default is therefore written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A table of the experiment. Unknown keys are errors; values cannot change after validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def named_unless_said(choice: type[Section]) -> BeforeValidator:
    """Keys without a `name` are those of this choice: `optimizer.lr=0.5` alone changes the default optimizer."""

    def complete(given: Any) -> Any:
        if isinstance(given, Mapping) and "name" not in given:
            return {"name": choice.model_fields["name"].default, **given}
        return given

    return BeforeValidator(complete)
