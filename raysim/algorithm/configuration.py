"""Defines local training by one configuration: of the client section, or of those from which FedEx draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raysim.algorithm import local_adaptivity
from raysim.algorithm.members import Members
from raysim.algorithm.uploads import Contributing, contribution_rule
from raysim.client.corrections import choice as corrections
from raysim.client.local_training import Trained
from raysim.client.section import ClientSection
from raysim.models.layout import Layout
from raysim.server.accumulator import Divided
from raysim.server.section import ServerSection


class Configured(NamedTuple):
    """Local training by one configuration, and what depends on it.

    number: j. client: its section. members: builds its clients. contributions, divide: see uploads.py and
    local_adaptivity.py.
    """

    number: int
    client: ClientSection
    members: Members
    contributions: Contributing
    divide: Callable[[Trained], Divided | None]


def configure(
    sections: Sequence[ClientSection], server: ServerSection, members: Members, layout: Layout, num_labels: int
) -> list[Configured]:
    """Return the local training of each section."""
    return [
        Configured(
            j,
            client,
            members.training_by(client),
            contribution_rule(client, server, corrections.make(client.correcting), num_labels),
            local_adaptivity.division(client, server, layout),
        )
        for j, client in enumerate(sections)
    ]
