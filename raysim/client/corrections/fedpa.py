"""FedPA: a client sends Sigma^-1 (mu - x), of samples of its local posterior, in place of y - x.

After `burn_in` units of local training, the mean of y over the local steps of every `sample` units is a sample, s_1 ..
s_l; an unfinished one is dropped. A unit is an epoch, or a local step where `local_steps` measures work. With mu the
mean of the samples, S their covariance with 1 / (l - 1), and r = 1 / (1 + (l - 1) rho),

    delta_i = Sigma^-1 (mu - x),   Sigma = r I + (1 - r) S

and with b = mu - x and C (l, P) the centred samples, which is how it is computed,

    delta_i = (1 + (l - 1) rho) [b - rho C' (I + rho C C')^-1 C b].

One sample: s_1 - x. None, or before `from_round`: y - x. rho = 0: mu - x. State: none.

Source: Al-Shedivat et al. (2021), section 4 and appendix C, and Wang et al. (2021), equation 5; docs/algorithms.md
section 3. Departure: the closed form in place of their dynamic programme over samples, which gives the same.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.corrections.correction import ClientEnd, ClientHalf, Correction, LocalWork
from raysim.config.section import Section
from raysim.config.values import Factor, Steps, Whole

PIECE = 1 << 17
"""Numbers of all samples that are worked on at a time, in the cache."""


class Posterior(Section):
    """FedPA: updates by the mean and covariance of local posterior samples."""

    name: Literal["fedpa"] = "fedpa"
    burn_in: Whole = Field(1, description="Epochs, or local steps, before the first sample.")
    sample: Steps = Field(1, description="Epochs, or local steps, whose local models are averaged to a sample.")
    rho: Factor = Field(0.01, description="Weight of the samples' covariance against the identity; 0: the identity.")
    from_round: Whole = Field(0, description="Number of finished rounds after which it begins; before, FedAvg.")


def make(section: Posterior) -> Correction:
    """Close the functions over the section.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(Posterior(burn_in=0, rho=0), num_rounds=1)  # samples 4 and 6, mean 5; -4 and -4
    [0.5]
    """

    def windows(work: LocalWork) -> tuple[tuple[int, int], ...]:
        if work.round < section.from_round:
            return ()
        length = section.sample * work.unit
        starts = range(section.burn_in * work.unit, work.tau - length + 1, length)
        return tuple((start, start + length) for start in starts)

    def upload(ended: ClientEnd) -> Tensor:
        assert ended.samples is not None
        return posterior_update(ended.samples, ended.params, section.rho) if len(ended.samples) else ended.delta

    return Correction(ClientHalf(windows=windows, upload=upload))


def posterior_update(samples: Tensor, x: Tensor, rho: float) -> Tensor:
    """Return Sigma^-1 (mu - x) of l >= 1 samples (l, P), in the dtype of x.

    >>> posterior_update(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0]), 1.0)  # r = 1/2, S = 2, Sigma = 3/2
    tensor([1.3333])
    """
    num, device = len(samples), samples.device
    gram = torch.zeros((num, num), dtype=torch.float64, device=device)
    length = max(1, PIECE // num)
    pieces = list(zip(samples.split(length, dim=1), x.split(length), strict=True))
    own = samples.new_empty((num, min(length, len(x))))
    for rows, part in pieces:
        # The samples less the last of them, and this one less x: as small as all that is asked for, which are sums of
        # them. They lose less to rounding than the samples themselves have lost, so their own dtype is enough.
        apart = own[:, : len(part)]
        torch.sub(rows[:-1], rows[-1], out=apart[:-1])
        torch.sub(rows[-1], part, out=apart[-1])
        gram.add_(apart @ apart.t())
    unit = torch.eye(num, dtype=torch.float64, device=device)
    less_x = unit.clone()
    less_x[:, -1] = 1
    b = less_x.mean(0)
    centred = less_x - b
    # Without its check: what is not finite is rejected with the update.
    solved, _ = torch.linalg.solve_ex(unit.add(centred @ gram @ centred.t(), alpha=rho), centred @ (gram @ b))
    # b and C'v are sums of the rows of s - x: by 1 / l each, and by v less its mean.
    shares = (1 / num - rho * (solved - solved.mean())).mul_(1 + (num - 1) * rho).to(x.dtype)
    update = torch.empty_like(x)
    for (rows, part), into in zip(pieces, update.split(length), strict=True):
        apart = torch.sub(rows, part, out=own[:, : len(part)])
        torch.mv(apart.t(), shares, out=into)
    return update
