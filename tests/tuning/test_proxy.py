"""A study's configurations on other data: the same ones, what they are worth there, and what the choice loses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from raysim.storage import sealed_parquet
from tests.support.small_data import make_clients
from tests.support.tiny_study import EXPERIMENT
from tuning.proxy import study as proxy_study
from tuning.table import compare

Make = Callable[..., raysim.Experiment]

SPACE = {
    "client.optimizer.lr": {"log": [1e-3, 30]},
    "server.optimizer": {"choices": [{"name": "sgd", "lr": 1.0}, {"name": "adam", "lr": 0.05}]},
    "client.batch_size": {"choices": [4, "full"]},
}


def journal(folder: Path, name: str) -> str:
    return f"journal:{folder / name}.log"


@pytest.fixture
def other() -> raysim.FederatedDataset:
    """Other clients, whose labels follow another rule."""
    return raysim.FederatedDataset.from_clients(train=make_clients([6 + i for i in range(12)], seed=7))


@pytest.fixture
def studied(tuned: Make, small: raysim.FederatedDataset, tmp_path: Path) -> tuning.Study:
    """Five trials, of keys with numbers, with tables, and with both numbers and words."""
    exp = tuned(space=SPACE, trials=5, sampler={"name": "random"}, objective={"name": "loss"}, final=0)
    return tuning.tune(exp, dataset=small, path=tmp_path / "study", storage=journal(tmp_path, "study"))


def test_the_same_configurations_on_other_data(
    studied: tuning.Study, tuned: Make, other: raysim.FederatedDataset, tmp_path: Path
) -> None:
    here = tuned(objective={"name": "accuracy"}, pruner={"name": "median"}, budget={"rounds": 1}, trials=1)
    found = tuning.proxy(
        studied.path, here, path=tmp_path / "here", dataset=other, storage=journal(tmp_path, "here")
    )  # fmt: skip
    rows = sorted(studied.trials.to_pylist(), key=lambda row: row["value"])
    assert [(one.number, one.value) for one in found.tried] == [(row["trial"], row["value"]) for row in rows]
    assert found.tried[0].values == studied.best.values
    divided = other.hold_out(0.2, 0)
    for one, value in zip(found.tried, found.here, strict=True):
        alone = here.changed({**one.values, "evaluation.split": "validation", "tuning": None})
        *_, last = raysim.rounds(alone, dataset=divided, executor="local")
        assert value == last.metrics["eval/validation/accuracy"]
    values = [value or 0.0 for value in found.here]
    assert found.regret == pytest.approx(max(values) - values[0])
    assert values[found.best] == max(values)
    # A small loss and a large accuracy are both good.
    expected = spearmanr([-one.value for one in found.tried], values).statistic
    assert found.correlation == pytest.approx(expected)
    assert dict(tuning.proxy_lines(found))["rank correlation"] == f"{expected:.2f} (Spearman)"
    assert "written" not in dict(tuning.proxy_lines(found))
    written = tuning.write_proxy(found)
    assert dict(tuning.proxy_lines(found))["written"] == str(tmp_path / "here" / "proxy.png")
    shown = found._repr_html_()
    assert re.findall(r"<th [^>]*>(.*?)</th>", shown) == [label for label, _ in tuning.proxy_lines(found)]
    assert shown.count('src="data:image/png;base64,') == len(list((tmp_path / "here").glob("*.png"))) > 0
    assert str(found).splitlines()[0].split(maxsplit=1) == ["proxy", f"{studied.path}, by validation loss"]
    assert "pyarrow" not in repr(found)
    assert repr(found).startswith(f"ProxyStudy(proxy={studied.path!r}, correlation=")
    assert [path.name for path in written] == [f"proxy.{kind}" for kind in ("csv", "png", "svg", "pdf")]
    assert all(path.stat().st_size for path in written)
    assert tuning.write_proxy(found) == written, "its own files"


def test_values_that_only_rounding_parts_have_one_rank() -> None:
    # Means over seeds of the same hits, in other orders, may differ in the last bit.
    values = [0.85 - 0.8, 0.75 - 0.7, 0.3, -math.inf]
    assert len(set(values)) == 4
    assert proxy_study._correlation(values, [2.0, 2.0, 3.0, 1.0]) == pytest.approx(1.0)
    assert proxy_study._correlation(values[:2], [1.0, 2.0]) is None
    regrets = np.array([[[value]] for value in values[:2]])
    assert compare._table(("a", "b"), np.ones(1), regrets, largest=1.0)["rank"].to_pylist() == [1.5, 1.5]


def test_the_best_on_the_same_data(
    studied: tuning.Study, tuned: Make, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = tuned(objective={"name": "loss"})
    found = tuning.proxy(studied.path, exp, top=3, path=tmp_path / "same", dataset=small)
    assert list(found.here) == [one.value for one in found.tried] == sorted(studied.trials["value"].to_pylist())[:3]
    assert found.correlation == pytest.approx(1.0)
    assert (found.best, found.regret) == (0, 0.0)
    with pytest.raises(tuning.StudyError, match="5 finished trials, of which 1 would be tried"):
        tuning.proxy(studied.path, exp, top=1, path=tmp_path / "one", dataset=small)


def test_a_folder_of_no_study_is_named(tuned: Make, tmp_path: Path) -> None:
    with pytest.raises(tuning.StudyError, match=r"trials\.parquet"):
        tuning.proxy(tmp_path, tuned())
    pq.write_table(pa.table({"trial": [0], "value": [0.5]}), tmp_path / "trials.parquet")
    with pytest.raises(tuning.StudyError, match=r"trials\.parquet is damaged, or .* it has no checksum"):
        tuning.proxy(tmp_path, tuned())
    sealed_parquet.write(pa.table({"trial": [0], "value": [0.5]}), tmp_path / "trials.parquet")
    with pytest.raises(tuning.StudyError, match=r"trials\.parquet is damaged: expected the trials of a study"):
        tuning.proxy(tmp_path, tuned())


def test_a_bit_that_changed_in_a_studys_table_is_noticed(
    studied: tuning.Study, tuned: Make, small: raysim.FederatedDataset
) -> None:
    file = studied.path / "trials.parquet"
    content = file.read_bytes()
    for place in range(0, len(content), 199):
        file.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        with pytest.raises(tuning.StudyError, match=r"trials\.parquet is damaged"):
            tuning.proxy(studied.path, tuned(), dataset=small)


@pytest.mark.parametrize(
    ("configurations", "said"),
    [
        ([{"client.optimizer.lr": 0.5}], r"configurations\[0\]: client.optimizer.lr must be one of tuning.space"),
        ([{"client.optimizer.lr": 0.1}, {}], r"configurations\[1\]: a configuration has a value of each key"),
    ],
)
def test_a_listed_configuration_is_one_of_the_space(configurations: list[Any], said: str, tuned: Make) -> None:
    keys = tuned(sampler={"name": "listed", "configurations": configurations})
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.section_of(keys)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(EXPERIMENT)
    call = CliRunner().invoke
    assert call(app, ["tune", "tiny.toml", "--set", "tuning.final=0", "--no-progress"]).exit_code == 0
    told = call(app, ["proxy", "runs/tiny-tuning", "tiny.toml", "--set", "data.seed=9", "--no-progress", "--json"])
    assert told.exit_code == 0, told.stderr
    found = json.loads(told.stdout)
    assert len(found["here"]) == 2
    assert (
        Path("runs/tiny-proxy/proxy.csv").read_text().splitlines()[0] == '"trial","client.optimizer.lr","proxy","here"'
    )
