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


def keeping(form: Form) -> Any:
    return lambda section: raysim.Transform(lambda at: raysim.Transformed(at.delta, form(at.delta)), keeps_state=True)


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


def client_half(name: str) -> Callable[[Form], dict[str, Any]]:
    """A correction one function of whose client's half returns the form of its argument's model."""
    others: dict[str, Any] = {} if name != "init" else {"after": lambda end: end.state}

    def given(form: Form) -> dict[str, Any]:
        def function(at: Any) -> Tensor:
            return form(at if name == "init" else at.state if name == "after" else at.params)

        functions: dict[str, Any] = {name: function, **others}
        half = raysim.ClientHalf(**functions)
        return {"correction": lambda section: raysim.Correction(half)}

    return given


def server_half(where: str) -> Callable[[Form], dict[str, Any]]:
    """A correction whose server makes one thing in the form: `init`, `down`, or the settled `params` or `state`."""

    def given(form: Form) -> dict[str, Any]:
        def at(place: str, v: Tensor) -> Tensor:
            return form(v) if place == where else v

        def settle(stepped: Any) -> raysim.ServerResult:
            return raysim.ServerResult(at("params", stepped.params), {"c": at("state", stepped.state["c"])})

        server = raysim.ServerHalf(init=lambda params: {"c": at("init", params)}, settle=settle)
        exchange = raysim.Exchange(down=lambda state, mean: {"c": at("down", state["c"])})
        return {"correction": lambda section: raysim.Correction(raysim.ClientHalf(), server, exchange)}

    return given


def server_step(where: str) -> Callable[[Form], dict[str, Any]]:
    def given(form: Form) -> dict[str, Any]:
        def at(place: str, v: Tensor) -> Tensor:
            return form(v) if place == where else v

        made = ServerOptimizer(
            lambda params: {"m": at("init", params)},
            lambda params, descent, state: Stepped(at("params", params), {"m": at("state", state["m"])}),
        )
        return {"server_optimizer": lambda section: made}

    return given


def sampler(where: str) -> Callable[[Form], dict[str, Any]]:
    def given(form: Form) -> dict[str, Any]:
        def at(place: str) -> dict[str, Tensor]:
            return {"v": form(torch.ones(3)) if place == where else torch.ones(3)}

        made = raysim.Sampler(
            lambda round_: at("init"), lambda state, round_: np.arange(round_.size), lambda state, who: at("learn")
        )
        return {"sampler": lambda section: made}

    return given


def client_optimizer(form: Form) -> dict[str, Any]:
    def step(params: Tensor, gradient: Tensor, state: Any, lr: float | Tensor) -> None:
        params.sub_(lr * gradient)

    return {"client_optimizer": lambda section: raysim.ClientOptimizer(lambda params: {"m": form(params)}, step)}


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


WHERE_FORMS_ARE_ASKED: dict[str, tuple[str, Callable[[Form], dict[str, Any]]]] = {
    "figure": ("m", lambda form: {"metrics": {"m": lambda outputs, y: form(outputs[:, 0])}}),
    "sums": (
        "m",
        lambda form: {"metrics": {"m": raysim.Metric(lambda outputs, y: form(outputs.sum(0)), lambda s: 0.0)}},
    ),
    "loss": ("loss", lambda form: {"loss": lambda outputs, y: form(cross_entropy(outputs, y))}),
    "objective": ("objective=", lambda form: {"objective": lambda module, x, y, at: form(cross_entropy(module(x), y))}),
    "delta": ("transform=", lambda form: {"transform": sending(form)}),
    "state of a transform": ("transform=", lambda form: {"transform": keeping(form)}),
    "client's init": ("ClientHalf.init", client_half("init")),
    "offset": ("ClientHalf.offset", client_half("offset")),
    "begin": ("ClientHalf.begin", client_half("begin")),
    "upload": ("ClientHalf.upload", client_half("upload")),
    "after": ("ClientHalf.after", client_half("after")),
    "server's init": ("ServerHalf.init", server_half("init")),
    "down": ("Exchange.down", server_half("down")),
    "settled model": ("ServerHalf.settle", server_half("params")),
    "settled state": ("ServerHalf.settle", server_half("state")),
    "optimizer's init": ("server_optimizer=", server_step("init")),
    "stepped model": ("server_optimizer=", server_step("params")),
    "stepped state": ("server_optimizer=", server_step("state")),
    "sampler's init": ("sampler=", sampler("init")),
    "learn": ("sampler=", sampler("learn")),
    "client's optimizer": ("client_optimizer=", client_optimizer),
    "weighting": ("weighting=", lambda form: {"weighting": lambda facts: form(torch.ones(()))}),
}


@pytest.mark.parametrize("part", WHERE_FORMS_ARE_ASKED)
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda v: v.to("meta"), "(returned|got|is|came back as) .*on meta"),
        (lambda v: torch.nested.nested_tensor([v]), "(returned|got|is|came back as) .*a nested tensor"),
    ],
)
def test_a_tensor_without_values_or_shape_is_one_clear_error(
    part: str, form: Form, said: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    who, parts = WHERE_FORMS_ARE_ASKED[part]
    keys: dict[str, Any] = {"optimizer": {"name": "own"}} if part == "client's optimizer" else {}
    with pytest.raises(raysim.RaysimError, match=f"(?s){who}.*{said}") as refused:
        raysim.rounds(experiment(client=keys), dataset=dataset, **parts(form))
    assert "Traceback" not in str(refused.value)
