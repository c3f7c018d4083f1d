"""The local step of batches of one length by the compiled interpreter, once or for several batches in one call."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from raysim.client.trainers.recording.replay import Replay
from raysim.client.trainers.recording.resized import Sized

_OUT_OF_RANGE = (
    "An index is out of its range, which torch's operators let pass: indices must be from 0 on and below the number of "
    "rows or classes. With engine.trainer = 'one_by_one', torch alone computes the step."
)


class InterpretedStep:
    """A step as a function of batches; see `Replay`.

    Args:
        sized: the program; batches have the shapes and dtypes of its batch.
        otherwise: the same step by torch's operators, which says what is wrong with an index out of its range.
    """

    def __init__(self, sized: Sized, otherwise: Replay) -> None:
        self._batch, self._by_both, self._otherwise = sized.batch, sized.by_both, otherwise
        self._looks = [(one.shape, one.dtype) for one in sized.batch]
        self._interpreter, self._dtype = sized.interpreter, sized.interpreter.dtype
        self._shapes, length = sized.results, sized.length
        self.takes_several = not self._interpreter.pauses and all(shape[:1] == (length,) for shape in self._shapes)
        """Whether `of_several` may be called: torch has no part in the step, and results begin with the examples."""
        self.num_outputs = math.prod(self._shapes[0])
        """Numbers that a step puts out."""

    def __call__(self, x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        """Make a step; see `Replay`."""
        if not torch.is_inference_mode_enabled():
            # What torch notes for autograd takes a tenth of a small step's time, beside steps by autograd too.
            with torch.inference_mode():
                return self(x, y, alpha)
        if [(one.shape, one.dtype) for one in (x, y)] != self._looks:
            self._refuse(x, y)
        made = [torch.empty(shape, dtype=self._dtype) for shape in self._shapes]
        if not self._interpreter((self._there(0, x), self._there(1, y), *made), alpha):
            self._otherwise(x, y, alpha)
            # Part of the step was carried out twice.
            raise IndexError(_OUT_OF_RANGE)
        return made[0], made[1] if len(made) > 1 else None

    def of_several(self, x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        """Make the steps of several batches in one call.

        Args:
            x, y: the batches' examples, one batch's behind the other's.
            alpha: of each step.

        Returns:
            What the steps return, likewise.

        Raises:
            IndexError, or what torch says of it: an index is out of its range; the steps before were made.
            RuntimeError: these are no batches of this step.
        """
        assert self.takes_several
        length = len(self._batch[1])
        steps, rest = divmod(len(y), length)
        if (
            rest
            or len(x) != len(y)
            or [(one.shape[1:], one.dtype) for one in (x, y)] != [(shape[1:], dtype) for shape, dtype in self._looks]
        ):
            self._refuse(x, y)
        each = [one.contiguous().view(steps, length, *one.shape[1:]) for one in (x, y)]
        made = [torch.empty((steps, *shape), dtype=self._dtype) for shape in self._shapes]
        done = self._interpreter.repeated((*each, *made), alpha, steps)
        if done < steps:
            self._otherwise(each[0][done], each[1][done], alpha)
            # Part of this step was carried out twice.
            raise IndexError(_OUT_OF_RANGE)
        outputs, losses = made[0].flatten(0, 1), made[1].flatten() if len(made) > 1 else None
        return outputs, losses

    def _there(self, at: int, given: Tensor) -> Tensor:
        return self._batch[at].copy_(given) if self._by_both[at] else given.contiguous()

    def _refuse(self, x: Tensor, y: Tensor) -> NoReturn:
        (x_shape, x_dtype), (y_shape, y_dtype) = self._looks
        raise RuntimeError(
            f"A step recorded for x {tuple(x_shape)} of {x_dtype} and y {tuple(y_shape)} of {y_dtype} was called with "
            f"{tuple(x.shape)} of {x.dtype} and {tuple(y.shape)} of {y.dtype}."
        )
