"""What stands in a recorded step in the place of operators of torch, and computes the same in another way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar


class OwnOperator:
    """Looks like an operator to whoever reads a program, and has arguments and results of its own."""

    tags: ClassVar[Collection[Any]] = ()
    _schema: ClassVar[Any]

    @property
    def overload(self) -> Any:
        """What has the schema."""
        return type(self)

    def name(self) -> str:
        """As torch names its own."""
        return str(self._schema.name)


@dataclass(frozen=True)
class StandIn:
    """Has the arguments and results of an operator, and looks like it to whoever reads a program.

    overload: torch's.
    """

    overload: Any

    @property
    def _schema(self) -> Any:
        return self.overload._schema

    @property
    def tags(self) -> Any:
        """Of torch's operator."""
        return self.overload.tags

    def name(self) -> str:
        """Of torch's operator."""
        return str(self.overload.name())
