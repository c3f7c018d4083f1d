"""What stands in a recorded step for an operator of torch, and computes the same in another way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
