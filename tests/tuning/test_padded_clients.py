"""A study of texts: its clients weigh what they weigh in the recorded figure, which is a mean over places."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from torch import Tensor, nn

import raysim
import tuning
from raysim.data import DatasetWriter, Field
from raysim.run_folder.files import client_file
from tuning.table.record import view_of

PLACES, CLASSES, CLIENTS = 8, 6, 6

Experiment = Callable[[str], raysim.Experiment]
Data = tuple[raysim.FederatedDataset, bool]


class Bigrams(nn.Module):
    """The next token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.table(x)
        return scores


def texts(rng: np.random.Generator, count: int, client: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Short texts of one token, or long ones of several: clients whose places count differ, and so do their figures."""
    x, y = np.zeros((2, count, PLACES), np.int64)
    for row in range(count):
        length = int(rng.integers(1, 3) if client % 2 else rng.integers(5, PLACES + 1))
        tokens = np.full(length + 1, 3) if client % 2 else rng.integers(1, CLASSES, size=length + 1)
        x[row, :length], y[row, :length] = tokens[:-1], tokens[1:]
    return x, y


@pytest.fixture(params=[False, True], ids=["texts_alike", "places_alike"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    rng, by_place = np.random.default_rng(0), bool(request.param)
    shape, y = (PLACES,), Field((PLACES,), "int64", padding=0, by_place=by_place)
    with DatasetWriter(tmp_path / "texts", x=Field(shape, "int64"), y=y, num_classes=CLASSES) as writer:
        for client in range(8):
            writer.write("train", f"{client}", *texts(rng, 6, client))
        for client in range(CLIENTS):
            writer.write("validation", f"v{client}", *texts(rng, 5 + client, client))
        # No place of it counts: it has no accuracy.
        writer.write("validation", "empty", *np.zeros((2, 3, PLACES), np.int64))
    return raysim.FederatedDataset.open(tmp_path / "texts"), by_place


@pytest.fixture
def exp() -> Experiment:
    def make(figure: str) -> raysim.Experiment:
        return raysim.Experiment.model_validate(
            {
                "name": "texts",
                "rounds": 2,
                "cohort": {"size": 4},
                "client": {"optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 3},
                "evaluation": {"every": 1},
                "tuning": {
                    "objective": {"name": figure},
                    "space": {"client.optimizer.lr": {"grid": [0.5, 3.0]}},
                    "seeds": 1,
                    "final": 0,
                },
            }
        )

    return make


def weights(data: Data, figure: str) -> dict[str, float]:
    """What each validation client weighs in the recorded figure."""
    dataset, by_place = data
    split = dataset.validation
    assert split is not None
    labels = {split.id_of(position): np.asarray(split.client(position)[1]) for position in range(len(split))}
    is_of_places = by_place or figure == "accuracy"
    return {name: float((y != 0).sum()) if is_of_places else len(y) for name, y in labels.items()}


@pytest.mark.parametrize("figure", ["accuracy", "loss"])
def test_the_error_over_clients_is_that_of_the_recorded_figure(
    data: Data, exp: Experiment, figure: str, tmp_path: Path
) -> None:
    study = tuning.tune(exp(figure), dataset=data[0], model=Bigrams, executor="local", path=tmp_path / "study")
    of = weights(data, figure)
    for trial in study.trials.to_pylist():
        run = tmp_path / "study" / "trials" / f"{trial['trial']:04d}" / "seed-0"
        rows = [row for row in pq.read_table(client_file(run, 1)).to_pylist() if of[row["client"]]]
        sizes = np.array([of[row["client"]] for row in rows])
        sums = sizes * [row[figure] for row in rows]
        ratio, count = sums.sum() / sizes.sum(), len(rows)
        assert trial["value"] == pytest.approx(ratio)
        error = math.sqrt(count / (count - 1) * ((sums - ratio * sizes) ** 2).sum()) / sizes.sum()
        assert trial["standard_error/clients"] == pytest.approx(error)
    # Samples of all clients are compared with the study's own values.
    assert len(study.regret)
    assert all(math.isfinite(each.mean) for each in study.regret)


@pytest.mark.parametrize("figure", ["accuracy", "loss"])
def test_a_table_s_clients_weigh_as_those_that_training_evaluates(
    data: Data, exp: Experiment, figure: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.parquet"
    tuning.make_table(exp(figure), file, folder=tmp_path / "grid", dataset=data[0], model=Bigrams, executor="local")
    table, some = tuning.read_table(file), exp(figure).changed({"evaluation.clients": 4})
    trained = tuning.tune(some, dataset=data[0], model=Bigrams, executor="local", path=tmp_path / "trained")
    read = tuning.tune_on(some, table, path=tmp_path / "read")
    for name in ("value", "standard_error/clients"):
        ours, theirs = ([row[name] for row in study.trials.to_pylist()] for study in (read, trained))
        assert ours == pytest.approx(theirs, rel=1e-5)
    for regret, of_training in zip(read.regret, trained.regret, strict=True):
        assert vars(regret) == pytest.approx(vars(of_training), abs=1e-5)
    whole = view_of(table, len(table.clients.names))
    for seen, recorded in zip(whole.rows[0][0], table.rows[0][0], strict=True):
        assert seen[f"eval/validation/{figure}"] == pytest.approx(recorded[f"eval/validation/{figure}"], rel=1e-5)
