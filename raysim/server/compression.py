"""Defines `[server.compression]`: how the model is sent to clients (raysim/compression/).

| of | clients start at |
|---|---|
| `"model"` | xhat = Q(x) |
| `"change"` | xhat, which is x_0 at first; xhat <- xhat + Q(x - xhat) after each step, as if all heard it |

An update is y_i - xhat. The server's step is from x, and x is evaluated.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.compression.eden import ReceivedEden
from raysim.compression.quantise import ReceivedQuantise
from raysim.compression.random_k import ReceivedRandomK
from raysim.compression.sign import ReceivedSign
from raysim.compression.top_k import ReceivedTopK

ServerCompression = Annotated[
    ReceivedQuantise | ReceivedSign | ReceivedTopK | ReceivedRandomK | ReceivedEden,
    Field(discriminator="name"),
]
