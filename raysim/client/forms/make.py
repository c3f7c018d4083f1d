"""The form that a way of training names, ready to work on one device."""

from __future__ import annotations

import torch

from raysim.client import sgd
from raysim.client.form import Form
from raysim.client.forms.choose import Precision, Way
from raysim.client.forms.fused import Fused
from raysim.client.forms.one_by_one import OneByOne
from raysim.client.forms.recognise import Recognised, recognise
from raysim.client.forms.stacked import Stacked
from raysim.client.forms.vmap import Vmap
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights
from raysim.models.task import Task


def make(way: Way, model: Model, like: Weights, task: Task, section: ClientSection, precision: Precision) -> Form:
    """Make it once per worker; its buffers have the lengths, dtype and device of `like`."""
    optimizer = sgd.make(section.optimizer)
    products = torch.bfloat16 if precision == "bf16" else like.params.dtype
    if way.form == "one_by_one":
        return OneByOne(model, like, task, section, optimizer, products)
    if way.form == "vmap":
        return Vmap(model, like, task, section, optimizer, products)
    with torch.random.fork_rng(devices=[]):
        layers = recognise(model.factory())
    assert isinstance(layers, Recognised), layers
    if way.form == "fused":
        return Fused(layers, model, like, task, section, optimizer, products)
    return Stacked(layers, model, task, section, optimizer, products)
