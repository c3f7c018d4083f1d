"""The page's quadratic functions, of Wang et al. (2021), section 4.3.1: FedAvg tends to where its equations say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paper_commands import sections

LR = 0.05


def test_fedavg_on_quadratic_functions_tends_to_its_fixed_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", sections()["Wang et al. (2021)"], re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    page: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, "docs/papers.md", "exec"), page)
    hessians, centres, found = page["curvatures"], page["centres"], page["found"]
    assert found.keys() == {1, 20}
    for steps, reached in found.items():
        # A client goes from x to c + M (x - c) with M = (I - lr A)^K; the mean of these is x at x = fixed.
        left = np.eye(len(centres[0])) - [np.linalg.matrix_power(np.eye(len(h)) - LR * h, steps) for h in hessians]
        fixed = np.linalg.solve(left.sum(0), np.einsum("kij,kj->i", left, centres))
        np.testing.assert_allclose(reached, fixed, rtol=1e-6)
    np.testing.assert_allclose(found[1], page["best"], rtol=1e-6)
    assert np.abs(found[20] - page["best"]).max() > 0.01
