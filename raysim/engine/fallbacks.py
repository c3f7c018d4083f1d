"""What a run does otherwise, or slower, than might be expected, and why: said before the run, and where it begins."""

from __future__ import annotations

import logging

from raysim.engine.numerics import choose_device, has_bf16
from raysim.engine.plan import Plan

log = logging.getLogger("raysim")


def slow_precision(plan: Plan) -> str | None:
    """Why the precision that was asked for wins nothing here; None where nothing speaks against it."""
    engine = plan.experiment.engine
    if engine.precision == "bf16" and not has_bf16(choose_device(engine.gpus_per_worker)):
        return "bf16, which this processor has no products for: slower than float32, and right"
    return None


def log_once(plan: Plan) -> None:
    """Log the form that trains the clients, with its reason; and warn of a precision that wins nothing.

    Called in the process where a run is asked for: workers would all say the same, and the driver may have no card.
    """
    log.info("clients are trained by the form %s: %s", plan.way.form, plan.way.why)
    if (slow := slow_precision(plan)) is not None:
        log.warning("engine.precision: %s", slow)
