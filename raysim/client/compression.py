"""Defines `[client.compression]`: how a client sends its update (raysim/compression/), and what becomes of the rest.

With error feedback a client keeps e_i = 0 at first: a = h_i + e_i, Q(a) is sent, e_i <- a - Q(a).

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.compression.eden import SentEden
from raysim.compression.quantise import SentQuantise
from raysim.compression.random_k import SentRandomK
from raysim.compression.sign import SentSign
from raysim.compression.top_k import SentTopK

ClientCompression = Annotated[
    SentQuantise | SentSign | SentTopK | SentRandomK | SentEden,
    Field(discriminator="name"),
]
