"""Trains layers on texts without their padding: each place that counts, and those before it, is one row.

Layers that take each place by itself take rows in any order, and LSTMs go through those texts alone that reach a place
(`packing.py`). What is behind the last place of a text that counts changes neither its loss nor a gradient.
"""

from __future__ import annotations

from torch import Tensor, nn

from raysim.client.trainers import class_gradient
from raysim.client.trainers.class_scores import scored_rows
from raysim.client.trainers.fused import LayersByHand, Scored
from raysim.client.trainers.layers.elementwise import Dropout
from raysim.client.trainers.layers.packed_lstm import PackedLstm
from raysim.client.trainers.loss_gradient import factors_of_places
from raysim.client.trainers.packing import pack
from raysim.client.trainers.recognise import Placed, Recognised, every
from raysim.models.layers import Residual, Tied
from raysim.models.lstm import Lstm
from raysim.models.masked import MaskedCrossEntropy
from raysim.models.task import Task

BY_PLACE = (nn.Embedding, nn.Linear, nn.ReLU, nn.Tanh, nn.Identity, nn.LayerNorm, Lstm, Residual, Tied)
"""Layers of which a place's outputs depend on no later place, on rows as they lie packed."""


def packs(recognised: Recognised, task: Task) -> bool:
    """Whether the layers can be trained on packed texts, and gain by it: LSTMs of texts with padding."""
    placed = list(every(recognised.layers))
    recurs = any(type(one.module) is Lstm for one in placed)
    return recurs and isinstance(task.losses, MaskedCrossEntropy) and all(map(_is_by_place, placed))


def _is_by_place(one: Placed) -> bool:
    module = one.module
    return type(module) in BY_PLACE and not (isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1)


class PackedTexts:
    """A network of `Fused` for texts (batch, time, ...) whose targets (batch, time) have padding.

    Args:
        layers: made of the layers, with the compiled passes of LSTMs.
        task: classes of texts with padding.
    """

    def __init__(self, layers: LayersByHand, task: Task) -> None:
        assert isinstance(task.losses, MaskedCrossEntropy)
        self._layers, self._task, self._padding = layers, task, task.losses.padding
        self._lstms = [layer for layer in layers.every if isinstance(layer, PackedLstm)]
        self.params, self.gradient = layers.params, layers.gradient
        self.dropouts: list[Dropout] = []

    def differentiate(self, h: Tensor, targets: Tensor, alpha: float, batch: int) -> Scored:
        """See `fused.Network`."""
        # Rows are taken by their place in both; the first answers of the module have shown that they are alike.
        assert h.shape[:2] == targets.shape, (h.shape, targets.shape)
        packing = pack(targets != self._padding)
        if not packing.reaching:
            return self._of_nothing(targets)
        for lstm in self._lstms:
            lstm.pack(packing)
        outputs = self._layers.outputs(h.flatten(0, 1)[packing.places])
        factors = factors_of_places(self._task, targets, outputs.dtype).flatten()[packing.places]
        dy = class_gradient.gradient(outputs, targets.flatten()[packing.places], factors)
        losses, hits = scored_rows(self._task, outputs, targets, packing.places)
        self._layers.go_back(dy, alpha)
        return None, losses, hits

    def _of_nothing(self, targets: Tensor) -> Scored:
        """No place counts: the loss is 0, and so is its gradient."""
        if self.gradient is not self.params:
            self.gradient.zero_()
        nothing = self.params.new_zeros(len(targets))
        return None, nothing, None if self._task.correct is None else nothing
