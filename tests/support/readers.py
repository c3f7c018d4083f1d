"""Every reader of files that can come from elsewhere: what writes a good folder for it, and what reads all of it."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from optuna.trial import create_trial
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import nn

import raysim
import tuning
from raysim.data.prepare import prepare
from raysim.data.section import Data
from raysim.data.sources import array_pickle, glove, idx
from raysim.data.sources.published import Published
from raysim.engine.plan import initial_values
from raysim.engine.rounds import auto_trainer
from raysim.loggers.logger import store_id
from raysim.models.model import Model, Weights, create
from raysim.models.name_patterns import FreezesByName
from raysim.models.own_module import Own
from raysim.report import runs
from raysim.report.build import build, default_folder
from raysim.run_folder import (
    checkpoint,
    checkpoint_check,
    client_table,
    experiment_record,
    files,
    frozen,
    kept_checkpoints,
    round_table,
)
from raysim.run_folder.client_states import ClientStore
from raysim.run_folder.series_record import stored_sweep
from raysim.run_folder.timeline import Span, Timeline
from raysim.run_folder.writer import RunFolder
from raysim.server import manifest
from raysim.server.manifest import StatePlace
from raysim.server.state import ServerState
from raysim.storage import lock, sealed_parquet
from raysim.storage.remote.mirror import Mirror
from tests.support import language, sealed_json, tiny
from tests.support.archives import idx as packed_idx
from tests.support.run_folders import accuracies, experiment, write
from tests.support.tff_files import hdf5
from tuning import trials_file
from tuning.objective import Objective
from tuning.space import parse
from tuning.table import file as table_file
from tuning.table.record import ACCURACIES, LOSSES, PublishedTable, ScoredClients

SECTIONS: TypeAdapter[Any] = TypeAdapter(Data)
_LIKE = torch.arange(4.0)


class Reader(NamedTuple):
    """write: makes the folder's good files. read: reads them all. slow: needs packages that take seconds to import."""

    write: Callable[[Path], None]
    read: Callable[[Path], object]


def state(done: int) -> ServerState:
    """A server state after this many rounds, with something in every part."""
    clients = manifest.with_round(manifest.empty(), done, [[1, 2], [5]], [])
    parts = {part: {"v": torch.arange(4.0)} for part in checkpoint_check.PARTS if part != "clients"}
    weights = Weights(torch.arange(4.0), torch.ones(2), torch.zeros(1, dtype=torch.int64))
    return ServerState(done, weights, **parts, clients=clients)


def write_run(path: Path) -> None:
    """A run's folder with every kind of file that a run leaves."""
    rows = [{**row, "rejected_clients": [], "seconds/train": 0.5} for row in accuracies(0.3, 0.5, 0.6, 0.7)]
    scores = {f"c{number}": 0.1 * number for number in range(8)}
    write(path, rows, scores, rounds=4, checkpoint={"every": 2, "keep": 2})
    for done in (2, 4):
        checkpoint.write(state(done), files.checkpoint_file(path, done), "fingerprint")
    Timeline(path / "timeline.json").add(
        [Span("driver", "train", 1.0, 2.0), Span("worker 1", "chunk", 1.2, 1.9), Span("driver", "step", 2.0, 2.1)]
    )
    frozen.write(path, {"fixed": torch.arange(4.0)}, "fingerprint")
    store_id(path, "mlflow", "some id")
    (path / lock.FILE).write_text("")


def resume(path: Path) -> None:
    """Everything that a continued run reads, and what it changes before its first round."""
    with lock.locked(path):
        stored = experiment_record.stored_experiment(path)
        RunFolder.reopen(path, stored, profile=True)
        kept_checkpoints.named_states(path)
        client_table.read_clients(path)
        store_id(path, "wandb", "another")
    lock.check_free(path)


def replay(path: Path) -> None:
    """Everything that is read for a replay, an attached script, and a check of the folder."""
    round_table.read_rounds(path)
    client_table.read_clients(path)
    experiment_record.stored_data_fingerprint(path)
    frozen.read(path)
    for done, file in files.checkpoints(path).items():
        checkpoint.read(file, "fingerprint", done)
        checkpoint.read_part(file, "clients")


def _model() -> tuple[Model, Weights]:
    return create(FreezesByName(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ("0.*",)), 0, torch.float32)


def _write_initial(path: Path) -> None:
    model, weights = _model()
    save_file({**weights.to_named(model), **{n: v.clone() for n, v in model.constants.items()}}, path / "i.safetensors")


def _read_initial(path: Path) -> None:
    initial_values.read(Own(init=str(path / "i.safetensors")), *_model())


def _write_states(path: Path) -> None:
    with ClientStore(path, None, str).chunk(0, 0, (7, 1), {}, _LIKE) as states:
        for row in (0, 1):
            states.write(row, _LIKE)


def _read_states(path: Path) -> None:
    store = ClientStore(path, None, str)
    for row, position in enumerate((7, 1)):
        store.read(position, StatePlace(0, 0, row), _LIKE)


def _write_sweep(path: Path) -> None:
    path.mkdir(exist_ok=True)
    asked = {"experiment": experiment().said(), "values": {"cohort.size": [1, 2]}}
    sealed_json.write(path / "sweep.json", asked)
    experiment_record.write_experiment(path, experiment(), "")
    for size in (1, 2):
        write(path / f"cohort.size={size}", accuracies(0.1, 0.2), cohort={"size": size})
    sealed_parquet.write(pa.table({"round": [0]}), path / "sweep.parquet")


def _read_sweep(path: Path) -> None:
    stored_sweep(path)
    experiment_record.stored_fingerprint(path)
    runs.read_all([path])


def _write_mirrored(path: Path) -> None:
    there = path / "there" / "run"
    copy = Mirror.of(f"file://{there}")
    write_run(copy.path)
    copy.push()


def _read_mirrored(path: Path) -> None:
    copy = Mirror.of(f"file://{path / 'there' / 'run'}")
    copy.pull()
    copy.push()


def _write_cached(path: Path) -> None:
    x, y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 4
    clients = {f"c{number}": (x[5 * number :][:5], y[5 * number :][:5]) for number in range(4)}
    with raysim.data.DatasetWriter(
        path / "set",
        x=raysim.data.Field((3,), "float32"),
        y=raysim.data.Field((), "int64"),
        num_classes=4,
        batch_bytes=200,
    ) as writer:
        for split in ("train", "test"):
            for name, (rows, labels) in clients.items():
                writer.write(split, name, rows, labels)


def _read_cached(path: Path) -> None:
    dataset = raysim.FederatedDataset.open(path / "set")
    for split in dataset.splits.values():
        split.sizes()
        split.arrays()
        for position in range(len(split)):
            split.position_of(split.id_of(position))
            x, y = split.client(position)
            x.sum(), y.sum()


def _write_toml(path: Path) -> None:
    (path / "config.toml").write_text(
        'name = "x"\nrounds = 3\n[data]\nname = "digits"\nclients = 10\n[model]\nname = "mlp"\nhidden = [3, 4]\n'
        '[client.optimizer]\nname = "sgd"\nlr = 0.1\n[cohort]\nsize = 5\n[server.optimizer]\nname = "adam"\nlr = 0.1\n'
    )


def _write_idx(path: Path) -> None:
    (path / "images").write_bytes(packed_idx(np.arange(50, dtype=np.uint8).reshape(2, 5, 5)))
    (path / "labels.gz").write_bytes(gzip.compress(packed_idx(np.arange(9, dtype=np.uint8)), mtime=0))


def _read_idx(path: Path) -> None:
    for name, dimensions in (("images", 3), ("labels.gz", 1)):
        file = idx.IdxFile.find(path, Published(name, "nowhere"))
        assert file.array(dimensions).sum() >= 0


def _write_pickle(path: Path) -> None:
    import pickle

    batch = {b"data": np.arange(60, dtype=np.uint8).reshape(3, 20), b"labels": [1, 2, 3], b"names": ["a", "b"]}
    (path / "batch").write_bytes(pickle.dumps(batch, protocol=2))


def _read_pickle(path: Path) -> object:
    return array_pickle.loads(raysim_bytes(path / "batch"), "batch")


def raysim_bytes(path: Path) -> bytes:
    """The bytes as an archive's member would give them; [] of what is not a file."""
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else b""


def _write_tables(path: Path) -> None:
    table = pa.table(
        {"client": ["a", "a", "b"], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": pa.array([0, 1, 1], pa.int64())}
    )
    pq.write_table(table, path / "train.parquet")
    with pa.ipc.new_file(str(path / "test.arrow"), table.schema) as sink:
        sink.write_table(table)


def _leaf_json(path: Path, x: list[Any], y: list[Any]) -> None:
    users = ["a", "b"]
    content = {"users": users, "num_samples": [len(y)] * 2, "user_data": {user: {"x": x, "y": y} for user in users}}
    for side in ("train", "test"):
        (path / "data" / side).mkdir(parents=True)
        (path / "data" / side / "all.json").write_text(json.dumps(content))


def _emnist_hdf5(path: Path) -> None:
    columns = {"pixels": np.full((2, 28, 28), 128 / 255, np.float32), "label": np.array([3, 4], np.int32)}
    for side in ("train", "test"):
        hdf5(path / f"fed_emnist_{side}.h5", {"a": columns, "b": columns})


def _idx_unpacked(path: Path) -> None:
    tiny.write(path, "mnist")
    for file in list((path / "mnist").iterdir()):
        (path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    (path / "mnist").rmdir()


def _cifar_unpacked(path: Path) -> None:
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (path / name).write_bytes(bytes(10) + bytes(3073 * 4 - 10))


def _tiny(source: str) -> Callable[[Path], None]:
    """The source's files, in the folder itself."""

    def written(path: Path) -> None:
        tiny.write(path, source)
        (made,) = [each for each in path.iterdir() if each.is_dir()]
        for file in list(made.iterdir()):
            file.rename(path / file.name)
        made.rmdir()

    return written


def _prepared(path: Path, name: str, keys: Mapping[str, Any]) -> None:
    section = SECTIONS.validate_python({"name": name, "root": str(path), **keys})
    dataset = prepare(section, seed=0)
    for split in dataset.splits.values():
        for position in range(len(split)):
            split.client(position)


def _source(name: str, written: Callable[[Path], None], **keys: Any) -> Reader:
    return Reader(written, functools.partial(_prepared, name=name, keys=keys))


def _write_instructions(path: Path) -> None:
    language.write_lines(path / "train.jsonl")
    language.write_tokenizer(path / "tokenizer")


def _read_instructions(path: Path) -> None:
    _prepared(path, "instructions", {"tokenizer": str(path / "tokenizer"), "length": 8})


def _write_poem(path: Path) -> None:
    (path / "input.txt").write_text(_POEM)


def _write_vectors(path: Path) -> None:
    tiny.glove(path / "glove.txt", width=5)


_POEM = "HAMLET:\nTo be or not to be.\nThat is it.\n\nOPHELIA:\nMy lord.\nI know.\n\nHAMLET:\nWords.\n"


def _write_tuned(path: Path) -> None:
    rows: list[Mapping[str, Any]] = [
        {"round": index, "clients": 2, "loss": 0.5, "eval/validation/accuracy": 0.5, ACCURACIES: [0.25], LOSSES: [1.5]}
        for index in range(2)
    ]
    space = parse({"client.optimizer.lr": {"grid": [0.1, 1.0]}})
    told = experiment(rounds=2, evaluation={"split": "validation"})
    published = PublishedTable(told, space, (0,), "content", ScoredClients(("a",), (4,)), [[rows], [rows]])
    table_file.write(published, path / "table.parquet")


ON_TABLE = {
    "trials": 2,
    "final": 0,
    "space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}},
    "sampler": {"name": "random"},
    "budget": {"rounds": 4},
}


def _tune_on_table(path: Path) -> None:
    """`raysim tune --table` and `raysim tuners`, as the commands call them."""
    found = table_file.read(path / "table.parquet")
    told = experiment(rounds=2, evaluation={"split": "validation"}, tuning=ON_TABLE)
    # A table of another experiment, or of runs that diverged: the error is about these, and not about the file.
    with suppress(raysim.ExperimentError, tuning.StudyError):
        tuning.tune_on(told, found, path=path / "study")
        tuning.compare(told, found, ["random", "tpe"], 2)


def _write_pretrained(path: Path) -> None:
    _tiny("ag_news")(path)
    words = ("[PAD]", "<unk>", "</s>", "the", "oil", "price", "game")
    language.write_tokenizer(path / "tokenizer", words)
    (path / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "<unk>"})
    )
    (path / "tokenizer" / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]"}))


def _read_pretrained(path: Path) -> None:
    tokens = {"name": "pretrained", "path": str(path / "tokenizer"), "length": 8}
    _prepared(path, "ag_news", {"clients": 2, "tokens": tokens})


def _write_tried(path: Path) -> None:
    space = parse({"client.optimizer.lr": {"grid": [0.1, 1.0]}})
    facts = {"values": [0.5], "why": None, "spent": {"rounds": 2}}
    ended = create_trial(
        value=0.5,
        params={"client.optimizer.lr": 0.1},
        distributions=space.distributions(),
        user_attrs={"outcome": "finished", "facts": facts},
    )
    trials_file.write(path, [ended, ended], space, Objective(), "")


READERS: dict[str, Reader] = {
    "report": Reader(write_run, lambda path: [run.spans() for run in runs.read_all([path])[0]]),
    "resume": Reader(write_run, resume),
    "replay": Reader(write_run, replay),
    "client states": Reader(_write_states, _read_states),
    "sweep": Reader(_write_sweep, _read_sweep),
    "mirror": Reader(_write_mirrored, _read_mirrored),
    "cache": Reader(_write_cached, _read_cached),
    "config": Reader(_write_toml, lambda path: raysim.load(path / "config.toml")),
    "idx": Reader(_write_idx, _read_idx),
    "pickle": Reader(_write_pickle, _read_pickle),
    "newsgroups": _source("newsgroups", _tiny("newsgroups"), clients=2),
    "tables": _source("arrow", _write_tables, train="train.parquet", test="test.arrow"),
    "mnist": _source("mnist", _idx_unpacked, clients=2),
    "emnist idx": _source("emnist_idx", _tiny("emnist_idx"), clients=2, split="letters"),
    "cifar": _source("cifar10", _cifar_unpacked, clients=2),
    "emnist sqlite": _source("emnist", _tiny("emnist")),
    "emnist hdf5": _source("emnist", _emnist_hdf5),
    "emnist leaf": _source("emnist", lambda path: _leaf_json(path, [[128 / 255] * 784] * 2, [3, 4]), form="leaf"),
    "leaf": _source("leaf", lambda path: _leaf_json(path, [[0.5, 1.0], [2.0, 3.0]], [3, 4.0])),
    "shakespeare": _source("shakespeare", _tiny("shakespeare")),
    "shakespeare hdf5": _source("shakespeare", _tiny("shakespeare"), form="tff"),
    "shakespeare leaf": _source("shakespeare", lambda path: _leaf_json(path, ["abc", "bcd"], ["d", "e"]), form="leaf"),
    "tiny shakespeare": _source("shakespeare", _write_poem, form="tiny"),
    "stack overflow": _source("stackoverflow", _tiny("stackoverflow"), vocabulary=50),
    "ag news": _source("ag_news", _tiny("ag_news"), clients=2),
    "cifar100 hdf5": _source("fed_cifar100", _tiny("fed_cifar100")),
    "trials of a study": Reader(_write_tried, trials_file.read),
    "table of tuners": Reader(_write_tuned, lambda path: table_file.read(path / "table.parquet")),
    "word vectors": Reader(
        _write_vectors,
        lambda path: glove.read(str(path / "glove.txt"), ["oil", "the"], 5),
    ),
    "landmarks": _source("gld", _tiny("gld"), size=8),
    "initial values": Reader(_write_initial, _read_initial),
    "instructions": Reader(_write_instructions, _read_instructions),
    "study on a table": Reader(_write_tuned, _tune_on_table),
    "pretrained tokens": Reader(_write_pretrained, _read_pretrained),
    "trainer on a card": Reader(
        lambda path: auto_trainer.keep({"trainer": "fused", "chunk_size": 4}, path / "trainer.json"),
        lambda path: auto_trainer.cached_choice(path / "trainer.json"),
    ),
}
"""By name, in the order in which they are tried."""


def _write_trials(path: Path) -> None:
    experiment_record.write_experiment(path, experiment(trials={"count": 2}), "fingerprint")
    for number in range(2):
        write(path / f"trial-{number}", accuracies(0.1, 0.4), {"a": 0.5, "b": 0.25}, seed=number)
    pq.write_table(pa.table({"round": [0]}), path / "summary.parquet")


def _report(path: Path) -> None:
    """`raysim report`, as the command calls it."""
    build([path], default_folder([path]))


REPORTED: dict[str, Reader] = {
    "report of a run": Reader(write_run, _report),
    "report of trials": Reader(_write_trials, _report),
    "report of a sweep": Reader(_write_sweep, _report),
}
"""Folders of runs, and what makes a page of them."""
