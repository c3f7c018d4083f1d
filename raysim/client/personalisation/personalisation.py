"""Defines a personalisation: what a client trains, keeps and is scored with for itself, beside the model of all.

It is a record of pure functions over flat vectors (P,), as a correction is. A client may keep one vector of its own,
v_i, from round to round; until it takes part, v_i is x_0, the initial model. A round calls, for client i:

    start(at) -> where its training starts; None: at the model x that it received
    its training, by `step` where that is given; groups in `held` stay
    after(at, ended) -> the next v_i

and an evaluation calls scored(at) -> the client's personal model. Each of these may take the *own pass*, one more pass
of local training, with batches from the round's first on and a fresh optimizer. Buffers are those of the model that the
client received.

Source: Wang et al. (2021), section 7.5; docs/algorithms.md section 3. The code that runs a personalisation depends on
its record, never on its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, Field
from torch import Tensor

from raysim.config.values import Name

if TYPE_CHECKING:
    from raysim.client.section import ClientSection

Gradients = Literal["one", "several", "twice"]


class PersonalSection(BaseModel):
    """Keys of every personalisation."""

    split: Name = Field("test", description="Split on which personal models are scored, each on its client's examples.")

    @property
    def keeps(self) -> bool:
        """Whether clients keep a vector from round to round."""
        return True

    @property
    def gradients(self) -> Gradients:
        """Those of a local step: one of the batch's loss, several at other points too, or "twice" with the Hessian."""
        return "one"


class OwnPass(NamedTuple):
    """One more pass of local training.

    section: its work, optimizer and pull, which is towards x wherever the pass starts. lr: its learning rate; None: the
    clients' of the round. held: names of the groups that do not move.
    """

    section: ClientSection
    lr: float | None = None
    held: tuple[str, ...] = ()


class PersonalAt(NamedTuple):
    """A client, for the functions of a personalisation. Vectors are (P,), and not to be written to.

    x: the model that it received. own: v_i. train: the own pass from a start; returns where it ends. gradient: that of
    f_i at x, the mean loss over all its training examples.
    """

    x: Tensor
    own: Tensor
    train: Callable[[Tensor], Tensor]
    gradient: Callable[[], Tensor]


class Ended(NamedTuple):
    """The client's training of a round: from `start` by `delta`, (P,). beside: where the second row of a step ended."""

    start: Tensor
    delta: Tensor
    beside: Tensor | None


class StepAt(NamedTuple):
    """A local step on a batch B, for `StepGradients.gradients`.

    rows: y, and v_i behind it where it moves too, (P,) each. gradient: grad f_B(y). at: grad f_B at another point, with
    the same draws. curved: the Hessian of f_B at y times a vector.
    """

    rows: tuple[Tensor, ...]
    gradient: Tensor
    at: Callable[[Tensor], Tensor]
    curved: Callable[[Tensor], Tensor]


class StepGradients(NamedTuple):
    """The gradients of a local step, in place of grad f_B(y): one for each row, before clipping and the optimizer.

    own: v_i is a row behind y, and moves by a gradient of its own. curved: `gradients` needs the Hessian.
    """

    gradients: Callable[[StepAt], Sequence[Tensor]]
    own: bool = False
    curved: bool = False


class Personalisation(NamedTuple):
    """See the module's docstring; ditto.py is a short example.

    scored: the personal model. start, after: see above; without `after` clients keep no vector. begins_at_x0: v_i needs
    x_0 beside the model; otherwise the model has the part of it that is used. own: the own pass. held: groups that the
    client's training does not move. unsent: groups that stay at the client; the server's stay x_0. step: the
    gradients of a local step, in place of the batch's. needs_gradient: `scored` calls `at.gradient`.
    """

    scored: Callable[[PersonalAt], Tensor]
    start: Callable[[PersonalAt], Tensor] | None = None
    after: Callable[[PersonalAt, Ended], Tensor] | None = None
    begins_at_x0: bool = False
    own: OwnPass | None = None
    held: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    step: StepGradients | None = None
    needs_gradient: bool = False
