"""Keeps the recorded local steps of a module, by the number of a batch's examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from raysim.client.trainers.cuda_graphs import Recorder
from raysim.client.trainers.kernel.kernels import BY_TORCH, Kernels
from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording.local_step import Recorded, ScoreRows, record_step
from raysim.client.trainers.recording.replay import Replay, ScoredStep
from raysim.client.trainers.recording.resized import Sized
from raysim.client.trainers.recording.resized_steps import ResizedSteps, of_length
from raysim.client.trainers.recording.trial import changes_module
from raysim.client.trainers.recording.weighted import Weighted
from raysim.models import memory


class BatchViews(Protocol):
    """Batches, each by its number."""

    def __getitem__(self, number: int, /) -> Tensor: ...


class StepRecording(NamedTuple):
    """How local steps are carried out.

    lengths: of batches whose steps are recorded; the others' are by autograd. recorder: makes what plays recorded steps
    as CUDA graphs; None: their operators are called. interprets: the interpreter carries a step out where it can.
    kernels: compute what they can in the place of torch's operators. longest: the length of full batches, from whose
    steps interpreted ones of all shorter batches are made, where they can be; None: they are not. from_outputs:
    autograd begins with the gradient of the task's own loss at the outputs, by hand; otherwise with the loss.
    """

    lengths: Collection[int] = ()
    recorder: Callable[[], Recorder] | None = None
    interprets: bool = False
    kernels: Kernels = BY_TORCH
    longest: int | None = None
    from_outputs: bool = False


BY_AUTOGRAD = StepRecording()


class RecordedSteps:
    """Records steps where they can be, each length once.

    Args:
        weighted: what a recording is made of.
        loss_gradient: of the loss at the outputs.
        by_autograd: the same step, which says what is wrong with an index out of its range.
        recording: which lengths, and by what.
        score_rows: of the places that count, where not all do.
    """

    def __init__(
        self,
        weighted: Weighted,
        loss_gradient: LossGradient,
        by_autograd: Replay,
        recording: StepRecording,
        score_rows: ScoreRows | None = None,
    ) -> None:
        self._weighted, self._loss_gradient, self._by_autograd = weighted, loss_gradient, by_autograd
        self._recording, self._score_rows = recording, score_rows
        self._steps: dict[int, ScoredStep | None] = {}
        """None: it cannot be recorded."""
        self._attempts: dict[int, Recorded | None] = {}
        """Of the lengths whose steps were not made from others."""
        self._shorter: ResizedSteps | None = None
        self._changing: dict[int, bool] = {}
        """Whether a forward of this length changes what the module holds, of lengths beside recorded ones."""
        self._are_replayed = True

    def get(self, length: int) -> ScoredStep | None:
        """The step of batches of so many examples; None where it is not recorded, or not to be used."""
        return self._steps.get(length) if self._are_replayed else None

    def record(self, x: BatchViews, y: BatchViews, lengths: Sequence[int]) -> bool:
        """Record the steps of these lengths, where they are new; return whether all are recorded.

        A step that is recorded does not see what a forward of another length has changed in the module, such as an
        attribute. Where one of these lengths does so, none is replayed until the next call.

        Args:
            x, y: batches: all of a client, which finds the module as it was made.
            lengths: of these.
        """
        for length in set(lengths) - self._steps.keys():
            first = lengths.index(length)
            self._steps[length] = self._made(x[first], y[first])
        others = {length for length in lengths if self._steps[length] is None}
        if 0 < len(others) < len(set(lengths)):
            for length in others - self._changing.keys():
                self._changing[length] = changes_module(self._weighted, x[lengths.index(length)])
        self._are_replayed = not any(self._changing.get(length, False) for length in others)
        return not others

    def attempt(self, x: Tensor, y: Tensor) -> Recorded:
        """Record the step of this batch; see `record_step`."""
        how = self._recording
        return record_step(self._weighted, self._loss_gradient, x, y, how.interprets, how.kernels, self._score_rows)

    def _made(self, x: Tensor, y: Tensor) -> ScoredStep | None:
        longest = self._recording.longest
        if longest is not None and len(y) < longest and (step := self._resized(x, y, longest)) is not None:
            return step
        if len(y) not in self._recording.lengths:
            return None
        recorded = self._by_itself(x, y)
        return None if recorded is None else recorded.step

    def _resized(self, x: Tensor, y: Tensor, longest: int) -> ScoredStep | None:
        """The step made from those of full batches and of batches with one example less, if it can be."""
        sized: list[Sized] = []
        for length in (longest, longest - 1):
            recorded = self._by_itself(*of_length(x, y, length))
            if recorded is None or recorded.sized is None:
                return None
            if length == len(y):
                return recorded.step
            sized.append(recorded.sized)
        if self._shorter is None:
            self._shorter = ResizedSteps(self._weighted, self._loss_gradient, self._by_autograd, *sized)
        try:
            return self._shorter.step(x, y)
        except Exception as error:
            if memory.is_lacking(error):
                raise
            # This length behaves otherwise.
            return None

    def _by_itself(self, x: Tensor, y: Tensor) -> Recorded | None:
        """The recording of this length, at its first batch."""
        length, longest = len(y), self._recording.longest
        if length in self._attempts:
            return self._attempts[length]
        self._attempts[length] = None
        try:
            recorded = self.attempt(x, y)
        except Exception as error:
            if memory.is_lacking(error):
                raise
            # The run's first examples were tried before it began, so this is a length that behaves otherwise. A module
            # that fails here trains by autograd, where its own error shows.
            return None
        finally:
            # A trial takes several times as much as the steps that follow.
            memory.give_back()
        # What other lengths are made from takes memory.
        is_kept = longest is not None and length >= longest - 1
        self._attempts[length] = recorded if is_kept else recorded._replace(sized=None)
        return self._attempts[length]
