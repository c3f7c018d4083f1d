"""Every command that prints a result prints it in JSON too, and nothing beside it on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import typer

from raysim.cli import app
from tests.support.command import Raysim


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for own, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name}{own} ")
        else:
            yield f"{name}{own}", command


def test_every_command_has_it() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {"run", "resume", "attach", "data inspect", "evaluate"} <= found.keys()
    assert [name for name, each in found.items() if not any("--json" in option.opts for option in each.params)] == []


def test_results_are_documents(raysim: Raysim) -> None:
    def of(*words: str) -> Any:
        assert raysim(*words, "--json") == 0, raysim.err
        return json.loads(raysim.out)

    watched = ["--set", "stop.budget.rounds=1", "--set", "checkpoint.best=eval/test/loss"]
    ran = of("run", "tiny.toml", *watched)
    assert (ran["experiment"], ran["rounds"], ran["of"], ran["folder"]) == ("tiny", 1, 2, "runs/tiny")
    assert ran["stopped"]["condition"] == "budget.rounds"
    scores = of("evaluate", "runs/tiny", "--best")
    assert scores["metrics"]["eval/test/loss"] == ran["newest"]["eval/test/loss"]
    assert of("export", "runs/tiny", "--best")["file"] == "runs/tiny/best.safetensors"
    adapted = ["--set", "model.lora.targets=['fc']", "--set", "name=adapted", "--set", "rounds=1"]
    of("run", "tiny.toml", *adapted)
    assert of("export", "runs/adapted", "--adapter") == {"file": "runs/adapted/adapter", "rounds": 1}
    assert of("resume", "runs/tiny")["stopped"] == ran["stopped"]
    assert of("replay", "runs/tiny", "--round", "0")["differs"] == []
    assert of("check", "tiny.toml")["experiment"]["rounds"] == 2
    assert of("keys", "client.optimizer.lr")[0]["meaning"] == "Learning rate of the first round."
    assert any(each["name"] == "fedavg/mnist_2nn" for each in of("configs"))
    assert of("init", "mine") == {"written": ["mine.toml", "mine.py"]}
    assert of("data", "inspect", "tiny.toml")["classes"] == 10
    swept = of("run", "tiny.toml", "--sweep", "server.optimizer.lr=0.5,1.0", "--path", "swept", *watched)
    assert [point["values"]["server.optimizer.lr"] for point in swept["points"]] == [0.5, 1.0]
    assert {reason["condition"] for point in swept["points"] for reason in point["stopped"]} == {"budget.rounds"}
    (table,) = of("compare", "swept", "--metric", "loss")
    assert table["metric"] == "loss"
