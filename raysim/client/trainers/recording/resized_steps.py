"""Makes the interpreted steps of short batches from those of two lengths, and says which of them may be used.

What is made for a length is the step of that length if the module takes the same course there, and if two lengths say
right what a third one computes. The course is compared at each length (`forward_course.py`), which costs a forward
pass. What is computed is tried against autograd once, at `FEWEST` examples: sizes, offsets and strides grow by the same
amount with each example, so what holds for few and for most examples holds between.

A length is tried against autograd by itself where that does not say enough: below `FEWEST` examples, where Python code
takes part in the backward pass, and where the trial at `FEWEST` fails or the course is another one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording.forward_course import ForwardCourse, course, follows
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.local_step import resize_step
from raysim.client.trainers.recording.replay import Replay
from raysim.client.trainers.recording.resized import Sized, resized
from raysim.client.trainers.recording.weighted import Weighted
from raysim.models import memory

FEWEST = 3
"""Examples of the trial that stands for all longer batches. A norm over a batch makes of two examples the same numbers
whatever they are, so that two would say less."""

Batch = tuple[Tensor, Tensor]


class ResizedSteps:
    """The steps of batches shorter than the longest.

    Args:
        weighted, loss_gradient: what a step is made of.
        otherwise: the same step by autograd, which says what is wrong with an index out of its range.
        large, small: of the longest batches, and of those with one example less.
    """

    def __init__(
        self, weighted: Weighted, loss_gradient: LossGradient, otherwise: Replay, large: Sized, small: Sized
    ) -> None:
        self._weighted, self._loss_gradient, self._otherwise = weighted, loss_gradient, otherwise
        self._large, self._small = large, small
        self._courses: tuple[ForwardCourse, ForwardCourse] | None = None
        """Of both lengths; None: not looked at yet, or of no use."""
        self._is_looked_at = False

    def step(self, x: Tensor, y: Tensor) -> Replay:
        """The step of batches as long as this one.

        Raises:
            NotInterpreted, NotRecorded: they have another step than two lengths say.
        """
        made = resized(self._large, self._small, len(y))
        if self._is_expected(x, y):
            return InterpretedStep(made, self._otherwise)
        return resize_step(self._weighted, self._loss_gradient, (x, y), made, self._otherwise)

    def _is_expected(self, x: Tensor, y: Tensor) -> bool:
        """Whether its course says that the step of this length is what two lengths say."""
        if len(y) < FEWEST:
            return False
        if not self._is_looked_at:
            self._is_looked_at = True
            self._courses = self._of_both_lengths(x, y)
        if self._courses is None:
            return False
        third = self._course(x, y)
        return third is not None and follows(third, len(y), *self._courses, self._large.length)

    def _of_both_lengths(self, x: Tensor, y: Tensor) -> tuple[ForwardCourse, ForwardCourse] | None:
        """The courses of both lengths, if they and the trial at few examples say enough about other lengths."""
        if self._small.length <= FEWEST:
            return None
        try:
            few = resized(self._large, self._small, FEWEST)
            batch = of_length(x, y, FEWEST)
            resize_step(self._weighted, self._loss_gradient, batch, few, self._otherwise)
        except Exception as error:
            if memory.is_lacking(error):
                raise
            # A module may refuse so few examples. Which lengths are resized must not depend on which came first.
            return None
        large, small = (self._course(*of_length(x, y, one.length)) for one in (self._large, self._small))
        return None if large is None or small is None else (large, small)

    def _course(self, x: Tensor, y: Tensor) -> ForwardCourse | None:
        """The course of this length; None: it does not say what the gradients are."""
        try:
            found = course(self._weighted, self._loss_gradient, x, y)
        except Exception as error:
            if memory.is_lacking(error):
                raise
            return None
        return None if found.backward_runs_code else found


def of_length(x: Tensor, y: Tensor, length: int) -> Batch:
    """A batch of so many examples, made of those of another.

    Examples that come again are not alike: norms over a batch divide by what differs.
    """
    number = torch.arange(length, device=x.device)
    made = x[number % len(x)]
    if made.is_floating_point():
        made *= (0.9 ** (number // len(x))).to(made.dtype).view(-1, *(1 for _ in x.shape[1:]))
    return made, y[number % len(y)]
