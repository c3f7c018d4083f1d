"""Tries the parts of a script or a package on vectors of the model's size, before the first round."""

from __future__ import annotations

from raysim.algorithm import transforming
from raysim.client.corrections import choice as corrections
from raysim.client.corrections import correction_check as own_corrections
from raysim.client.optimizers import choice as client_optimizers
from raysim.client.optimizers import step_check as own_client_optimizers
from raysim.client.transform import TRANSFORMS
from raysim.engine.plan.plan import Plan


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
