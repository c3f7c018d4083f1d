"""Names the record of a round: the value of each metric by its name, which is a column of `rounds.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
