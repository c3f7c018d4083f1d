"""Finds what is worth a remark in the first examples: in the data, in the module's outputs, and in the loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from raysim.config.repetition import is_close
from raysim.data.dataset import FederatedDataset
from raysim.engine.plan import first_module
from raysim.engine.plan.first_examples import MOST, load, load_several, outputs
from raysim.engine.plan.plan import Plan
from raysim.errors import within
from raysim.models.model import bind

FAR = 100.0
"""Size of numbers at which models that are drawn as torch draws them learn little, or diverge."""

LOOKED_AT = 8
"""Clients whose values are looked at before the first round, and where none has an update."""


def are_shares(outputs: Tensor) -> bool:
    """Return whether outputs are shares that sum to 1, as after a softmax."""
    sums = outputs.double().sum(-1)
    is_share = outputs.shape[-1] > 1 and bool((outputs >= 0).all())
    return is_share and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)


def mixes_examples(plan: Plan, x: Tensor, together: Tensor) -> bool:
    """Return whether outputs depend on their batch: on the other examples, on those before them, or on their number.

    A recurrent layer that takes the batch for the sequence sees for each example those before it alone.
    """
    for rows in _other_batches(len(x)):
        again = outputs(plan.model, plan.initial, x[rows])
        if again is not None and not is_close(together[rows[: len(x)]], again[: len(x)], first_module.RELATIVE):
            return True
    return False


def _other_batches(number: int) -> tuple[Tensor, Tensor]:
    """Return two batches of the rows of one, by their numbers: copies of the first row, and all rows turned round.

    Both have a row more. A batch of one would tell the same as the copies, but BatchNorm without running statistics
    refuses it.
    """
    others = torch.arange(number).flip(0)
    return torch.zeros(number + 1, dtype=torch.int64), torch.cat([others, others[:1]])


def flaw_of_loss(plan: Plan) -> str | None:
    """Return what depends on the batch in the loss of the first examples, as a predicate of it; see above."""
    x, y = load_several(plan.experiment, plan.dataset, plan.initial, MOST)
    together = outputs(plan.model, plan.initial, x)
    if together is None:
        return None
    copied, turned = _other_batches(len(y))
    try:
        losses = plan.task.losses_of(together, y)
    except Exception:
        # `first_examples.check` raises it.
        return None
    try:
        copies = plan.task.losses_of(together[copied], y[copied])
    except Exception as error:
        if len(y) > 1 and _losses(plan, together, y, turned) is None:
            return (
                f"fails on a batch of {len(copied)} examples ({within(error)}), but not on one of {len(y)}: the run "
                f"ends at the first batch of a size that it does not take"
            )
        return (
            f"fails on a batch of {len(copied)} equal examples ({within(error)}): the run ends at the first batch "
            f"whose examples are all equal"
        )
    others = _losses(plan, together, y, turned)
    pairs = [(copied, copies), *([] if others is None else [(turned, others)])]
    if all(is_close(losses[rows[: len(y)]], again[: len(y)], first_module.RELATIVE) for rows, again in pairs):
        return None
    return (
        "of an example depends on the others of its batch, or on how many they are, so scores depend on "
        "evaluation.batch_size, and on the clients that share a batch: if that is not meant, look for a mean over the "
        "batch, for a division by its size, and for outputs (batch, 1) beside targets (batch,), which torch extends to "
        "(batch, batch)"
    )


def _losses(plan: Plan, outputs: Tensor, y: Tensor, rows: Tensor) -> Tensor | None:
    """Return the losses of these rows of outputs; None if the loss fails on them."""
    try:
        return plan.task.losses_of(outputs[rows], y[rows])
    except Exception:
        return None


def not_finite(dataset: FederatedDataset, positions: Iterable[int], dtype: torch.dtype) -> list[str]:
    """Return which of these training clients have values that are not finite in the model's dtype, by their ids."""
    ids = []
    for position in positions:
        x, y = (torch.from_numpy(np.array(values)) for values in dataset.train.client(position))
        if not all((each.to(dtype) if each.is_floating_point() else each).isfinite().all() for each in (x, y)):
            ids.append(dataset.train.id_of(position))
    return ids


def far_from_one(dataset: FederatedDataset, positions: Iterable[int]) -> float | None:
    """Return the largest finite size of a number in the x of these training clients; None if it is at most `FAR`."""
    if not np.issubdtype(np.dtype(dataset.x.dtype), np.floating):
        return None
    largest = 0.0
    for position in positions:
        x = dataset.train.client(position)[0]
        ends = (reduce(x, where=np.isfinite(x), initial=0.0) for reduce in (np.min, np.max))
        largest = max(largest, *(abs(float(end) * dataset.x.scale + dataset.x.offset) for end in ends))
    return largest if largest > FAR else None


def vanishing(dataset: FederatedDataset, positions: Iterable[int], dtype: torch.dtype) -> dict[str, float]:
    """Return, for x and y, the largest size of numbers in places of an example where all are 0 in the model's dtype.

    Only of places where these training clients have another number than 0; none if there is no such place. Numbers are
    looked at times their field's scale, which may be what makes them 0.
    """
    found = dict[str, float]()
    clients = [dataset.train.client(position) for position in positions]
    for place, field in enumerate((dataset.x, dataset.y)):
        if not (np.issubdtype(np.dtype(field.dtype), np.floating) or field.scale != 1) or not clients:
            continue
        sizes = np.abs(np.concatenate([client[place] for client in clients]))
        largest = np.where(np.isfinite(sizes), sizes, 0).max(axis=0).astype(np.float64)
        scaled = torch.from_numpy(np.atleast_1d(largest)).to(dtype).mul_(field.scale)
        as_models = scaled.double().numpy().reshape(largest.shape)
        if lost := float(np.where(as_models == 0, largest, 0.0).max()):
            found["xy"[place]] = lost
    return found


def labels_as_floats(dataset: FederatedDataset, positions: Iterable[int]) -> str | None:
    """Return the dtype of targets of a regression that are like labels at these training clients: 0, 1, 2, ..."""
    if dataset.num_classes is not None or dataset.y.shape:
        return None
    values = np.unique(np.concatenate([dataset.train.client(position)[1] for position in positions]))
    is_like_labels = len(values) > 1 and values.min() >= 0 and (values == np.floor(values)).all()
    return dataset.y.dtype if is_like_labels else None


def begins_finite(plan: Plan, position: int) -> bool:
    """Return whether the first model has a finite loss of a training client's first examples."""
    x, y = load(plan.experiment, plan.dataset, plan.initial, position)
    with torch.no_grad():
        losses = plan.task.losses(bind(plan.model, plan.initial.clone(), x.device).eval()(x), y)
    return bool(losses.isfinite().all())
