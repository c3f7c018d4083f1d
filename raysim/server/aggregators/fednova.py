"""FedNova: delta = tau_eff sum_i p_i h_i / a_i: clients that took more local steps do not pull harder.

a_i = tau_i for SGD; with local momentum rho it is the sum of what each gradient moves in tau steps,
sum_{k=1..tau} (1 - rho^k) / (1 - rho); under a pull mu (y - x), (1 - (1 - lr mu)^tau) / (lr mu). tau_eff = sum p_i a_i
("sum_p_a") or sum p_i tau_i ("sum_p_tau").

Source: Wang et al. (2020); docs/algorithms.md section 4. h_i is the update after clipping.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from raysim.config.section import Section


class FedNova(Section):
    """FedNova, normalised averaging."""

    name: Literal["fednova"] = "fednova"
    tau_eff: Literal["sum_p_a", "sum_p_tau"] = Field("sum_p_a", description="Effective number of local steps.")


_SMALL_PULL = 1e-8
_SMALL_REST = 1e-4
"""Of lr mu, and of (1 - rho) tau: below them the closed forms lose the digits of float32 to cancellation."""

_TERMS = 5
"""Of the series in (1 - rho) tau; what is left out is below the rounding of float64."""


def normaliser(tau: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """a_i of a client that took tau local steps with momentum rho, or with a pull of lr mu towards x; not both.

    >>> normaliser(3), normaliser(2, momentum=0.5), normaliser(2, pull=0.5)  # 3; 1 + 3/2; 1 + 1/2
    (3.0, 2.5, 1.5)
    >>> normaliser(4, momentum=1 - 2**-50), normaliser(4, pull=2**-60)
    (9.999999999999991, 4.0)
    """
    if momentum == 0 and pull == 0:
        return float(tau)
    if pull:
        # Gradient j is shrunk by 1 - lr mu in each of the tau - j steps after it.
        if abs(pull) < _SMALL_PULL:
            return -math.expm1(tau * math.log1p(-pull)) / pull
        return (1 - (1 - pull) ** tau) / pull
    if (1 - momentum) * tau < _SMALL_REST:
        return sum((momentum - 1) ** i * math.comb(tau + 1, i + 2) for i in range(min(tau, _TERMS)))
    # Gradient j of tau moves the model 1 + rho + ... + rho^(tau - j) times: the k = tau - j + 1 terms add up to
    # (1 - rho^k) / (1 - rho), and their sum over k has this closed form.
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
