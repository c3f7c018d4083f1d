"""Local adaptivity: clients that step with large factors do not pull harder, number by number.

a_i is the sum, over the client's local steps, of what each number of the gradient is multiplied with beside the rate:
1 / (sqrt(G) + eps), G after the step, under Adagrad; 1, so a_i = tau_i, under SGD. With h_i the update after clipping,

joint   g = -[sum p_i h_i / a_i] / [sum p_i / a_i], 0 / 0 = 0
local   g = -sum p_i h_i / a_i

With equal a_i, joint is FedAvg. The vectors that enter the mean, of which FedGLAD sees the agreement, are h_i / a_i.

>>> from raysim.testing.two_clients import two_clients
>>> joint, local = LocalAdaptivity(), LocalAdaptivity(correction="local")
>>> two_clients(None, server={"aggregator": joint})  # a = 2 for both, so FedAvg
[1.0, 1.125]
>>> two_clients(None, server={"aggregator": local})  # (6 - 4) / 4; then (5.625 - 4.5) / 4 more
[0.5, 0.78125]

Source: Wang et al. (2021), Local Adaptivity in Federated Learning; see A Field Guide to Federated Optimization, section
3.2.4; docs/algorithms.md section 4.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysim.config.section import Section


class LocalAdaptivity(Section):
    """Corrected local adaptivity: updates are divided by the clients' own step factors."""

    name: Literal["local_adaptivity"] = "local_adaptivity"
    correction: Literal["joint", "local"] = Field(
        "joint",
        description='"joint" also divides the mean by the mean of 1 / a_i, number by number; "local" does not.',
    )
