"""What a run does otherwise, or slower, than might be expected, and why: said before the run, and where it begins."""

from __future__ import annotations

import logging

from raysim.engine.numerics import choose_device, has_bf16
from raysim.engine.plan import Plan

log = logging.getLogger("raysim")


def slow_precision(plan: Plan) -> str | None:
    """Why the precision that was asked for wins nothing here; None where nothing speaks against it."""
    engine = plan.experiment.engine
    device = choose_device(engine.gpus_per_worker)
    # A worker refuses a card without such products.
    if engine.precision == "bf16" and device.type == "cpu" and not has_bf16(device):
        return "bf16, which the processor here has no products for: slower than float32, and right"
    return None


def log_beginning(plan: Plan) -> None:
    """Log the form that trains the clients, with its reason; and warn of a precision that wins nothing.

    Called in the process where a run is asked for, and of whose processor it speaks: workers would all say the same.
    """
    log.info("clients are trained by the form %s: %s", plan.way.form, plan.way.why)
    if (slow := slow_precision(plan)) is not None:
        log.warning("engine.precision: %s", slow)
