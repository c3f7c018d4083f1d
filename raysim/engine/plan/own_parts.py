"""Names the parts of a script or a package that workers call, and tries them before the first round.

They are tried on vectors of the model's size.
"""

from __future__ import annotations

from typing import Any

from raysim.algorithm import transforming
from raysim.client.corrections import choice as corrections
from raysim.client.corrections import correction_check as own_corrections
from raysim.client.objective import OBJECTIVES
from raysim.client.optimizers import choice as client_optimizers
from raysim.client.optimizers import step_check as own_client_optimizers
from raysim.client.transform import TRANSFORMS
from raysim.config.own_part import OwnPart
from raysim.config.part import Choice
from raysim.config.section import Section
from raysim.data.pooled import PooledSplit
from raysim.data.split import Split
from raysim.data.subset import Subset
from raysim.engine.plan.plan import Plan
from raysim.evaluation.metric import METRICS
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Distilbert
from raysim.server.weighting import WEIGHTINGS

OF_TRANSFORMERS = (CausalLm, Distilbert)
"""Models whose modules are the package's."""


def check(plan: Plan) -> None:
    """Refuse a part whose functions break the rules of its record.

    Raises:
        ExperimentError: a function returned an invalid value; the error names part, function, result and expectation.
    """
    client, params, layout = plan.experiment.client, plan.initial.params, plan.model.params
    together = plan.choice.together
    if client.correction is not None and not corrections.CORRECTIONS.is_built_in(client.correction):
        title = corrections.CORRECTIONS.title(client.correction)
        correction = corrections.make(client.correction)
        own_corrections.check(correction, title, params, layout, together, client.is_plain_sgd)
    if not client_optimizers.OPTIMIZERS.is_built_in(client.optimizer):
        title = client_optimizers.OPTIMIZERS.title(client.optimizer)
        own_client_optimizers.check_step(client_optimizers.make(client.optimizer), title, params, layout, together)
    for section in client.transform:
        if not TRANSFORMS.is_built_in(section):
            transforming.check(TRANSFORMS.make(section), TRANSFORMS.title(section), params, layout)


def titles(plan: Plan) -> tuple[str, ...]:
    """Return the names in messages of the parts of a script or a package that workers call.

    A dataset is one if the script wrote a split's code; with raysim's own splits it only holds numbers.
    """
    e = plan.experiment
    chosen: tuple[tuple[Choice[Any], object], ...] = (
        (OBJECTIVES, e.client.objective),
        (corrections.CORRECTIONS, e.client.correction),
        (client_optimizers.OPTIMIZERS, e.client.optimizer),
        *((TRANSFORMS, section) for section in e.client.transform),
        (WEIGHTINGS, e.server.weighting),
        *((METRICS, section) for section in e.evaluation.metrics),
    )
    own = [
        choice.title(section)
        for choice, section in chosen
        if isinstance(section, Section | OwnPart) and not choice.is_built_in(section)
    ]
    passed = [f"{name}=" for name in ("model", "loss") if name in plan.passed.names]
    codes = {type(_inside(split)).__module__ for split in plan.dataset.splits.values()}
    data = ["dataset="] if any(not code.startswith("raysim.") for code in codes) else []
    model = [f"the model {e.model.name!r}"] if isinstance(e.model, OF_TRANSFORMERS) else []
    return tuple(dict.fromkeys([*data, *model, *passed, *own]))


def _inside(split: Split) -> Split:
    """Return the split whose examples this one has: raysim's views of it only choose or join clients."""
    while isinstance(split, Subset | PooledSplit):
        split = split.whole if isinstance(split, Subset) else split.split
    return split
