"""The experiment's `[data]` section: which source, divided how."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field as Key

from raysim.data.sources.digits import Digits
from raysim.data.sources.mnist import FashionMnist, Mnist
from raysim.data.sources.synthetic import Synthetic

__all__ = ["Data", "Digits", "FashionMnist", "Mnist", "Synthetic"]

Data = Annotated[Digits | Synthetic | Mnist | FashionMnist, Key(discriminator="name")]
