"""The `[server]` section: how updates are weighted and what the server does with their mean."""

from __future__ import annotations

from typing import Literal

from raysim.section import Section
from raysim.server.sgd import Sgd


class ServerSection(Section):
    """`weighting`: p_i proportional to the client's number of training examples, or equal for all."""

    optimizer: Sgd = Sgd()
    weighting: Literal["examples", "uniform"] = "examples"
