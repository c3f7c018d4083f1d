"""Progress in a notebook: in a real kernel, and with a stand-in for one."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from raysim.report import progress
from raysim.report.notebook import NotebookBar
from raysim.report.progress import Terminal
from tests.support.clock import Clock

CELL = """
import numpy as np
import raysim, tuning

rng = np.random.default_rng(0)
clients = {i: (rng.normal(size=(8, 3)), rng.integers(0, 2, 8)) for i in range(4)}
data = raysim.FederatedDataset.from_clients(train=clients)
exp = raysim.Experiment.model_validate({"rounds": 3, "model": {"name": "linear"}, "cohort": {"size": 2}})
raysim.run(exp, dataset=data, executor="local")
"""


class Display:
    """What IPython's `display` gives back, and what was shown in it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def __call__(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        self.shown.append(content)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(content)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Display:
    """This process as a kernel."""
    display = Display()
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    shown: Any = types.ModuleType("IPython.display")
    shown.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return display


def test_a_kernel_shows_progress_unasked(kernel: Display) -> None:
    assert progress.place(None) == progress.place(True) == "notebook"
    assert progress.place(False) == "nowhere"
    show = Terminal.where_wanted(None, 1)
    assert show is not None
    with show:
        show.started(["this process"])
        show.row({"round": 0, "clients": 5, "loss": 1.0, "accuracy": 0.5})
    first, *_, last = kernel.shown
    assert first["text/plain"] == "starting ..."
    assert last["text/plain"].startswith("placement  this process\nround 1/1: loss 1   accuracy 50.0 %")
    assert '<progress max="1" value="1"' in last["text/html"]


def test_ipython_in_a_terminal_is_no_notebook(kernel: Display, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    assert progress.place(None) == "nowhere"
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert progress.place(True) == "lines"


def test_the_display_is_replaced_four_times_a_second_at_most_and_at_the_end(kernel: Display) -> None:
    clock = Clock()
    with Terminal(NotebookBar(), 100, clock) as show:
        for index in range(10):
            clock.now_s += 0.1
            show.row({"round": index, "clients": 5, "loss": 1.0})
    rounds = [content["text/plain"].partition(":")[0] for content in kernel.shown[1:]]
    assert rounds == ["round 1/100", "round 4/100", "round 7/100", "round 10/100"]


def test_what_workers_are_called_is_text(kernel: Display) -> None:
    with NotebookBar() as bar:
        bar.print_line("<b>worker</b>")
    assert "&lt;b&gt;worker" in kernel.shown[-1]["text/html"]


def test_a_real_kernel_shows_it_below_the_cell_and_nothing_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL), nbformat.v4.new_code_cell("data")])
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    progress, result = notebook.cells[0].outputs
    assert progress.data["text/plain"].startswith("placement  this process\nround 3/3: loss ")
    assert "<progress max=" in progress.data["text/html"]
    assert "\x1b" not in progress.data["text/plain"]
    assert "<table>" in result.data["text/html"]
    assert "clients 4, examples 32, sizes 8" in notebook.cells[1].outputs[0].data["text/plain"]
