"""Rotations are orthogonal, go back, and differ from key to key; Lloyd-Max centroids are the means of their cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard as of_scipy

from raysim.compression.lloyd_max import centroids
from raysim.compression.rotation import hadamard, rotated, rotated_back, rotated_length


@pytest.mark.parametrize("length", [1, 2, 16, 32, 512])
def test_the_transform_is_the_walsh_hadamard_matrix(length: int) -> None:
    columns = torch.stack([hadamard(row) for row in torch.eye(length, dtype=torch.float64)])
    expected = of_scipy(length) / np.sqrt(length)
    np.testing.assert_allclose(columns.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("length", [1, 3, 64, 1_000])
def test_a_rotation_keeps_lengths_and_goes_back(length: int) -> None:
    v = torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    turned = rotated(v, key=9)
    assert len(turned) == rotated_length(length)
    assert float(turned.norm()) == pytest.approx(float(v.norm()))
    torch.testing.assert_close(rotated_back(turned, 9, torch.empty_like(v)), v)


def test_the_signs_are_random() -> None:
    # R e_j has the sign of e_j in its first number.
    signs = [float(rotated(torch.eye(256)[j], key)[0].sign()) for j in range(0, 256, 8) for key in range(40)]
    assert abs(sum(signs)) < 4 * len(signs) ** 0.5
    assert not torch.equal(rotated(torch.ones(256), 0), rotated(torch.ones(256), 1))


@pytest.mark.parametrize("bits", range(1, 9))
def test_centroids_are_the_means_of_their_cells(bits: int) -> None:
    points = centroids(bits).numpy()
    x = np.linspace(-9, 9, 400_001)
    density = np.exp(-(x**2) / 2)
    cells = np.searchsorted((points[1:] + points[:-1]) / 2, x)
    means = np.bincount(cells, density * x) / np.bincount(cells, density)
    np.testing.assert_allclose(points, means, atol=1e-4)
    if bits <= 4:
        error = (density * (x - points[cells]) ** 2).sum() / density.sum()
        assert error == pytest.approx((0.36338, 0.11748, 0.03455, 0.00950)[bits - 1], abs=1e-5)
