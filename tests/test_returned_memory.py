"""What a part returns counts by its numbers: not by the memory, the sign or the history in which torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim.config import part
from raysim.server import ServerOptimizer, Stepped
from tests.support.executors import bits

Make = Callable[..., raysim.Experiment]
Form = Callable[[Tensor], Tensor]


def opposite(v: Tensor) -> Tensor:
    """A view whose sign torch has yet to change."""
    return torch._neg_view(-v.detach())


def every_other(v: Tensor) -> Tensor:
    return torch.stack([v, 7 * v + 1], -1)[..., 0]


def one_buffer() -> Form:
    """Returns the same memory whenever it is called with a vector of that shape."""
    buffers: dict[Any, Tensor] = {}

    def filled(v: Tensor) -> Tensor:
        buffer = buffers.setdefault((v.shape, v.dtype), torch.empty_like(v))
        return buffer.copy_(v.detach())

    return filled


FORMS: dict[str, Callable[[], Form]] = {
    "opposite": lambda: opposite,
    "strided": lambda: every_other,
    "parameter": lambda: lambda v: torch.nn.Parameter(v.clone()),
    "inference": lambda: torch.inference_mode()(torch.clone),
    "buffer": one_buffer,
}


def transform(form: Form) -> Any:
    return lambda section: raysim.Transform(
        lambda at: raysim.Transformed(at.delta * 0.5 + at.state, form(at.delta * 0.25)), keeps_state=True
    )


def sending(form: Form) -> Any:
    return lambda section: raysim.Transform(lambda at: form(at.delta * 0.5))


def correction(form: Form) -> Any:
    other = one_buffer() if form.__name__ == "filled" else form
    half = raysim.ClientHalf(
        offset=lambda start: form(0.1 * start.state), after=lambda end: other(0.9 * end.state - end.delta)
    )
    return lambda section: raysim.Correction(half)


def upload(form: Form) -> Any:
    return lambda section: raysim.Correction(raysim.ClientHalf(upload=lambda end: form(end.delta * 0.5)))


def settling(form: Form) -> Any:
    def settle(stepped: Any) -> raysim.ServerResult:
        return raysim.ServerResult(stepped.params, {"c": form(stepped.state["c"] + 0.3 * stepped.g)})

    server = raysim.ServerHalf(init=lambda params: {"c": torch.zeros_like(params)}, settle=settle)
    client = raysim.ClientHalf(offset=lambda start: -0.1 * start.received["c"])
    return lambda section: raysim.Correction(client, server, raysim.Exchange(down=lambda state, mean: state))


def server_optimizer(form: Form) -> Any:
    def step(params: Tensor, descent: Any, state: Any) -> Stepped:
        m = 0.5 * state["m"] + descent.g
        return Stepped(form(params - descent.lr * m), {"m": m})

    return lambda section: ServerOptimizer(lambda params: {"m": form(torch.zeros_like(params))}, step)


def aggregator(form: Form) -> Any:
    return raysim.Coordinatewise(lambda updates, weights: form(updates.median(0).values))


def sums(form: Form) -> Any:
    return {"size": raysim.Metric(lambda outputs, y: form(outputs.double().abs().sum((0,))), lambda s: float(s[0]))}


PARTS = {
    "transform": [transform, sending],
    "correction": [correction, upload, settling],
    "server_optimizer": [server_optimizer],
    "aggregator": [aggregator],
    "metrics": [sums],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("keyword", "make"), [(keyword, make) for keyword, makes in PARTS.items() for make in makes])
def test_the_numbers_count_alone(
    keyword: str, make: Callable[[Form], Any], form: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(engine={"workers": 0, "chunk_size": 3})
    if (make, form) == (server_optimizer, "buffer"):
        # The step would write to the state that it was given.
        form = "strided"
    expected = raysim.rounds(exp, dataset=dataset, **{keyword: make(torch.clone)})
    got = raysim.rounds(exp, dataset=dataset, **{keyword: make(FORMS[form]())})
    assert [bits(each) for each in got] == [bits(each) for each in expected]


def counting() -> Form:
    """Returns another multiple whenever it is called, in the same memory."""
    calls, filled = [0], one_buffer()

    def counted(v: Tensor) -> Tensor:
        calls[0] += 1
        return filled(v * calls[0])

    return counted


@pytest.mark.parametrize(("keyword", "make"), [("transform", sending), ("correction", upload)])
def test_what_counts_its_calls_does_not_hide_it_in_one_memory(
    keyword: str, make: Callable[[Form], Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match="returned something else when it was called again"):
        raysim.rounds(experiment(), dataset=dataset, **{keyword: make(counting())})


class Theirs(raysim.Section):
    """A server optimizer of a package."""

    name: Literal["theirs"] = "theirs"
    lr: float = 1.0


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda v: v.double(), r"the server_optimizer 'theirs': step must .* 'params' came back as torch\.float64"),
        (lambda v: v.to("meta"), r"'params' came back as .* on meta"),
        (lambda v: v.to_sparse(), r"'params' came back as .*sparse_coo"),
        (lambda v: v.sin_(), r"the server_optimizer 'theirs': step must leave its arguments as they are"),
    ],
)
def test_a_package_s_server_optimizer_is_tried_as_a_script_s_is(
    form: Form, said: str, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(section: Theirs) -> ServerOptimizer:
        return ServerOptimizer(lambda params: {}, lambda params, descent, state: Stepped(form(params), {}))

    installed = part.Installed(raysim.Part("server_optimizer", "theirs", Theirs, make), "package")
    monkeypatch.setattr(part, "load_installed", lambda: ((installed,), ()))
    exp = experiment(server={"optimizer": {"name": "theirs"}})
    with pytest.raises(raysim.ExperimentError, match=said):
        raysim.rounds(exp, dataset=dataset)


@pytest.mark.parametrize("form", [lambda v: v.to("meta"), lambda v: v.to_sparse()])
def test_a_server_s_first_state_can_be_written_to_a_file(
    form: Form, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    made = ServerOptimizer(lambda params: {"m": form(params)}, lambda params, descent, state: Stepped(params, state))
    with pytest.raises(raysim.ExperimentError, match=r"server_optimizer=: init must .* dense and on the CPU, but 'm'"):
        raysim.rounds(experiment(), dataset=dataset, server_optimizer=lambda section: made)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


WHERE_FORMS_ARE_ASKED: dict[str, Callable[[Form], dict[str, Any]]] = {
    "figure": lambda form: {"metrics": {"m": lambda outputs, y: form(outputs[:, 0])}},
    "sums": lambda form: {"metrics": {"m": raysim.Metric(lambda outputs, y: form(outputs.sum(0)), lambda s: 0.0)}},
    "loss": lambda form: {"loss": lambda outputs, y: form(cross_entropy(outputs, y))},
    "objective": lambda form: {"objective": lambda module, x, y, at: form(cross_entropy(module(x), y))},
    "transform": lambda form: {"transform": sending(form)},
    "upload": lambda form: {"correction": upload(form)},
    "sampler": lambda form: {
        "sampler": lambda section: raysim.Sampler(
            lambda at: {"v": form(torch.ones(3))}, lambda state, at: np.arange(at.size)
        )
    },
}


@pytest.mark.parametrize("part", WHERE_FORMS_ARE_ASKED)
@pytest.mark.parametrize("form", [lambda v: v.to("meta"), lambda v: torch.nested.nested_tensor([v])])
def test_a_tensor_without_values_or_shape_is_one_clear_error(
    part: str, form: Form, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.RaysimError):
        raysim.rounds(experiment(), dataset=dataset, **WHERE_FORMS_ARE_ASKED[part](form))
