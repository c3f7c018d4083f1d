"""What a device cannot do is refused, or said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import raysim
from raysim.engine import numerics
from raysim.engine.resolve import resolve
from raysim.report import preview

Make = Callable[..., raysim.Experiment]


def test_a_card_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(raysim.ResourceError, match=r"engine.precision = 'bf16' needs a card"):
        numerics.fix(1, torch.device("cuda"), "bf16")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("native", [True, False])
def test_a_processor_without_bf16_is_said_before_the_run(
    native: bool, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "has_bf16", lambda device: native)
    text = preview.text(resolve(experiment(engine={"precision": "bf16", "workers": 0}), dataset), Path("runs/x"))
    assert ("has no products for" in text) == (not native)
