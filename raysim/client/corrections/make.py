"""The correction that a client's section names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.client.corrections import adabest, feddane, feddyn, mime, prox, scaffold, scaffold_m
from raysim.client.corrections.correction import Correction
from raysim.client.section import ClientSection
from raysim.section import Section

MAKERS: dict[type[Section], Callable[[Any], Correction]] = {
    prox.Prox: prox.make,
    scaffold_m.ScaffoldM: scaffold_m.make,
    feddyn.FedDyn: feddyn.make,
    adabest.AdaBest: adabest.make,
    mime.Mime: mime.make,
    mime.MimeLite: mime.make,
    feddane.FedDane: feddane.make,
}


def make(client: ClientSection) -> Correction:
    """The record of pure functions; one that corrects nothing where the section names none."""
    section = client.correction
    if section is None:
        return Correction()
    if isinstance(section, scaffold.Scaffold):
        return scaffold.make(section, plain=client.is_plain_sgd)
    return MAKERS[type(section)](section)
