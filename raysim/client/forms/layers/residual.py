"""raysim.models.residual by hand: y = x + f(x); dx = dy + what f makes of dy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raysim.client.forms.layers.chain import Chain
from raysim.client.forms.layers.layer import Layer


class Residual:
    """One client, or a stack, as its body is. Nothing in a body overwrites the body's own input."""

    def __init__(self, body: Chain) -> None:
        self.inner: Sequence[Layer] = (body,)
        self._body = body

    def forward(self, x: Tensor) -> Tensor:
        """Fresh memory: the body may keep its output, and x is somebody else's."""
        return x + self._body.forward(x)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The body gets a copy, because it may overwrite what it is given."""
        if not need_dx:
            return self._body.backward(dy, alpha, False)
        return dy.add_(self._body.backward(dy.clone(), alpha, True))
