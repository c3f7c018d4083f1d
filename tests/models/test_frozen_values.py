"""Frozen values: one block, which a pickle hands over as one buffer that its receiver maps; each in its own dtype."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from raysim.errors import ModelError
from raysim.models.frozen import ALIGNMENT, Frozen
from raysim.models.model import create
from raysim.models.name_patterns import FreezesByName

VALUES = {
    "a": torch.arange(7.0).view(7, 1),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "short": torch.arange(5, dtype=torch.bfloat16),
    "empty": torch.empty(0, 4),
    "whole": torch.arange(3),
}


def sent(frozen: Frozen, start: int = 0) -> tuple[Frozen, memoryview]:
    """The values as another process has them, over read-only memory that begins so many bytes after a boundary."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(frozen, protocol=5, buffer_callback=buffers.append)
    (content,) = (buffer.raw() for buffer in buffers)
    memory = torch.zeros(len(content) + start, dtype=torch.uint8).numpy()
    memory[start:] = np.frombuffer(content, np.uint8)
    memory.flags.writeable = False
    return pickle.loads(text, buffers=[memory[start:]]), memory.data


def test_a_receiver_maps_the_block() -> None:
    received, memory = sent(Frozen.of(VALUES))
    place = np.frombuffer(memory, np.uint8).ctypes.data
    for name, value in VALUES.items():
        assert torch.equal(received[name], value)
        assert (received[name].dtype, received[name].shape) == (value.dtype, value.shape)
        assert not value.numel() or 0 <= received[name].data_ptr() - place < len(memory)
        assert received[name].data_ptr() % ALIGNMENT == 0
    assert received.digest() == Frozen.of(VALUES).digest()


def test_memory_that_would_change_bits_is_copied() -> None:
    received, _ = sent(Frozen.of(VALUES), start=8)
    assert all(value.data_ptr() % ALIGNMENT == 0 for value in received.values())
    assert torch.equal(received["a"], VALUES["a"])


@pytest.mark.parametrize(
    ("trained", "base", "wanted"),
    [
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32, torch.float64),
        (torch.bfloat16, torch.bfloat16, torch.float64),
        (torch.float32, torch.float16, torch.float16),
    ],
)
def test_only_values_shorter_than_trained_ones_keep_their_dtype(
    trained: torch.dtype, base: torch.dtype, wanted: torch.dtype
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3).to(base).requires_grad_(False), nn.Linear(3, 2).to(trained))

    model, weights = create(make, 0, torch.float64)
    assert {value.dtype for value in model.constants.values()} == {wanted}
    assert weights.params.dtype == torch.float64


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


def test_parameters_are_frozen_by_their_names() -> None:
    model, _ = create(FreezesByName(net, ("0.*", "*.bias")), 0, torch.float32)
    assert model.params.names == ("2.weight",)
    assert list(model.constants) == ["0.weight", "0.bias", "2.bias"]


@pytest.mark.parametrize("pattern", ["0.weight", "2.weight", "2.*"])
def test_a_tied_parameter_is_frozen_by_any_of_its_names(pattern: str) -> None:
    def tied() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        module[2].weight = module[0].weight
        return module

    assert "0.weight" in create(FreezesByName(tied, (pattern,)), 0, torch.float32)[0].constants


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("*",), "leaves no trainable parameter"),
        (
            ("0.wieght",),
            r"'0.wieght' matches no parameter of the module \(did you mean '0.weight'\?\): it has 0.weight",
        ),
        (("2.*", "1.*"), r"model.freeze: '1\.\*' matches no parameter"),
    ],
)
def test_patterns_that_freeze_all_or_nothing_are_refused(patterns: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        create(FreezesByName(net, patterns), 0, torch.float32)
