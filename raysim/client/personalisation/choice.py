"""Lists the personalisations, and returns the record of a section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from raysim.client.personalisation import apfl, clusters, ditto, maml, split
from raysim.client.personalisation.personalisation import Personalisation, PersonalSection
from raysim.config.section import replaced
from raysim.models.layout import Layout

if TYPE_CHECKING:
    from raysim.client.section import ClientSection

PersonalisationSection = Annotated[
    ditto.Ditto | apfl.Apfl | split.SplitModel | maml.Maml | clusters.Clusters,
    Field(discriminator="name"),
]

MAKERS: Mapping[type[PersonalSection], Callable[[Any, ClientSection, Layout], Personalisation]] = MappingProxyType(
    {ditto.Ditto: ditto.make, apfl.Apfl: apfl.make, split.SplitModel: split.make, maml.Maml: maml.make}
)


def make(client: ClientSection, layout: Layout) -> Personalisation | None:
    """Return the record of pure functions; None without a section, or for clusters (algorithm/clustered.py).

    Args:
        client: local training, with the section.
        layout: of the model's parameters.

    Raises:
        ExperimentError: the section does not fit the model.
    """
    chosen = client.personalisation
    # What trains has no personalisation of its own.
    plain = replaced(client, personalisation=None)
    return (
        None if chosen is None or isinstance(chosen, clusters.Clusters) else MAKERS[type(chosen)](chosen, plain, layout)
    )
