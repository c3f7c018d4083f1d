"""U8 to U16: further classes that nobody tuned raysim for when they were written, for `scripts/bench --unseen`.

Examples are random, and sizes of clients drawn, as those of seven_modules.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 1_000


def words(x: Tensor, of: int = WORDS) -> Tensor:
    """Words from the real numbers that examples hold."""
    return (x.abs() * 250).long() % of


class DenselyConnected(nn.Module):
    """DenseNet's block: every layer sees all maps before it."""

    def __init__(self, growth: int = 12, depth: int = 6) -> None:
        super().__init__()
        widths = [24 + growth * place for place in range(depth + 1)]
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for width in widths[:-1])
        self.convs = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1, bias=False) for width in widths[:-1])
        self.out = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 32, 32)."""
        h = self.stem(x)
        for place, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            h = torch.cat([h, conv(torch.relu(norm(h)))], 1)
            if place == 2:
                h = functional.avg_pool2d(h, 2)
        logits: Tensor = self.out(h.mean((2, 3)))
        return logits


class ConvNext(nn.Module):
    """Depthwise convolutions of 7 x 7, and dense layers over the channels."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(ConvNextBlock(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 32, 32)."""
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        logits: Tensor = self.out(h.mean((2, 3)))
        return logits


class ConvNextBlock(nn.Module):
    """Of ConvNext."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """What is added to maps (n, width, rows, columns)."""
        last = self.norm(self.wide(h).permute(0, 2, 3, 1))
        return (self.scale * self.down(functional.gelu(self.up(last)))).permute(0, 3, 1, 2)


class OfWaves(nn.Module):
    """M5's convolutions over the samples of a sound, with group norms."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        convs = nn.Conv1d(1, width, 80, stride=4), nn.Conv1d(width, width, 3), nn.Conv1d(width, 2 * width, 3)
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.GroupNorm(4, conv.out_channels) for conv in convs)
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sounds (n, 1, 4000)."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.max_pool1d(torch.relu(norm(conv(x))), 4)
        logits: Tensor = self.out(x.mean(2))
        return logits


class FourierMixer(nn.Module):
    """FNet: Fourier transforms in the place of attention."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.inputs, self.out = nn.Linear(16, width), nn.Linear(width, 10)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.dense = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, 24, 16)."""
        h = self.inputs(x)
        for place, dense in enumerate(self.dense):
            h = self.norms[2 * place](h + torch.fft.fft(torch.fft.fft(h, dim=-1), dim=-2).real)
            h = self.norms[2 * place + 1](h + dense(h))
        logits: Tensor = self.out(h.mean(1))
        return logits


class FactorizationMachine(nn.Module):
    """DeepFM: pairs of a row's categories, and dense layers over all of them."""

    CATEGORIES = 2_000

    def __init__(self, fields: int = 20, width: int = 16) -> None:
        super().__init__()
        self.alone, self.table = nn.Embedding(self.CATEGORIES, 10), nn.Embedding(self.CATEGORIES, width)
        self.pairs = nn.Linear(width, 10)
        self.deep = nn.Sequential(
            *(nn.Linear(fields * width, 64), nn.ReLU(), nn.Dropout(0.2)),
            *(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits of rows (n, 20)."""
        categories = words(x, self.CATEGORIES)
        factors = self.table(categories)
        pairs = 0.5 * (factors.sum(1).square() - factors.square().sum(1))
        logits: Tensor = self.alone(categories).sum(1) + self.pairs(pairs) + self.deep(factors.flatten(1))
        return logits


class NormedCells(nn.Module):
    """A loop of one's own over LSTM cells with a norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.of_inputs, self.of_states = nn.Linear(12, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, 24, 12)."""
        state = cell = x.new_zeros(len(x), self.width)
        gates = self.of_inputs(x)
        for place in range(x.shape[1]):
            i, f, g, o = (gates[:, place] + self.of_states(state)).chunk(4, 1)
            cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(self.norm(cell))
        logits: Tensor = self.out(state)
        return logits


class Vgg(nn.Module):
    """Convolutions and pooling in line, with two million numbers, half of them in dense layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for widths in ((32,), (64,), (128, 128), (256, 256)):
            for width in widths:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.maps = nn.Sequential(*layers)
        self.dense = nn.Sequential(
            *(nn.Linear(1024, 1024), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(1024, 512), nn.ReLU(True), nn.Linear(512, 10)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 32, 32)."""
        logits: Tensor = self.dense(torch.flatten(self.maps(x), 1))
        return logits


class BothWays(nn.Module):
    """An LSTM over a text in both directions, with attention over its states."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.look, self.out = nn.Linear(2 * width, 1), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, 30)."""
        states, _ = self.lstm(self.table(words(x)))
        logits: Tensor = self.out((states * torch.softmax(self.look(torch.tanh(states)), 1)).sum(1))
        return logits


class LinearAttention(nn.Module):
    """Causal linear attention by cumulative sums, and torch's own attention behind it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inputs, self.heads = nn.Linear(16, width), nn.Linear(width, 3 * width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.first, self.second, self.out = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, 20, 16)."""
        h = self.inputs(x)
        q, k, v = self.heads(self.first(h)).chunk(3, -1)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        state = torch.cumsum(torch.einsum("npk,npv->npkv", k, v), 1)
        total = torch.einsum("npk,npk->np", q, torch.cumsum(k, 1))
        h = h + torch.einsum("npk,npkv->npv", q, state) / total[..., None]
        normed = self.second(h)
        h = h + self.attention(normed, normed, normed, need_weights=False)[0]
        logits: Tensor = self.out(h[:, -1])
        return logits


def _workload(name: str, module: type[nn.Module], shape: tuple[int, ...], **other: Any) -> dict[str, Any]:
    usual = {"M": 20, "E": 1, "B": 10, "lr": 0.05, "pool": 200, "lo": 10, "hi": 300, "mean": 60, "classes": 10}
    return {"name": name, "shape": shape, "module": module, **usual, **other}


WORKLOADS: dict[str, dict[str, Any]] = {
    "U8": _workload("densely-connected", DenselyConnected, (3, 32, 32), M=4, B=20),
    "U9": _workload("convnext", ConvNext, (3, 32, 32), M=10, B=20),
    "U10": _workload("of-waves", OfWaves, (1, 4000), M=10, B=16),
    "U11": _workload("fourier-mixer", FourierMixer, (24, 16)),
    "U12": _workload("factorization-machine", FactorizationMachine, (20,), M=100),
    "U13": _workload("normed-cells", NormedCells, (24, 12)),
    "U14": _workload("vgg", Vgg, (3, 32, 32), M=6, B=20),
    "U15": _workload("both-ways", BothWays, (30,)),
    "U16": _workload("linear-attention", LinearAttention, (20, 16)),
}
