"""A process that has other code of a script's parts than the script is refused: it imports modules anew."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

import raysim
from raysim.engine.on_ray.cluster import data_on_nodes
from raysim.engine.on_ray.cluster.data_on_nodes import SentDataset, SentPlan, receive_plan
from raysim.engine.on_ray.driver.driver import Driver
from raysim.engine.plan import sent_code
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve

Make = Callable[..., raysim.Experiment]

NAME = "parts_of_a_script"

SOURCE = """
import torch
from torch.nn import functional

import logging
from types import SimpleNamespace

log = logging.getLogger("parts")
scale, calls = 1.0, 0
kind, order, home = "none", (1, "none", None), "/home/of/this/machine"
device = "cpu"
table, options = {"factor": 2}, SimpleNamespace(power=1)
factors, folders = [1.0, 2.0], ["/home/of/this/machine"]

def counted():
    global calls
    calls += 1

def loss(outputs, targets):
    counted()
    assert len(home) > 3 and device
    return functional.cross_entropy(outputs, targets, reduction=kind) * scale + 0 * (calls > 0) * order[0]

class Net(torch.nn.Module):
    gain, made = 1.0, 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.last = torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.gain * self.last(x.flatten(1).tanh())

def weighting(facts):
    log.debug("weighs")
    return facts.examples * 2 * table["factor"] ** options.power * factors[0] * len(folders)

def accurate(outputs, targets):
    return (outputs.argmax(-1) == targets).float()

def transform(section):
    return raysim.Transform(lambda at: at.delta * 0.5)

import raysim
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    invalidate_caches()
    yield import_module(NAME)
    del sys.modules[NAME]


def elsewhere(plan: Plan, source: str, folder: Path) -> Plan:
    """Return the plan as a process has it that begins when the script's module has this source."""
    sent = cloudpickle.dumps(replace(sent_code.with_code(plan), dataset=None))  # type: ignore[arg-type]
    (folder / f"{NAME}.py").write_text(source)
    invalidate_caches()
    module = sys.modules.pop(NAME)
    try:
        received: Plan = cloudpickle.loads(sent)
        import_module(NAME)
        sent_code.check(received)
        return received
    finally:
        sys.modules[NAME] = module


def planned(experiment: Make, dataset: raysim.FederatedDataset, **parts: Any) -> Plan:
    return resolve(experiment(model=None) if "model" in parts else experiment(), dataset=dataset, **parts)


CHANGES: dict[str, tuple[str, str, str]] = {
    "a number": ("loss", "scale, calls = 1.0", "scale, calls = 2.0"),
    "a text": ("loss", 'kind, order, home = "none"', 'kind, order, home = "sum"'),
    "a tuple": ("loss", '(1, "none", None)', '(1, "none", 2)'),
    "loss": ("loss", "* scale +", "* scale * 2 +"),
    "what a loss calls": ("loss", "calls += 1", "calls += 2"),
    "model": ("model", "flatten(1).tanh()", "flatten(1).relu()"),
    "a number of a class": ("model", "gain, made = 1.0, 0", "gain, made = 2.0, 0"),
    "weighting": ("weighting", "examples * 2", "examples * 3"),
    "a number of a table": ("weighting", '{"factor": 2}', '{"factor": 3}'),
    "a number of a list": ("weighting", "factors, folders = [1.0, 2.0]", "factors, folders = [1.5, 2.0]"),
    "a number of a namespace": ("weighting", "power=1", "power=2"),
    "metrics": ("metrics", "targets).float()", "targets).double()"),
    "transform": ("transform", "delta * 0.5", "delta * 0.25"),
}


def part(script: Any, keyword: str) -> Any:
    return {"model": lambda: script.Net(), "metrics": {"accurate": script.accurate}}.get(keyword) or vars(script)[
        keyword
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_a_process_with_other_code_is_refused(
    change: str,
    script: Any,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyword, old, new = CHANGES[change]
    plan = planned(experiment, dataset, **{keyword: part(script, keyword)})
    # An object of Python's own, which a script may set otherwise than a worker.
    monkeypatch.setattr(script, "log", logging.Logger("script", logging.ERROR))
    elsewhere(plan, SOURCE, tmp_path)
    # What functions of the module set, and what may be a path.
    alike = SOURCE.replace("calls = 1.0, 0", "calls = 1.0, 7").replace("/home/of/this/machine", "/home/of/another")
    alike = alike.replace('device = "cpu"', 'device = "cuda:0"')
    elsewhere(plan, "# A comment.\n" + alike, tmp_path)
    assert old in SOURCE
    with pytest.raises(raysim.ExperimentError, match=f"{keyword}= is not the same .* start the script again"):
        elsewhere(plan, SOURCE.replace(old, new), tmp_path)


def test_a_variable_that_a_script_sets_in_a_module_is_said(
    script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    script.scale = 3.0
    with pytest.raises(raysim.ExperimentError, match=r"loss has scale = 3\.0 in the script and 1\.0 there"):
        elsewhere(planned(experiment, dataset, loss=script.loss), SOURCE, tmp_path)


def test_a_list_that_a_script_sets_in_a_module_is_said(
    script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    script.factors[0] = 1.9
    with pytest.raises(raysim.ExperimentError, match=r"weighting has another factors\[:\] there"):
        elsewhere(planned(experiment, dataset, weighting=script.weighting), SOURCE, tmp_path)


@pytest.mark.parametrize("change", ["factors.append(3.0)", "factors[0] = 2.0", "del factors[0]", "factors.sort()"])
def test_a_list_that_the_module_changes_itself_is_not_compared(
    change: str, script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    changing = f"{SOURCE}\ndef counts():\n    {change}\n"
    (tmp_path / f"{NAME}.py").write_text(changing)
    exec(f"def counts():\n    {change}", vars(script))
    script.factors[:] = [1.9]
    elsewhere(planned(experiment, dataset, weighting=script.weighting), changing, tmp_path)


def test_a_text_is_not_printed(script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    plan = planned(experiment, dataset, loss=script.loss)
    with pytest.raises(raysim.ExperimentError, match="loss has another kind there") as caught:
        elsewhere(plan, SOURCE.replace('home = "none"', 'home = "secret"'), tmp_path)
    assert "secret" not in str(caught.value)


def test_what_is_not_imported_travels_with_its_numbers(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, script: Any
) -> None:
    names: dict[str, Any] = {"__name__": "cell", "factor": 2.0}
    exec("def weighting(facts):\n    return facts.examples * factor", names)
    elsewhere(planned(experiment, dataset, weighting=names["weighting"]), SOURCE, tmp_path)


def test_an_imported_module_is_followed(
    script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """What a function of the script itself reads as an attribute of a module."""
    names: dict[str, Any] = {"__name__": "cell", NAME: script}
    exec(f"def weighting(facts):\n    return {NAME}.weighting(facts) * {NAME}.scale", names)
    plan = planned(experiment, dataset, weighting=names["weighting"])
    elsewhere(plan, SOURCE, tmp_path)
    with pytest.raises(raysim.ExperimentError, match="has other code there"):
        elsewhere(plan, SOURCE.replace("examples * 2", "examples * 3"), tmp_path)
    script.scale = 3.0
    with pytest.raises(raysim.ExperimentError, match=rf"{NAME}\.scale = 3\.0 in the script and 1\.0 there"):
        elsewhere(plan, SOURCE, tmp_path)


def test_code_that_pytest_has_rewritten_is_not_compared(
    script: Any, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    vars(script)["@pytest_ar"] = None
    plan = planned(experiment, dataset, weighting=script.weighting)
    elsewhere(plan, SOURCE.replace("examples * 2", "examples * 3"), tmp_path)


def test_code_without_asserts_is_not_compared(
    script: Any,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = sent_code.with_code(planned(experiment, dataset, weighting=script.weighting))
    code = {"weighting": {name: one._replace(digest="1:") for name, one in plan.code["weighting"].items()}}
    sent_code.check(replace(plan, code=code))


def test_driver_and_workers_compare(
    script: Any,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = sent_code.with_code(planned(experiment, dataset, weighting=script.weighting))
    code = {"weighting": {name: one._replace(digest="0:") for name, one in plan.code["weighting"].items()}}
    plan, data = replace(plan, code=code), SentDataset(None, (), "", None, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(data_on_nodes, "receive", lambda data: dataset)
    with pytest.raises(raysim.ExperimentError, match="has other code there"):
        receive_plan(SentPlan(plan, data))
    with pytest.raises(raysim.ExperimentError, match="has other code there"):
        Driver(SentPlan(plan, data), None, None, None).start()  # type: ignore[arg-type]
