"""Training loss and hits per client, from outputs that a trainer kept: a few calls per client."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.trainers.class_scores import Scorer
from raysim.models.task import Task

MOST_KEPT = 1 << 20
"""Numbers of outputs after which they are scored: what is kept stays in cache, and never grows with a client's work."""

LARGE = 1 << 18
"""Numbers of outputs from which they are scored alone: to join them with others would take as long as a pass over them,
and a call takes little beside that."""

MOST_STEPS = 1 << 12
"""Local steps after which their outputs are scored: a tensor of few numbers takes some hundred bytes."""


class Scores:
    """Sums over the outputs of local steps.

    Args:
        task: losses and hits per example.
        targets: of all examples in the order in which their outputs come, (rows, ...).
        owners: int64 (rows,), which client each row is of.
        num_clients: K.
        real: (rows,) 0 where a row only fills a batch up, else 1; None: all are real.
        scorer: computes losses and hits together, where it can.
    """

    def __init__(
        self,
        task: Task,
        targets: Tensor,
        owners: Tensor,
        num_clients: int,
        real: Tensor | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        self._task, self._scorer = task, scorer
        self._targets, self._owners, self._real = targets, owners, real
        self._kept: list[Tensor] = []
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._kind: object = None
        self._numbers = self._scored = 0
        self._sums = torch.zeros((5, num_clients), dtype=torch.float64, device=targets.device)

    @classmethod
    def of_clients(cls, task: Task, targets: Tensor, visits: Int64s, scorer: Scorer | None = None) -> Scores:
        """Return scores of clients whose outputs come one client's behind the other's, so many rows (k,) of each."""
        owners = torch.from_numpy(np.repeat(np.arange(len(visits)), visits)).to(targets.device)
        return cls(task, targets, owners, len(visits), scorer=scorer)

    def keep(self, outputs: Tensor | None, losses: Tensor | None = None, hits: Tensor | None = None) -> None:
        """Outputs of the next rows, (rows, ...), which nobody writes to any more.

        `losses` (rows,) are given where they are known; otherwise they are computed, many local steps at once, which a
        loss of the user's own, free to look at its whole batch, does not allow. Rows without outputs have losses, and
        `hits` (rows,) or none; a client with rows without hits has none.

        Raises:
            ValueError: outputs are one number.
        """
        if outputs is not None and outputs.dim() == 0:
            raise ValueError(
                "The module puts out one number without an axis: outputs need a row for each example, which squeeze() "
                "takes from those of one example."
            )
        # A recorded step leaves its losses to be computed, one by autograd gives them; an objective need not ask for
        # outputs in every step; and outputs of a module may have the batch's size in their shape.
        kind = losses is None, hits is None, None if outputs is None else outputs.shape[1:]
        is_large = outputs is not None and outputs.numel() >= LARGE
        if kind != self._kind or is_large:
            if self._kept or self._losses:
                self._score()
            self._kind = kind
        if outputs is not None:
            self._kept.append(outputs)
            self._numbers += outputs.numel()
        if losses is not None:
            self._losses.append(losses)
            self._numbers += losses.numel()
        if hits is not None:
            self._hits.append(hits)
        if is_large or self._numbers > MOST_KEPT or len(self._kept or self._losses) >= MOST_STEPS:
            self._score()

    def totals(self) -> tuple[Tensor, Tensor]:
        """Summed losses and hits per client, float64 (K,) on the CPU; hits are NaN where nothing is counted.

        Where accuracy counts some places only, hits are the client's accuracy times its examples, so that hits over
        examples is its accuracy still. Likewise its losses, where examples do not weigh alike.
        """
        if self._kept or self._losses:
            self._score()
        loss, correct, counted, rows, weight = self._sums.cpu()
        if self._task.weights is not None:
            loss = rows * loss / weight.clamp(min=1)
        if self._task.correct is None:
            return loss, torch.full_like(correct, torch.nan)
        if self._task.counted is not None:
            # A client of whose places none counts has no hits either, but for one without outputs.
            correct = torch.where((counted > 0) | correct.isnan(), rows * correct / counted, 0.0)
        return loss, correct

    def _score(self) -> None:
        # A module's outputs need not have a row for each example, where its losses are the user's.
        num_rows = sum(map(len, self._losses or self._kept))
        rows = slice(self._scored, self._scored + num_rows)
        targets = self._targets[rows]
        is_joined = self._kept and (self._task.correct is not None or not self._losses)
        outputs = _joined(self._kept) if is_joined else None
        hits = _joined(self._hits) if self._hits else None
        if self._losses:
            losses = _joined(self._losses)
        else:
            assert outputs is not None
            together = None if self._scorer is None else self._scorer(outputs, targets)
            losses, hits = together or (self._task.losses(outputs, targets), None)
        self._weigh(losses, targets, rows)
        self._count(outputs, targets, rows, hits)
        if self._task.counted is not None or self._task.weights is not None:
            self._add(3, torch.ones(num_rows, device=targets.device), rows)
        self._kept, self._losses, self._hits, self._numbers, self._scored = [], [], [], 0, rows.stop

    def _count(self, outputs: Tensor | None, targets: Tensor, rows: slice, hits: Tensor | None) -> None:
        if self._task.correct is None:
            return
        if hits is None and outputs is None:
            self._add(1, torch.full((len(targets),), torch.nan, device=targets.device), rows)
            return
        if hits is None:
            assert outputs is not None
            hits = self._task.correct(outputs, targets)
        self._add(1, hits, rows)
        if self._task.counted is not None:
            self._add(2, self._task.counted(targets), rows)

    def _weigh(self, losses: Tensor, targets: Tensor, rows: slice) -> None:
        if self._task.weights is None:
            self._add(0, losses, rows)
            return
        weights = self._task.weights(targets)
        self._add(0, losses * weights, rows)
        self._add(4, weights, rows)

    def _add(self, which: int, values: Tensor, rows: slice) -> None:
        exact = values.double()
        if self._real is not None:
            # Not a product: a row that only fills up may hold anything, infinities included.
            exact = torch.where(self._real[rows], exact, 0.0)
        self._sums[which].index_add_(0, self._owners[rows], exact)


def _joined(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]
