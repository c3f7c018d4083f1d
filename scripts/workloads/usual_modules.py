"""Modules as researchers write them, one for each usual kind, for `scripts/bench-modules`.

Each has an operator or a layer that another trainer than autograd must know, or leave to torch. Examples are random, so
a local step's time says something and its accuracy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 500


class Workload(NamedTuple):
    """A module, and the shape of an example; batches have so many of these."""

    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int = 10


def words(x: Tensor) -> Tensor:
    """Words from the real numbers that examples hold."""
    return (x.abs() * 125).long() % WORDS


class Last(nn.Module):
    """A recurrent layer, whose last state is classified."""

    def __init__(self, layer: type[nn.RNNBase], width: int = 64) -> None:
        super().__init__()
        self.layer, self.out = layer(16, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, places, 16)."""
        logits: Tensor = self.out(self.layer(x)[0][:, -1])
        return logits


class TextCnn(nn.Module):
    """Convolutions of three widths over a text, the largest of each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 32, width) for width in (3, 4, 5))
        self.dropout, self.out = nn.Dropout(0.5), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, places)."""
        h = self.table(words(x)).transpose(1, 2)
        largest = [torch.relu(convolution(h)).amax(2) for convolution in self.convolutions]
        logits: Tensor = self.out(self.dropout(torch.cat(largest, 1)))
        return logits


class Encoder(nn.Module):
    """A transformer's layer over texts with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 32), nn.Linear(32, 10)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of texts (n, places)."""
        text = words(x)
        padding = text < WORDS // 5
        h = self.layer(self.table(text), src_key_padding_mask=padding)
        logits: Tensor = self.out(h.masked_fill(padding[..., None], 0).sum(1))
        return logits


class Causal(nn.Module):
    """Attention to what comes before, written by hand."""

    mask: Tensor

    def __init__(self, places: int = 20) -> None:
        super().__init__()
        self.inputs, self.heads, self.back = nn.Linear(16, 48), nn.Linear(48, 144), nn.Linear(48, 48)
        self.norm, self.out = nn.LayerNorm(48), nn.Linear(48, 10)
        self.register_buffer("mask", torch.ones(places, places, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, places, 16)."""
        h = self.inputs(x)
        q, k, v = (one.unflatten(2, (4, 12)).transpose(1, 2) for one in self.heads(self.norm(h)).split(48, 2))
        scores = (q @ k.transpose(2, 3) / 12**0.5).masked_fill(self.mask, -torch.inf)
        h = h + self.back((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        logits: Tensor = self.out(h[:, -1])
        return logits


class VisionTransformer(nn.Module):
    """Two layers over 64 patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 64, 4, 4), nn.Parameter(0.02 * torch.randn(1, 64, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 3, 32, 32)."""
        h = self.layers(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        logits: Tensor = self.out(h.mean(1))
        return logits


class LeNet(nn.Module):
    """Two convolutions, averages and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.dense = nn.Sequential(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images (n, 1, 28, 28)."""
        for convolution in (self.first, self.second):
            x = functional.avg_pool2d(torch.tanh(convolution(x)), 2)
        logits: Tensor = self.dense(x.flatten(1))
        return logits


class Residual(nn.Module):
    """Two convolutions with norms, and a way around."""

    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, outputs) for _ in range(2))
        self.around = nn.Conv2d(channels, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps."""
        h = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(h + self.around(x))


class Pooled(nn.Module):
    """Maps of an image, their means classified."""

    def __init__(self, maps: nn.Module, channels: int) -> None:
        super().__init__()
        self.maps, self.out = maps, nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        logits: Tensor = self.out(self.maps(x).mean((2, 3)))
        return logits


def resnet() -> nn.Module:
    """A ResNet-8 with GroupNorm."""
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    return Pooled(nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), *blocks), 64)


def inverted() -> nn.Module:
    """Inverted residuals as MobileNetV2's, with batch norm."""

    def layer(channels: int, outputs: int, width: int, stride: int = 1, groups: int = 1) -> nn.Module:
        convolution = nn.Conv2d(channels, outputs, width, stride, width // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())

    blocks = [(16, 48, 24, 1), (24, 72, 32, 2)]
    layers = [[layer(i, w, 1), layer(w, w, 3, s, w), layer(w, o, 1)] for i, w, o, s in blocks]
    return Pooled(nn.Sequential(layer(3, 16, 3, 2), *(one for block in layers for one in block)), 32)


class UNet(nn.Module):
    """Down, up again, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps."""
        first = torch.relu(self.first(x))
        return torch.relu(self.last(torch.cat([first, self.up(torch.relu(self.down(first)))], 1)))


class Temporal(nn.Module):
    """Dilated causal convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16 if d == 1 else 32, 32, 3, dilation=d) for d in (1, 2, 4))
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of sequences (n, places, 16)."""
        h = x.transpose(1, 2)
        for layer, dilation in zip(self.layers, (1, 2, 4), strict=True):
            h = functional.elu(layer(functional.pad(h, (2 * dilation, 0))))
        logits: Tensor = self.out(h[:, :, -1])
        return logits


class Graph(nn.Module):
    """Convolutions on a dense graph, whose edges follow from the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of graphs (n, nodes, 16)."""
        edges = torch.softmax(x @ x.transpose(1, 2) / 4, 1)
        h = torch.relu(edges @ self.first(x))
        h = torch.relu(edges @ self.second(h))
        logits: Tensor = self.out(h.max(1).values)
        return logits


class Cosine(nn.Module):
    """The cosine with each class's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.classes = nn.Linear(64, 64), nn.Parameter(torch.randn(10, 64))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of vectors (n, 64)."""
        h = functional.normalize(torch.relu(self.hidden(x)))
        return self.scale * functional.linear(h, functional.normalize(self.classes))


class Experts(nn.Module):
    """The two best of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 32) for _ in range(4))
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of vectors (n, 64)."""
        weights, best = self.gate(x).softmax(-1).topk(2)
        found = torch.stack([torch.relu(expert(x)) for expert in self.experts], 1)
        chosen = found.gather(1, best[..., None].expand(-1, -1, 32))
        logits: Tensor = self.out((weights[..., None] * chosen).sum(1))
        return logits


class Gated(nn.Module):
    """A mean square norm, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.both = nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 128)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of vectors (n, 64)."""
        values, gates = self.both(self.norm(self.hidden(x))).chunk(2, -1)
        logits: Tensor = self.out(functional.silu(gates) * values)
        return logits


class Choice(nn.Module):
    """A function of one's own, with a choice by number."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of vectors (n, 64)."""
        h = self.hidden(x)
        h = torch.where(h > 0, torch.sin(h), 0.1 * h.exp().clamp(max=5))
        logits: Tensor = self.out(h)
        return logits


def mlp(function: type[nn.Module]) -> Callable[[], nn.Module]:
    """Two hidden layers with this function."""
    return lambda: nn.Sequential(nn.Linear(64, 64), function(), nn.Linear(64, 64), function(), nn.Linear(64, 10))


_SEQUENCE, _VECTOR = (20, 16), (64,)

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "RNN": Workload(lambda: Last(nn.RNN), _SEQUENCE),
        "GRU": Workload(lambda: Last(nn.GRU), _SEQUENCE),
        "LSTM": Workload(lambda: Last(nn.LSTM), _SEQUENCE),
        "LSTM, 256 states": Workload(lambda: Last(nn.LSTM, 256), _SEQUENCE),
        "text CNN": Workload(TextCnn, (30,)),
        "encoder with padding": Workload(Encoder, (24,)),
        "causal attention": Workload(Causal, _SEQUENCE),
        "vision transformer": Workload(VisionTransformer, (3, 32, 32)),
        "LeNet": Workload(LeNet, (1, 28, 28)),
        "ResNet-8, GroupNorm": Workload(resnet, (3, 32, 32), 20),
        "inverted residuals, BatchNorm": Workload(inverted, (3, 32, 32), 20),
        "U-net": Workload(lambda: Pooled(UNet(), 8), (3, 32, 32)),
        "temporal convolutions": Workload(Temporal, _SEQUENCE),
        "graph convolutions": Workload(Graph, _SEQUENCE),
        "MLP, ELU": Workload(mlp(nn.ELU), _VECTOR),
        "MLP, PReLU": Workload(mlp(nn.PReLU), _VECTOR),
        "cosine classifier": Workload(Cosine, _VECTOR),
        "mixture of experts": Workload(Experts, _VECTOR),
        "RMSNorm, gates": Workload(Gated, _VECTOR),
        "choice by number": Workload(Choice, _VECTOR),
    }
)
