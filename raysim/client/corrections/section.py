"""The corrections to choose from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.client.corrections.adabest import AdaBest
from raysim.client.corrections.feddane import FedDane
from raysim.client.corrections.feddyn import FedDyn
from raysim.client.corrections.mime import Mime, MimeLite
from raysim.client.corrections.prox import Prox
from raysim.client.corrections.scaffold import Scaffold
from raysim.client.corrections.scaffold_m import ScaffoldM

CorrectionSection = Annotated[
    Prox | Scaffold | ScaffoldM | FedDyn | AdaBest | Mime | MimeLite | FedDane, Field(discriminator="name")
]
