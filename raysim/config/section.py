"""Defines the base of every configuration record: frozen, strict about keys and types, with clear errors.

A concept's configuration stands beside its code (`server/optimizers/sgd.py` holds both the equation and `Sgd`); the
experiment only composes. Each default is therefore written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from raysim.config import messages
from raysim.config.plain import LONGEST_TEXT, plain, shown
from raysim.errors import ExperimentError

_SCALARS = ("int", "float", "bool", "str")


def _make_strict(schema: Any) -> None:
    """Mark the scalars within a schema as strict, except for keys of tables: a file has these as texts."""
    if isinstance(schema, dict):
        if schema.get("type") in _SCALARS:
            schema["strict"] = True
        for key, inner in schema.items():
            if key not in ("keys_schema", "metadata", "default", "serialization"):
                _make_strict(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _make_strict(inner)


class Section(BaseModel):
    """A table of the experiment. Unknown keys are errors; values cannot change after validation.

    `true` is not a number, "5" is not an integer, and an integer is a number.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, str_max_length=LONGEST_TEXT
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema with strict scalars; lists stay lax, because a file has no tuples."""
        schema = handler(source)
        _make_strict(schema)
        return schema

    def model_post_init(self, context: Any, /) -> None:
        """Count a choice's name as given, whoever made the section: a record without it would be of the default."""
        if (field := type(self).model_fields.get("name")) is not None and get_origin(field.annotation) is Literal:
            self.model_fields_set.add("name")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; with `update`, one that is checked as `checked` does. A table as a value replaces the table.

        Raises:
            ExperimentError: see `checked`.
        """
        if not update:
            return super().model_copy(deep=deep)
        keys = {name: field.alias or name for name, field in type(self).model_fields.items()}
        return self.checked({**self.model_dump(exclude_unset=True), **{keys.get(k, k): v for k, v in update.items()}})

    def copy(self, **keywords: Any) -> Self:
        """Return a copy: pydantic's former name of `model_copy`."""
        return self.model_copy(**keywords)

    def model_dump(self, **keywords: Any) -> dict[str, Any]:
        """Return the section as pydantic does, by the keys of a file (`from`, `lambda`): `checked` reads it again."""
        return super().model_dump(**{"by_alias": True, **keywords})

    def model_dump_json(self, **keywords: Any) -> str:
        """Return the section as JSON; see `model_dump`."""
        return super().model_dump_json(**{"by_alias": True, **keywords})

    _TABLE: ClassVar[str] = "TABLE."
    """What a message puts before a key, where it does not know the section's place."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a key.

        Raises:
            ExperimentError: says what makes another experiment.
        """
        if (field := type(self).model_fields.get(name)) is not None:
            key = f"{self._TABLE}{field.alias or name}"
            where = ", with the table's name for TABLE" if self._TABLE else ""
            raise ExperimentError(
                f"{name} cannot be assigned, because an experiment stays as it was checked: "
                f"experiment.changed({{{key!r}: {shown(value)}}}) returns another{where}."
            )
        super().__setattr__(name, value)

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
            return super().model_validate(plain(given, at), **kwargs)
        except ValidationError as error:
            raise ExperimentError(messages.message(error, cls, at)) from None


AnySection = TypeVar("AnySection", bound=BaseModel)


def replaced(section: AnySection, **values: Any) -> AnySection:
    """Return a copy with values that raysim has made itself: nothing is checked, and parts stay bound."""
    return BaseModel.model_copy(section, update=values)


def has_other(section: Section, *keys: str) -> bool:
    """Whether one of these keys has another value than its default.

    Records hold all keys, so a key without effect is known by its value, and not by being there.
    """
    return any(getattr(section, key) != type(section).model_fields[key].get_default() for key in keys)


def with_default_name(choice: type[Section]) -> BeforeValidator:
    """Use this choice for keys without a `name`: `optimizer.lr=0.5` alone changes the default optimizer."""

    def complete(given: Any) -> Any:
        if isinstance(given, Mapping) and "name" not in given:
            return {"name": choice.model_fields["name"].default, **given}
        return given

    return BeforeValidator(complete)
