"""What an experiment says of the choice of a form."""

from __future__ import annotations

from raysim.client.forms.choose import Circumstances
from raysim.client.forms.make import rule_for
from raysim.experiment import Experiment


def circumstances(experiment: Experiment, device_kind: str) -> Circumstances:
    """Those of the experiment, on a kind of device."""
    engine, client = experiment.engine, experiment.client
    return Circumstances(
        form=engine.form,
        chunk_size=engine.chunk_size,
        precision=engine.precision,
        dtype=engine.dtype,
        threads=engine.threads,
        device_kind=device_kind,
        batch_size=client.batch_size,
        plain=rule_for(client, sums_gradients=False, product_makes_step=True).plain,
    )
