"""Which form trains the clients, and how many of them together: a table, learned from docs/performance.md.

Form and K fix the order of additions and with it the bits, so they are a pure function of the experiment, the model and
the kind of device, resolved once before anything starts and sent to every worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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

STACK_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Numbers of all clients of a stack beyond which more of them win nothing: on a CPU it falls out of a core's cache;
on a card, 256 MB of weights, a guess until it is measured on one."""

WITH_CLIENT_AXIS: tuple[FormName, ...] = ("stacked", "vmap")
"""Forms whose clients are trained together."""

OVERHEAD = {"cpu": 300, "cuda": 3_000}
"""Examples of a model with next to no numbers that take as long as what a local step of a stack costs whoever is in it;
on a card a guess until it is measured on one."""

OVERHEAD_HALVED = 2_500
"""Numbers of a client at which an example takes twice as long as with next to none."""


@dataclass(frozen=True)
class Way:
    """How clients are trained.

    form: never "auto". usual, most: clients of a chunk where all have as many, and at most.
    least_chunks: where sizes are equal, how many chunks a round should have at least if the cohort allows it, so that
    workers stay level; 1 where the experiment gives the chunk size.
    overhead: examples that take as long as what a local step of a chunk costs whoever is in it, where clients are
    trained together; 0 where they are not.
    why: one sentence, for people.
    """

    form: FormName
    usual: int
    most: int
    least_chunks: int
    overhead: int
    why: str = field(compare=False)

    @classmethod
    def given(cls, form: FormName, size: int, overhead: int = 0, why: str = "") -> Way:
        """Of the experiment's own chunk size."""
        return cls(form, size, size, 1, overhead, why)

    @property
    def together(self) -> bool:
        """Whether a chunk's clients are trained with a client axis, and so should have about as many local steps."""
        return self.form in WITH_CLIENT_AXIS

    @property
    def is_given(self) -> bool:
        """Whether the experiment gives the chunk size, which no chunk exceeds."""
        return self.least_chunks == 1

    def chunk_size(self, cohort_size: int) -> int:
        """K of a round whose chunks are of one size."""
        if self.is_given:
            return max(1, min(self.usual, cohort_size))
        num_chunks = max(self.least_chunks, math.ceil(cohort_size / self.usual))
        return max(1, math.ceil(cohort_size / num_chunks))

    def num_chunks(self, cohort_size: int) -> int:
        """Chunks of a round, at most, where their sizes differ: a multiple of `least_chunks`."""
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
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if form == "auto":
        tiny = TINY_RECURRENT if any(isinstance(child, Lstm) for child in module.modules()) else TINY
        name, why = _best(module, task, numbers, tiny, device_kind)
    elif reason := _obstacle(form, module, task):
        raise ModelError(f"engine.form = {form!r} cannot be had: {reason}.")
    else:
        name, why = form, "the experiment asks for it"
    overhead = round(OVERHEAD[device_kind] / (1 + numbers / OVERHEAD_HALVED)) if name in WITH_CLIENT_AXIS else 0
    if chunk_size != "auto":
        return Way.given(name, chunk_size, overhead, why)
    return Way(name, *_sizes(name, numbers, device_kind), overhead, why)


def _best(module: nn.Module, task: Task, numbers: int, tiny: int, device_kind: str) -> tuple[FormName, str]:
    if obstacle := _not_fused(module):
        return "one_by_one", obstacle
    if (device_kind != "cpu" or numbers <= tiny) and _not_by_rows(task) is None:
        return "stacked", f"{numbers:,} numbers a client: many of them share a call on {device_kind}"
    return "fused", f"{numbers:,} numbers a client, and every layer has a hand-written backward"


def _obstacle(form: FormName, module: nn.Module, task: Task) -> str | None:
    """Why the form cannot be had, or None. A user's module is looked into only where the form does."""
    match form:
        case "one_by_one":
            return None
        case "fused":
            return _not_fused(module)
        case "stacked":
            return _not_by_rows(task) or _not_fused(module)
        case "vmap":
            return _not_by_rows(task) or _not_vmap(module)


def _sizes(form: FormName, numbers: int, device_kind: str) -> tuple[int, int, int]:
    """The usual and the largest size of a chunk, and the least number of chunks."""
    if form in WITH_CLIENT_AXIS:
        held = STACK_NUMBERS[device_kind] // max(1, numbers)
        if device_kind != "cpu":
            most = min(512, max(1, held))
            return min(128, most), most, 2
        return (64, min(512, max(64, held)), 3) if numbers <= TINY else (4, 4, 3)
    # A call costs about a millisecond of every worker's time: a chunk should hold fifty times that.
    usual, least_chunks = (32, 8) if numbers <= TINY else (16, 8) if numbers <= SMALL else (4, 16)
    return usual, usual, least_chunks


def _not_fused(module: nn.Module) -> str | None:
    layers = recognise(module)
    return layers if isinstance(layers, str) else None


def _not_by_rows(task: Task) -> str | None:
    if loss_gradient.by_rows(task):
        return None
    return "a loss of your own may look at its whole batch, which holds several clients here"


def _not_vmap(module: nn.Module) -> str | None:
    if any(True for _ in module.buffers()):
        return "modules with buffers have no client axis under vmap"
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase | Lstm):
            return f"{type(child).__name__} {name!r} has no batching rule in torch"
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
            return f"{type(child).__name__} {name!r} draws, which vmap does not do per client"
    return None
