"""A bound module holds nothing that holds it."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import nn

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for


@pytest.mark.parametrize("recording", [StepRecording(), StepRecording((4,))], ids=["by autograd", "recorded"])
def test_a_module_that_nobody_holds_is_freed_without_a_collection(recording: StepRecording) -> None:
    model, weights = create(lambda: nn.Linear(6, 4), 0, torch.float32)
    bound = BoundModule(model, weights, task_for(4, None), torch.float32, plain=True, recording=recording)
    assert bound.record([torch.randn(4, 6)], [torch.arange(4)], [4]) == bool(recording.lengths)
    alive = ref(bound)
    gc.disable()
    try:
        del bound
        assert alive() is None
    finally:
        gc.enable()
