"""FedNova: delta = tau_eff sum_i p_i h_i / a_i: clients that took more local steps do not pull harder.

a_i = tau_i for SGD; with local momentum rho it is the sum of what each gradient moves in tau steps,
sum_{k=1..tau} (1 - rho^k) / (1 - rho); under a pull mu (y - x), (1 - (1 - lr mu)^tau) / (lr mu). tau_eff = sum p_i a_i
("sum_p_a") or sum p_i tau_i ("sum_p_tau").

Source: Wang et al. (2020); docs/algorithms.md section 4. h_i is the update after clipping.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysim.config.section import Section


class FedNova(Section):
    """FedNova, normalised averaging."""

    name: Literal["fednova"] = "fednova"
    tau_eff: Literal["sum_p_a", "sum_p_tau"] = Field("sum_p_a", description="Effective number of local steps.")


def normaliser(tau: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """a_i of a client that took tau local steps with momentum rho, or with a pull of lr mu towards x; not both.

    >>> normaliser(3), normaliser(2, momentum=0.5), normaliser(2, pull=0.5)  # 3; 1 + 3/2; 1 + 1/2
    (3.0, 2.5, 1.5)
    """
    if momentum == 0 and pull == 0:
        return float(tau)
    if pull:
        # Gradient j is shrunk by 1 - lr mu in each of the tau - j steps after it.
        return (1 - (1 - pull) ** tau) / pull
    # Gradient j of tau moves the model 1 + rho + ... + rho^(tau - j) times: the k = tau - j + 1 terms add up to
    # (1 - rho^k) / (1 - rho), and their sum over k has this closed form.
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
