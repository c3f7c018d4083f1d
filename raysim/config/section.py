"""Defines the base of every configuration record: frozen, strict about keys, with clear errors.

A concept's configuration stands beside its code (`server/optimizers/sgd.py` holds both the equation and `Sgd`); the
experiment only composes. Each default is therefore written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from raysim.config import messages
from raysim.errors import ExperimentError


class Section(BaseModel):
    """A table of the experiment. Unknown keys are errors; values cannot change after validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @classmethod
    def checked(cls, given: Any, at: str = "", **kwargs: Any) -> Self:
        """Validate a mapping.

        Args:
            given: keys and values, as a TOML file has them.
            at: the table's dotted name in the file, the prefix of every key in a message.
            kwargs: as for pydantic's `model_validate`.

        Raises:
            ExperimentError: names every wrong key, its value and the allowed values.
        """
        try:
            return super().model_validate(given, **kwargs)
        except ValidationError as error:
            raise ExperimentError(messages.message(error, cls, at)) from None


def with_default_name(choice: type[Section]) -> BeforeValidator:
    """Use this choice for keys without a `name`: `optimizer.lr=0.5` alone changes the default optimizer."""

    def complete(given: Any) -> Any:
        if isinstance(given, Mapping) and "name" not in given:
            return {"name": choice.model_fields["name"].default, **given}
        return given

    return BeforeValidator(complete)
