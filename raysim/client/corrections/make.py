"""The corrections to choose from, and the record that a section means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from raysim.client.corrections import adabest, feddane, feddyn, mime, prox, scaffold, scaffold_m
from raysim.client.corrections.correction import Correction
from raysim.config.section import Section

CorrectionSection = Annotated[
    prox.Prox
    | scaffold.Scaffold
    | scaffold_m.ScaffoldM
    | feddyn.FedDyn
    | adabest.AdaBest
    | mime.Mime
    | mime.MimeLite
    | feddane.FedDane,
    Field(discriminator="name"),
]

MAKERS: dict[type[Section], Callable[[Any], Correction]] = {
    prox.Prox: prox.make,
    scaffold_m.ScaffoldM: scaffold_m.make,
    feddyn.FedDyn: feddyn.make,
    adabest.AdaBest: adabest.make,
    mime.Mime: mime.make,
    mime.MimeLite: mime.make,
    feddane.FedDane: feddane.make,
}


def make(section: CorrectionSection | None, plain_sgd: bool) -> Correction:
    """The record of pure functions; one that corrects nothing where there is no section.

    `plain_sgd`: but for the correction, clients' local steps are plain SGD.
    """
    if section is None:
        return Correction()
    if isinstance(section, scaffold.Scaffold):
        return scaffold.make(section, plain_sgd)
    return MAKERS[type(section)](section)
