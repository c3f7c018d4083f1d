"""Runs the cases of scripts/same-numbers on the tree that PYTHONPATH names, and writes what they leave.

    python runner.py TREE FOLDER [--local] [--only SUBSTRING]

It uses public names only, so that it runs on old trees and new ones. A case's folder gets params.npz, a Parquet file
for each table, and error.json where it raised; or only lacks.json, where the tree takes no such keyword as it passes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cases import Case, cases, datasets, experiment

import raysim


class Left(NamedTuple):
    """What a case leaves: arrays and tables by name."""

    arrays: dict[str, Any]
    tables: dict[str, pa.Table]


def main() -> None:
    """Run the chosen cases, numbered in their order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not Path(raysim.__file__).resolve().is_relative_to(options.tree.resolve()):
        sys.exit(f"raysim must be that of {options.tree}, but is {raysim.__file__}")
    chosen = {name: c for name, c in cases().items() if options.only in name and not (c.on_ray and options.local)}
    if any(case.on_ray for case in chosen.values()):
        import ray

        # One session for all of them: raysim uses the Ray that it finds.
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    for number, (name, case) in enumerate(chosen.items()):
        folder = options.folder / str(number)
        folder.mkdir(parents=True)
        (folder / "name").write_text(name)
        since_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            write(folder, case, Path(scratch))
        print(f"{time.perf_counter() - since_s:6.2f} s  {name}", flush=True)


def write(folder: Path, case: Case, scratch: Path) -> None:
    """Carry a case out, and write what it leaves or raises; or what the tree lacks for it."""
    if lacks := sorted(case.own.keys() - inspect.signature(raysim.rounds).parameters.keys()):
        (folder / "lacks.json").write_text(json.dumps(lacks))
        return
    try:
        left = carried_out(case, scratch)
    except Exception as error:
        (folder / "error.json").write_text(json.dumps({"class": type(error).__name__, "text": str(error)}))
        return
    np.savez(folder / "params.npz", **left.arrays)
    for name, table in left.tables.items():
        pq.write_table(table, folder / f"{name}.parquet")


def carried_out(case: Case, scratch: Path) -> Left:
    """What the case leaves."""
    exp = experiment(case)
    how: dict[str, Any] = {**case.own, "executor": "ray" if case.on_ray else "local"}
    if case.data is not None:
        how["dataset"] = raysim.FederatedDataset.from_clients(**datasets(case.data))
    path = scratch / "run"
    match case.kind:
        case "rounds":
            return of_rounds(raysim.rounds(exp, **how))
        case "run":
            return of_results([raysim.run(exp, path=path, **how)])
        case "centralized":
            return of_results([raysim.run(raysim.centralized(exp), path=path, **how)])
        case "resume":
            raysim.run(exp.changed(["rounds=2"]), path=path, **how)
            result = raysim.resume(path, rounds=exp.rounds, **how)
            return joined(of_results([result]), of_replay(path, how))
        case "left":
            steps = raysim.rounds(exp, path=path, **how)
            seen = [next(steps) for _ in range(2)]
            steps.close()  # type: ignore[attr-defined]
            return joined(of_rounds(iter(seen)), of_results([raysim.resume(path, **how)], "resumed"))
        case "trials":
            trials = raysim.run_trials(exp, path=path, **how)
            return joined(of_results(trials.trials), Left({}, {"summary": trials.summary}))
        case "sweep":
            sweep = raysim.run_sweep(exp, case.more, path=path, **how)
            return Left({}, {"rounds": sweep.rounds, "clients": sweep.clients})
        case "runs":
            return of_runs(exp, case.more, scratch, how)
        case "tune":
            from tuning import tune

            study = tune(exp, path=path, progress=False, **how, **case.more)
            best = study.best
            found = {"values": json.dumps(best.values), "value": best.value, "test": json.dumps(best.test)}
            return Left({}, {"trials": study.trials.drop_columns("seconds"), "best": pa.Table.from_pylist([found])})


def of_rounds(steps: Iterator[raysim.Round]) -> Left:
    """Every round's model, its figures and its clients."""
    arrays, rows, tables = {}, [], []
    for step in steps:
        arrays |= {f"round {step.index}: {name}": value.numpy() for name, value in step.params.items()}
        rows.append(
            {"round": step.index, **step.metrics, "cohort": list(step.cohort), "rejected_ids": list(step.rejected)}
        )
        if step.clients is not None:
            tables.append(step.clients)
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    evaluated = {"clients": pa.concat_tables(tables, promote_options="permissive")} if tables else {}
    return Left(arrays, {"rounds": table, **evaluated})


def of_results(results: Sequence[raysim.Result], word: str = "run") -> Left:
    """The last model and the records of each run."""
    arrays: dict[str, Any] = {}
    tables = {}
    for number, result in enumerate(results):
        arrays |= {f"{word} {number}: {name}": value.numpy() for name, value in result.params.items()}
        tables |= {f"rounds of {word} {number}": result.rounds, f"clients of {word} {number}": result.clients}
    return Left(arrays, tables)


def of_replay(path: Path, how: Mapping[str, Any]) -> Left:
    """The second round once more, and the update of its first client."""
    again = {key: value for key, value in how.items() if key != "executor"}
    step = raysim.replay(path, 1, **again)
    assert isinstance(step, raysim.Round)
    sent = raysim.replay(path, 1, client=step.cohort[0], **again)
    assert isinstance(sent, raysim.ClientUpdate)
    arrays = {f"replayed: {name}": value.numpy() for name, value in step.params.items()}
    return Left({**arrays, **{f"update: {name}": value.numpy() for name, value in (sent.update or {}).items()}}, {})


def of_runs(exp: raysim.Experiment, differences: Sequence[Any], scratch: Path, how: Mapping[str, Any]) -> Left:
    """Several runs on one set of workers."""
    paths = [scratch / str(number) for number in range(len(differences))]
    with raysim.Runs(exp, **how) as runs:
        runs.start([(exp.changed(each), path) for each, path in zip(differences, paths, strict=True)])
        for report in runs.reports():
            if report.error is not None:
                raise report.error
    # A run that is whole is only read.
    return of_results([raysim.resume(path, **how) for path in paths])


def joined(one: Left, other: Left) -> Left:
    """Both; names differ."""
    return Left({**one.arrays, **other.arrays}, {**one.tables, **other.tables})


if __name__ == "__main__":
    main()
