"""A layer's parameter as the hand-written trainers hold it, and batched products that make its gradient.

The bits of `product` do not depend on where a matrix stands in the batch. On some processors a matrix of a batched
product gets other last bits when its result starts at another alignment: on an AMD Zen 4 with torch 2.13, when not all
results start at multiples of 16 bytes. `client/trainers/together.py` fills batches up so that activations are aligned.
The results here are gradients of weights, whose shapes are the model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Parameter:
    """A view of the trained weights, and where the product that makes its gradient goes.

    A layer does `into <- keep * into + alpha * gradient`, the gradient being that of the *summed* loss. Plain SGD has
    into = value, keep = 1 and alpha = -lr / batch: the product is the step, and the gradient is never stored. Otherwise
    into is a view of the flat gradient buffer, keep = 0 and alpha = 1 / batch.

    Views have the parameter's own shape for one client, and a leading client axis (K, ...) in a stack.
    """

    value: Tensor
    into: Tensor
    keep: float

    def first(self, clients: int) -> Parameter:
        """The same for the first so many clients of a stack."""
        return Parameter(self.value[:clients], self.into[:clients], self.keep)

    def turned(self) -> Parameter:
        """(K, out, in) whose memory holds (in, out), as that; see turned.py."""
        clients, rows, columns = self.value.shape
        shape = clients, columns, rows
        return Parameter(self.value.view(shape), self.into.view(shape), self.keep)

    def transposed(self) -> Parameter:
        """(K, out, in) seen as (K, in, out)."""
        return Parameter(self.value.transpose(1, 2), self.into.transpose(1, 2), self.keep)

    def again(self) -> Parameter:
        """For a second gradient of the same local step: what the first one wrote is kept as it is."""
        return Parameter(self.value, self.into, 1.0)

    def accept(self, gradient: Tensor, alpha: float) -> None:
        """Where no product can write into `into` itself: one pass over a gradient that was stored."""
        if self.keep:
            self.decay().add_(gradient, alpha=alpha)
        else:
            # mul with out= also casts, which copy_ after mul would do in two passes.
            self.into.copy_(gradient).mul_(alpha)

    def decay(self) -> Tensor:
        """`into`, kept by `keep`: zeros where that is 0, whatever stood there."""
        if self.keep == 0:
            return self.into.zero_()
        return self.into if self.keep == 1 else self.into.mul_(self.keep)


BLOCK_BYTES = 16
"""Every matrix of a batch starts at a multiple of it."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """(A, n, k) times (A, k, m): (A, n, m). The smaller factor is filled up with zeros where the result needs it."""
    n, m = a.shape[1], b.shape[2]
    block = BLOCK_BYTES // a.element_size()
    if n * m % block == 0:
        return torch.bmm(a, b)
    if n <= m:
        return torch.bmm(functional.pad(a, (0, 0, 0, -n % (block // gcd(m, block)))), b)[:, :n]
    return torch.bmm(a, functional.pad(b, (0, -m % (block // gcd(n, block)))))[:, :, :m]
