"""The compiled passes of an LSTM over packed texts: each text has the bits that it has alone."""

from __future__ import annotations

import pytest
import torch

from raysim.client.trainers.kernel.lstm import CompiledLstm
from tests.support.kernel import needs_kernel


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


REACHING = [(1,), (5, 5, 3, 1), (7, 4, 4, 4, 2, 2), (13, 12)]
"""Texts that reach each place."""


@pytest.mark.parametrize("reaching", REACHING, ids=str)
@pytest.mark.parametrize("units", [1, 5, 33, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_texts_have_the_bits_that_each_has_alone(
    reaching: tuple[int, ...], units: int, dtype: torch.dtype
) -> None:
    texts, rows = reaching[0], sum(reaching)
    draw = torch.Generator().manual_seed(1)
    added, dy = (torch.randn(rows, width * units, dtype=dtype, generator=draw) for width in (4, 1))
    u = torch.randn(4 * units, units, dtype=dtype, generator=draw) * units**-0.5
    lstm = CompiledLstm(dtype)
    states, *kept = lstm.forward_packed(added, u, reaching)
    da = lstm.backward_packed(dy, kept, u, reaching)
    assert not states[:texts].any()
    for text in range(texts):
        own = [sum(reaching[:place]) + text for place, number in enumerate(reaching) if number > text]
        zeros = torch.zeros(1, units, dtype=dtype)
        alone, *of_alone = lstm.forward(added[own].unsqueeze(1), u, zeros, zeros, backwards=False)
        back, _, _ = lstm.backward(dy[own].unsqueeze(1), None, None, of_alone, u, backwards=False)
        behind = [texts + row for row in own]
        assert torch.equal(states[behind], alone[1:, 0])
        assert torch.equal(kept[1][behind], of_alone[1][1:, 0])
        assert torch.equal(kept[0][own], of_alone[0][:, 0])
        assert torch.equal(da[own], back[:, 0])


@pytest.mark.parametrize("reaching", [(), (0,), (2, 3), (3, 0), (2, 2)], ids=str)
def test_texts_that_are_not_packed_so_are_refused(reaching: tuple[int, ...]) -> None:
    lstm = CompiledLstm(torch.float64)
    with pytest.raises(RuntimeError, match=r"An LSTM|Texts reach places"):
        lstm.forward_packed(torch.zeros(3, 8, dtype=torch.float64), torch.zeros(8, 2, dtype=torch.float64), reaching)
