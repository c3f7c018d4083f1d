"""Lists the compressors, and applies one to flat vectors: whole, or tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.compression import eden, passes, quantise, random_k, sign, top_k
from raysim.compression.compressor import Compressor, Scale
from raysim.compression.passes import Groups, Loss
from raysim.models.layout import Layout

Keys = quantise.QuantiseKeys | sign.SignKeys | top_k.TopKKeys | random_k.RandomKKeys | eden.EdenKeys
"""The section of a compressor."""


def make(section: Keys, keeps_rest: bool = False) -> Compressor:
    """Return the record of pure functions.

    `keeps_rest`: what is not sent is added to the next vector.
    """
    usual: Scale = "least" if keeps_rest else "unbiased"
    match section:
        case quantise.QuantiseKeys():
            return quantise.make(section)
        case sign.SignKeys():
            return sign.make(section)
        case top_k.TopKKeys():
            return top_k.make(section)
        case random_k.RandomKKeys():
            return random_k.make(section, section.scale or usual)
        case eden.EdenKeys():
            return eden.make(section, section.scale or usual)


class Compression(NamedTuple):
    """A compressor of flat vectors.

    apply(v, key, out): writes Q(v), (P,), zeros in the gaps, to `out`; `key` addresses the draws (seeds.py). send(v,
    key, out, groups): does so, and returns what was lost. num_bytes: what is sent.
    """

    apply: Callable[[Tensor, int, Tensor], Tensor]
    send: Callable[[Tensor, int, Tensor, Groups], Loss]
    num_bytes: int


def over(section: Keys, layout: Layout, keeps_rest: bool = False) -> Compression:
    """Return the compression of vectors of this layout; see `make`."""
    compressor = make(section, keeps_rest)
    lengths = [math.prod(shape) for shape in layout.shapes]
    num_bytes = -(-sum(compressor.bits(length) for length in lengths if length) // 8)
    if section.scope == "model":
        num_bytes = -(-compressor.bits(sum(lengths)) // 8)
        if compressor.keeps_zeros and layout.is_whole:
            return Compression(compressor.apply, compressor.send or _measured(compressor.apply), num_bytes)

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        pieces = [piece for piece in layout.pieces(v) if len(piece)]
        into = [piece for piece in layout.pieces(out.zero_()) if len(piece)]
        if section.scope == "group":
            keys = seeds.derive(np.asarray(key, dtype=np.uint64), np.arange(len(pieces))).tolist()
            for piece, its, to in zip(pieces, keys, into, strict=True):
                compressor.apply(piece, its, to)
        else:
            joined = torch.cat(pieces)
            sent = compressor.apply(joined, key, torch.empty_like(joined))
            torch._foreach_copy_(into, sent.split([len(piece) for piece in pieces]))
        return out

    return Compression(apply, _measured(apply), num_bytes)


def _measured(apply: Callable[[Tensor, int, Tensor], Tensor]) -> Callable[[Tensor, int, Tensor, Groups], Loss]:
    return lambda v, key, out, groups: passes.measured(v, apply(v, key, out), groups)
