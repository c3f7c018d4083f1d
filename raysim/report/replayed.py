"""What `raysim replay` says: a round beside its record, or what one client sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raysim import records
from raysim.engine.replay import ClientUpdate


def beside_record(folder: Path, index: int, metrics: Mapping[str, float | None]) -> str:
    """A line per figure of the round, the recorded one beside it where it is another."""
    row = records.read_rounds(folder).to_pylist()[index]
    lines, others = [], []
    for name, value in metrics.items():
        if records.tells_cost(name) or row.get(name) is None:
            continue
        same = value == row[name]
        lines.append(f"{name}  {value}" + ("" if same else f"  (recorded: {row[name]})"))
        if not same:
            others.append(name)
    verdict = f"differs from the record in {', '.join(others)}" if others else "every figure as recorded"
    return "\n".join([f"round {index}: {verdict}", *lines])


def sent(update: ClientUpdate) -> str:
    """A line per tensor of a client's update."""
    head = f"round {update.index}, client {update.client}, trained with {len(update.chunk) - 1} others"
    if update.update is None:
        return f"{head}: its update is not finite, and was rejected"
    norms = [f"{name}  |delta| = {float(tensor.double().norm()):.6g}" for name, tensor in update.update.items()]
    return "\n".join([head, *norms])
