"""Calls an objective with a module that computes as raysim does, and keeps the outputs that hits are counted on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raysim.client.objective import LocalObjective, ObjectiveAt
from raysim.client.trainers.reduced_precision import products_in
from raysim.models.task import check_losses


class Watched:
    """An objective over one module: products in the precision, outputs in the dtype of the weights.

    Hits are counted on the outputs of the first forward on x itself that has a gradient: neither on mixed examples nor
    on what a teacher says. No forward is added for them.

    Args:
        objective: see there.
        module: in training mode; its `forward` is replaced.
        precision: of products, by torch.autocast; None: as the weights are kept.
        dtype: of the weights.
    """

    def __init__(
        self, objective: LocalObjective, module: nn.Module, precision: torch.dtype | None, dtype: torch.dtype
    ) -> None:
        self._objective, self._module, self._forward = objective, module, module.forward
        self._precision, self._dtype = precision, dtype
        self._x: Tensor | None = None
        self._outputs: Tensor | None = None
        module.__dict__["forward"] = self._called

    def losses(self, x: Tensor, y: Tensor, at: ObjectiveAt) -> tuple[Tensor, Tensor | None]:
        """The losses (batch,) of a batch, and the outputs that hits are counted on, if there are any.

        Raises:
            ValueError: not one loss per example came back.
        """
        self._x, self._outputs = x, None
        losses = self._objective.function(self._module, x, y, at)
        check_losses(losses, len(y), "objective=")
        outputs, self._x, self._outputs = self._outputs, None, None
        return losses, outputs

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        # Around a forward alone: its cache holds the weights of one forward, a teacher's or the client's.
        with products_in(self._precision, next(self._module.parameters()).device):
            outputs = self._forward(*args, **kwargs)
        if isinstance(outputs, Tensor) and outputs.is_floating_point():
            outputs = outputs.to(self._dtype)
            if self._outputs is None and len(args) == 1 and args[0] is self._x and outputs.requires_grad:
                # A copy: what the objective does with them in place is no prediction.
                self._outputs = outputs.detach().clone()
        return outputs
