"""Counts an example as right where its label is among the k largest outputs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

import raysim


class TopK(raysim.Section):
    """Accuracy of the k best guesses."""

    name: Literal["top_k"] = "top_k"
    label: str = Field("top_k", description="Name of the columns.")
    k: int = Field(5, ge=1, description="Number of guesses.")


def make(section: TopK) -> raysim.Metric:
    """Return the metric: hits and examples, and their ratio."""

    def sums(outputs: Tensor, targets: Tensor) -> Tensor:
        hits = (outputs.topk(section.k).indices == targets[:, None]).any(1).sum()
        return hits.new_tensor([int(hits), len(targets)])

    return raysim.Metric(sums, lambda sums: float(sums[0] / sums[1]))


PART = raysim.Part("metric", "top_k", TopK, make)
