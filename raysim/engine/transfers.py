"""What simulated clients would transfer in a round."""

from __future__ import annotations

from raysim.engine.plan import Plan


def transfers(plan: Plan, traffic: tuple[int, int], cohort_size: int, senders: int | None = None) -> dict[str, float]:
    """Bytes that the simulated clients of a round would transfer; `senders` of them stay to the end, by default all.

    `traffic` is the algorithm's: vectors of the model's size beside the model, down and up.
    """
    model, item_bytes = plan.model, plan.initial.params.element_size()
    vector_bytes = model.params.num_values * item_bytes
    model_bytes = vector_bytes + model.buffers.num_values * item_bytes + model.counters.num_values * 8
    down, up = traffic
    senders = cohort_size if senders is None else senders
    return {
        "bytes_down": cohort_size * (model_bytes + down * vector_bytes),
        "bytes_up": senders * (model_bytes + up * vector_bytes),
    }
