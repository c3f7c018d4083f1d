"""Defines `[server.compression]`: how the model is sent to clients (raysim/compression/).

| of | clients start at |
|---|---|
| `"model"` | xhat = Q(x) |
| `"change"` | xhat, which is x_0 at first; xhat <- xhat + Q(x - xhat) after each step, as if all heard it |

An update is y_i - xhat. The server's step is from x, and x is evaluated.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysim.compression import eden, quantise, random_k, sign, top_k
from raysim.compression.compressor import CompressionKeys


class ReceivedKeys(CompressionKeys):
    """Keys of every compressor of models."""

    of: Literal["model", "change"] = Field(
        "model", description="What is compressed: the model, or its change since the last step."
    )


class ReceivedQuantise(ReceivedKeys, quantise.QuantiseKeys):
    """Numbers rounded to a few levels at random.

    Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad.
    """

    name: Literal["quantise"] = "quantise"


class ReceivedSign(ReceivedKeys, sign.SignKeys):
    """Signs of numbers, and their mean size.

    Source: Bernstein et al. (2018), signSGD; Karimireddy et al. (2019), with the norm.
    """

    name: Literal["sign"] = "sign"


class ReceivedTopK(ReceivedKeys, top_k.TopKKeys):
    """The k largest numbers and their places."""

    name: Literal["top_k"] = "top_k"


class ReceivedRandomK(ReceivedKeys, random_k.RandomKKeys):
    """The numbers at k random places."""

    name: Literal["random_k"] = "random_k"


class ReceivedEden(ReceivedKeys, eden.EdenKeys):
    """EDEN, and DRIVE with one bit: the nearest centroids after a random rotation.

    Source: Vargaftik et al. (2021), DRIVE; Vargaftik et al. (2022), EDEN.
    """

    name: Literal["eden"] = "eden"


ServerCompression = Annotated[
    ReceivedQuantise | ReceivedSign | ReceivedTopK | ReceivedRandomK | ReceivedEden,
    Field(discriminator="name"),
]
