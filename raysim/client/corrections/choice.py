"""Lists the corrections, and returns the record of a section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.client.corrections import (
    adabest,
    feddane,
    feddualavg,
    feddyn,
    fedpa,
    fedpd,
    mime,
    prox,
    scaffold,
    scaffold_m,
)
from raysim.client.corrections.correction import Correction
from raysim.client.corrections.correction_check import check_pull
from raysim.config.own_part import OwnCorrection
from raysim.config.part import Choice, Packaged

CorrectionSection = Annotated[
    prox.Prox
    | scaffold.Scaffold
    | scaffold_m.ScaffoldM
    | feddyn.FedDyn
    | fedpd.FedPd
    | adabest.AdaBest
    | mime.Mime
    | mime.MimeLite
    | feddane.FedDane
    | OwnCorrection,
    Field(discriminator="name"),
    Packaged("correction", "client.correction"),
]

CORRECTIONS: Choice[Correction] = Choice(
    "correction",
    {
        prox.Prox: prox.make,
        scaffold.Scaffold: scaffold.make,
        scaffold_m.ScaffoldM: scaffold_m.make,
        feddyn.FedDyn: feddyn.make,
        fedpd.FedPd: fedpd.make,
        adabest.AdaBest: adabest.make,
        mime.Mime: mime.make,
        mime.MimeLite: mime.make,
        feddane.FedDane: feddane.make,
    },
    records=(Correction,),
)


def make(section: CorrectionSection | fedpa.Posterior | feddualavg.Composite | None) -> Correction:
    """Return the record of pure functions; without a section, one that corrects nothing."""
    if isinstance(section, fedpa.Posterior):
        return fedpa.make(section)
    if isinstance(section, feddualavg.Composite):
        return feddualavg.make(section)
    if section is None:
        return Correction()
    correction = CORRECTIONS.make(section)
    if not CORRECTIONS.is_built_in(section):
        check_pull(CORRECTIONS.title(section), correction.client.pull)
    return correction


def is_built_in(section: CorrectionSection | fedpa.Posterior | feddualavg.Composite) -> bool:
    """Whether the correction is raysim's, and not a script's or a package's."""
    return isinstance(section, fedpa.Posterior | feddualavg.Composite) or CORRECTIONS.is_built_in(section)
