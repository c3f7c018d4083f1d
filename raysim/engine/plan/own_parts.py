"""Tries the parts that a script or a package brings, before the first round, on vectors of the model's size."""

from __future__ import annotations

from raysim.algorithm import transforming
from raysim.client.corrections import make as corrections
from raysim.client.corrections import own as own_corrections
from raysim.client.optimizers import choice as client_optimizers
from raysim.client.optimizers import own as own_client_optimizers
from raysim.client.transform import TRANSFORMS
from raysim.engine.plan.plan import Plan


def check(plan: Plan) -> None:
    """Refuse a part whose functions do not keep to what its record says.

    Raises:
        ExperimentError: names the part, the function, what it returned and what it has to return.
    """
    client, params, layout = plan.experiment.client, plan.initial.params, plan.model.params
    together = plan.choice.together
    if client.correction is not None and not corrections.CORRECTIONS.is_built_in(client.correction):
        said = corrections.CORRECTIONS.said(client.correction)
        correction = corrections.make(client.correction)
        own_corrections.check(correction, said, params, layout, together, client.is_plain_sgd)
    if not client_optimizers.OPTIMIZERS.is_built_in(client.optimizer):
        said = client_optimizers.OPTIMIZERS.said(client.optimizer)
        own_client_optimizers.check_step(client_optimizers.make(client.optimizer), said, params, layout, together)
    for section in client.transform:
        if not TRANSFORMS.is_built_in(section):
            transforming.check(TRANSFORMS.make(section), TRANSFORMS.said(section), params, layout)
