"""What a round asks of a simulated client, from which its time follows."""

from __future__ import annotations

from typing import NamedTuple

from raysim.seeds import Int64s


class Load(NamedTuple):
    """examples: N_k of each client, (clients,): those that it processes, each as often as it does.

    bytes_down, bytes_up: what one client receives and sends.
    """

    examples: Int64s
    bytes_down: float
    bytes_up: float
