"""U1 to U7: classes as a researcher writes them, that nobody tuned raysim for, for `scripts/bench --unseen`.

Examples are random, as in W1 to W7, so a round's time says something and its accuracy nothing. Sizes of clients are
log-normal, cut to "lo" and "hi"; U5's are all the same, because BatchNorm has no statistics of a last batch of one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mixer(nn.Module):
    """Dense layers over the places, then over the channels, of 16 patches of an image."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.ModuleList(MixerBlock(16, width) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 1, 16, 16)."""
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(x), 16, 16)
        h = self.embed(patches)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.out(self.norm(h).mean(1))
        return logits


class MixerBlock(nn.Module):
    """Of the Mixer."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.of_places = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.of_channels = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, h: Tensor) -> Tensor:
        """Both, each with a way around."""
        h = h + self.of_places(self.first(h).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = h + self.of_channels(self.second(h))
        return mixed


class Separable(nn.Module):
    """Depthwise separable convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        widths = (32, 64, 64, 128)
        self.by_channel = nn.ModuleList(nn.Conv2d(i, i, 3, 2, 1, groups=i) for i in widths[:-1])
        self.of_channels = nn.ModuleList(nn.Conv2d(i, o, 1) for i, o in pairwise(widths))
        self.out = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 24, 24)."""
        h = functional.hardswish(self.stem(x))
        for depthwise, pointwise in zip(self.by_channel, self.of_channels, strict=True):
            h = functional.hardswish(pointwise(depthwise(h)))
        logits: Tensor = self.out(h.mean((2, 3)))
        return logits


class Gru(nn.Module):
    """A GRU over a sequence, its last state classified."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(12, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, 24, 12)."""
        states, _ = self.gru(x)
        logits: Tensor = self.out(states[:, -1])
        return logits


class AttentionPooling(nn.Module):
    """Learned queries that look at a sequence."""

    def __init__(self, queries: int = 4, width: int = 48) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width) / width**0.5)
        self.key, self.value = nn.Linear(24, width), nn.Linear(24, width)
        self.hidden, self.out = nn.Linear(queries * width, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, 16, 24)."""
        shares = torch.softmax(torch.einsum("qw,npw->nqp", self.queries, self.key(x)), -1)
        pooled = torch.einsum("nqp,npw->nqw", shares, torch.tanh(self.value(x)))
        logits: Tensor = self.out(functional.silu(self.hidden(pooled.flatten(1))))
        return logits


class NormedMlp(nn.Module):
    """Dense layers with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 128)
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:])
        self.out = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of vectors (n, 64)."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        logits: Tensor = self.out(x)
        return logits


class Excited(nn.Module):
    """Convolutions whose channels are weighed by what the whole image holds: squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64)
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in pairwise(widths))
        self.squeeze = nn.ModuleList(nn.Linear(width, width // 4) for width in widths[1:])
        self.excite = nn.ModuleList(nn.Linear(width // 4, width) for width in widths[1:])
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 16, 16)."""
        for conv, squeeze, excite in zip(self.convs, self.squeeze, self.excite, strict=True):
            x = torch.relu(conv(x))
            weights = torch.sigmoid(excite(torch.relu(squeeze(x.mean((2, 3))))))
            x = functional.avg_pool2d(x * weights[:, :, None, None], 2)
        logits: Tensor = self.out(x.mean((2, 3)))
        return logits


class GatedBag(nn.Module):
    """The mean of a text's embeddings, gated by itself. Words are made of the real numbers that the examples hold."""

    WORDS = 1_000

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(self.WORDS, width, mode="mean")
        self.gate, self.hidden, self.out = nn.Linear(width, width), nn.Linear(width, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 20)."""
        h = self.bag((x * 250).long() % self.WORDS)
        logits: Tensor = self.out(functional.gelu(self.hidden(h * torch.sigmoid(self.gate(h)))))
        return logits


def _workload(name: str, module: type[nn.Module], shape: tuple[int, ...], **other: Any) -> dict[str, Any]:
    usual = {"M": 50, "E": 1, "B": 10, "lr": 0.05, "pool": 200, "lo": 10, "hi": 300, "mean": 60, "classes": 10}
    return {"name": name, "shape": shape, "module": module, **usual, **other}


WORKLOADS: dict[str, dict[str, Any]] = {
    "U1": _workload("mixer", Mixer, (1, 16, 16)),
    "U2": _workload("separable", Separable, (3, 24, 24), M=10, B=20),
    "U3": _workload("gru", Gru, (24, 12), M=20),
    "U4": _workload("attention-pooling", AttentionPooling, (16, 24)),
    "U5": _workload("normed-mlp", NormedMlp, (64,), M=100, B=20, pool=400, lo=45, hi=45),
    "U6": _workload("excited", Excited, (3, 16, 16), M=10, B=20),
    "U7": _workload("gated-bag", GatedBag, (20,), M=100, pool=400),
}
