"""Which losses of a script are known to be the task's own."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.client.trainers.repeats import repeats
from raysim.models import task as tasks

LOGITS, LABELS = torch.randn(5, 10), torch.arange(5)
TEXT = torch.randn(5, 7, 10), torch.arange(35).view(5, 7) % 10
REALS = torch.randn(5, 1), torch.randn(5)
CALLS: dict[str, int] = {"n": 0}
SEEN: list[int] = []


class Module(nn.Module):
    def forward(self, o: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(o, t, reduction="none")


@pytest.mark.parametrize(
    ("loss", "built_in", "batch"),
    [
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), tasks.cross_entropy, (LOGITS, LABELS)),
        (lambda o, t: F.cross_entropy(o, t.long(), None, reduction="none"), tasks.cross_entropy, (LOGITS, LABELS)),
        (nn.CrossEntropyLoss(reduction="none"), tasks.cross_entropy, (LOGITS, LABELS)),
        (Module(), tasks.cross_entropy, (LOGITS, LABELS)),
        (lambda o, t: tasks.cross_entropy(o, t), tasks.cross_entropy, (LOGITS, LABELS)),
        (lambda o, t: F.cross_entropy(o.transpose(1, 2), t, reduction="none").mean(1), tasks.cross_entropy, TEXT),
        (lambda o, t: (o.squeeze(1) - t) ** 2, tasks.squared_error, REALS),
        (lambda o, t: F.mse_loss(o.squeeze(-1), t, reduction="none"), tasks.squared_error, REALS),
    ],
)
def test_a_loss_that_spells_the_task_s_own_is_recognised(loss: Any, built_in: Any, batch: Any) -> None:
    assert repeats(loss, built_in, *batch)


def test_a_garbage_collection_meanwhile_changes_nothing() -> None:
    threshold = gc.get_threshold()
    # What libraries that measure collections do (hypothesis, Ray).
    gc.callbacks.append(watch := lambda phase, info: SEEN.append(len(phase)))
    gc.set_threshold(1)
    try:
        assert repeats(Module(), tasks.cross_entropy, LOGITS, LABELS)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(watch)
    assert SEEN
    assert gc.isenabled()


def counts(o: Tensor, t: Tensor) -> Tensor:
    CALLS["n"] += 1
    return F.cross_entropy(o, t, reduction="none")


def collects(o: Tensor, t: Tensor) -> Tensor:
    SEEN.append(1)
    return F.cross_entropy(o, t, reduction="none")


def waits(o: Tensor, t: Tensor) -> Tensor:
    time.sleep(0.0)
    return F.cross_entropy(o, t, reduction="none")


def decides(o: Tensor, t: Tensor) -> Tensor:
    # Looks at nothing of torch's: only the code tells.
    if CALLS:
        return F.cross_entropy(o, t, reduction="none")
    return o.sum(1)


@pytest.mark.parametrize(
    "loss",
    [
        counts,
        collects,
        waits,
        decides,
        lambda o, t: F.cross_entropy(o, t, reduction="none", label_smoothing=0.1),
        lambda o, t: F.cross_entropy(o, t, torch.ones(10), reduction="none"),
        lambda o, t: 1.0 * F.cross_entropy(o, t, reduction="none"),
        lambda o, t: F.cross_entropy(o.detach(), t, reduction="none"),
        lambda o, t: F.cross_entropy(o, t.flip(0), reduction="none"),
        lambda o, t: F.cross_entropy(o, t, reduction="none") + 0.0 * torch.rand(5),
        lambda o, t: (o.squeeze(1) - t).abs(),
    ],
)
def test_any_other_is_not(loss: Any) -> None:
    assert not repeats(loss, tasks.cross_entropy, LOGITS, LABELS)


def lacking(o: Tensor, t: Tensor) -> Tensor:
    raise MemoryError


@pytest.mark.parametrize(
    ("loss", "built_in"),
    [
        (lacking, tasks.cross_entropy),
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), lacking),
    ],
)
def test_a_loss_for_which_memory_is_lacking_is_not_taken_for_another(loss: Any, built_in: Any) -> None:
    """Else the last digits of a run would depend on what else is in memory."""
    with pytest.raises(MemoryError):
        repeats(loss, built_in, LOGITS, LABELS)
