"""Which form trains the clients, and how many of them together: a table, learned from docs/performance.md.

Form and K fix the order of additions and with it the bits, so they are a pure function of the experiment, the model and
the kind of device, resolved once before anything starts and sent to every worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from raysim.client.forms import loss_gradient
from raysim.client.forms.recognise import recognise
from raysim.errors import ExperimentError, ModelError
from raysim.models.lstm import Lstm
from raysim.models.task import Task

FormName = Literal["one_by_one", "fused", "stacked", "vmap"]
Precision = Literal["float32", "tf32", "bf16"]

TINY = 50_000
"""Numbers of a client up to which a client axis wins on a CPU: beyond it, K sets of weights fall out of its cache."""

TINY_RECURRENT = 20_000
"""The same for recurrent models, whose steps through time torch's kernel takes faster than batched products do."""

SMALL = 500_000
"""Numbers of a client up to which a call should hold several clients, for the call not to be felt."""

STACK_NUMBERS = 1 << 26
"""Numbers of all clients of a stack on a card, 256 MB of weights: a guess until it is measured on one."""


@dataclass(frozen=True)
class Way:
    """How clients are trained.

    form: never "auto". most: clients of a chunk at most. least_chunks: how many chunks a round should have where the
    cohort allows it, so that workers stay level; 1 where the experiment gives the chunk size.
    why: one sentence, for people.
    """

    form: FormName
    most: int
    least_chunks: int
    why: str

    @property
    def together(self) -> bool:
        """Whether a chunk's clients are trained with a client axis, and so should have about as many local steps."""
        return self.form in ("stacked", "vmap")

    def chunk_size(self, cohort_size: int) -> int:
        """K of a round: where it is not given, chunks are of one size, as workers would wait for a larger one."""
        if self.least_chunks == 1:
            return max(1, min(self.most, cohort_size))
        num_chunks = max(self.least_chunks, math.ceil(cohort_size / self.most))
        return max(1, math.ceil(cohort_size / num_chunks))

    def num_chunks(self, cohort_size: int) -> int:
        """Chunks of a round whose clients are trained one after another: a multiple of `least_chunks`."""
        wanted = math.ceil(cohort_size / self.chunk_size(cohort_size))
        return math.ceil(wanted / self.least_chunks) * self.least_chunks


def choose(
    form: FormName | Literal["auto"],
    chunk_size: int | Literal["auto"],
    precision: Precision,
    dtype: str,
    module: nn.Module,
    task: Task,
    device_kind: str,
) -> Way:
    """Resolve what the experiment leaves open, and refuse what cannot be had.

    Args:
        form, chunk_size, precision, dtype: of the engine's section.
        module: as the factory makes it.
        task: losses and hits.
        device_kind: "cpu" or "cuda".

    Raises:
        ExperimentError: bf16 or tf32 with float64 weights; tf32 without a card.
        ModelError: a form that the module or its loss does not allow.
    """
    if precision != "float32" and dtype != "float32":
        raise ExperimentError(f"engine.precision = {precision!r} needs engine.dtype = 'float32', but got {dtype!r}.")
    if precision == "tf32" and device_kind != "cuda":
        raise ExperimentError(
            f"engine.precision = 'tf32' is a precision of NVIDIA cards, and clients would be trained on {device_kind} "
            f"here: take 'float32', or 'bf16'."
        )
    obstacle = {"one_by_one": None, "fused": _not_fused(module), "stacked": _not_stacked(module, task)}
    obstacle["vmap"] = _not_vmap(module, task)
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if form == "auto":
        tiny = TINY_RECURRENT if any(isinstance(child, Lstm) for child in module.modules()) else TINY
        name, why = _best(obstacle, numbers, tiny, device_kind)
    elif reason := obstacle[form]:
        raise ModelError(f"engine.form = {form!r} cannot be had: {reason}.")
    else:
        name, why = form, "the experiment asks for it"
    if chunk_size != "auto":
        return Way(name, chunk_size, 1, why)
    return Way(name, *_sizes(name, numbers, device_kind), why)


def _best(obstacle: dict[str, str | None], numbers: int, tiny: int, device_kind: str) -> tuple[FormName, str]:
    if obstacle["stacked"] is None and (device_kind != "cpu" or numbers <= tiny):
        return "stacked", f"{numbers:,} numbers a client: many of them share a call on {device_kind}"
    if obstacle["fused"] is None:
        return "fused", f"{numbers:,} numbers a client, and every layer has a hand-written backward"
    return "one_by_one", obstacle["fused"]


def _sizes(form: FormName, numbers: int, device_kind: str) -> tuple[int, int]:
    if form in ("stacked", "vmap"):
        if device_kind == "cpu":
            return (64 if numbers <= TINY else 4), 3
        return min(128, max(1, STACK_NUMBERS // numbers)), 2
    # A call costs about a millisecond of every worker's time: a chunk should hold fifty times that.
    return (32, 8) if numbers <= TINY else (16, 8) if numbers <= SMALL else (4, 16)


def _not_fused(module: nn.Module) -> str | None:
    layers = recognise(module)
    return layers if isinstance(layers, str) else None


def _not_stacked(module: nn.Module, task: Task) -> str | None:
    if not loss_gradient.by_rows(task):
        return "a loss of your own may look at its whole batch, which holds several clients here"
    return _not_fused(module)


def _not_vmap(module: nn.Module, task: Task) -> str | None:
    if not loss_gradient.by_rows(task):
        return "a loss of your own may look at its whole batch, which holds several clients here"
    if any(True for _ in module.buffers()):
        return "modules with buffers have no client axis under vmap"
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase | Lstm):
            return f"{type(child).__name__} {name!r} has no batching rule in torch"
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
            return f"{type(child).__name__} {name!r} draws, which vmap does not do per client"
    return None
