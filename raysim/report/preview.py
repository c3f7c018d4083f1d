"""Previews an experiment as text, for `raysim check`. It trains nothing and does not start Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.operations import operations
from raysim.client.corrections import choice as corrections
from raysim.client.optimizers import choice as optimizers
from raysim.config.counted import counted
from raysim.config.section import Section
from raysim.data.dataset import Split
from raysim.data.describe import median
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.engine.plan.resolve import precision_remark
from raysim.engine.rounds.selection import Selection, select, transfers
from raysim.experiment import metric_columns
from raysim.experiment.experiment import EngineSection, Experiment
from raysim.experiment.leaving import leaving
from raysim.report import number_formats
from raysim.server.lr_scaling import LrScaling
from raysim.server.section import ServerSection
from raysim.server.secure_sum import SecureSum

if TYPE_CHECKING:
    from raysim.engine.rounds.calibrate import Timing

SIZED_CLIENTS = 100_000
"""For larger splits the preview reads the sizes of this number of clients, at even distances."""


def text(plan: Plan, path: Path) -> str:
    """Return the preview of a resolved run that would write to `path`."""
    lines = [*_data(plan), *_model(plan), *_round(plan), *_schedule(plan), *_engine(plan), *_folder(plan, path)]
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, str]]) -> str:
    """Return labels in a column, with their texts beside them."""
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in lines)


def _data(plan: Plan) -> Iterator[tuple[str, str]]:
    dataset = plan.dataset
    section = plan.experiment.data
    task = "regression" if dataset.num_classes is None else f"{dataset.num_classes} classes"
    yield "data", f"{section.name if section else 'from the script'}: x {dataset.x}, y {dataset.y}, {task}"
    for name, split in dataset.splits.items():
        yield f"  {name}", _clients(split)


def _clients(split: Split) -> str:
    positions = np.linspace(0, len(split) - 1, min(len(split), SIZED_CLIENTS)).astype(np.int64)
    sizes = split.sizes(positions)
    about = "about " if len(positions) < len(split) else ""
    examples = round(float(sizes.mean()) * len(split))
    each = f"{sizes.min():,} to {sizes.max():,} each (median {median(sizes)})"
    return f"{counted(len(split), 'client')}, {about}{counted(examples, 'example')}, {about}{each}"


def _model(plan: Plan) -> Iterator[tuple[str, str]]:
    section = plan.experiment.model
    params = plan.model.params
    weights = f"{counted(params.num_values, 'parameter')} in {counted(len(params.names), 'tensor')}"
    yield "model", f"{section.name if section else 'from the script'}: {weights}, {plan.experiment.engine.dtype}"


def _round(plan: Plan) -> Iterator[tuple[str, str]]:
    cohorts, algorithm = plan.cohorts(), plan.algorithm()
    # The first round represents all: most later cohorts have the same size, and clients of the same population.
    selected = select(plan, algorithm, cohorts.first(), 0, cohorts.rule.asks)
    yield from _cohort(plan, selected)
    yield from _chunks(plan, selected)
    yield from _of_clients(plan.experiment)
    yield from _of_server(plan.experiment)
    yield from _beside_training(plan)
    yield from _operations(plan, algorithm)
    yield "transfer", _transfer(plan, algorithm, selected)


def _cohort(plan: Plan, selected: Selection) -> Iterator[tuple[str, str]]:
    systems, population = plan.experiment.systems, counted(len(plan.dataset.train), "client")
    growth = plan.experiment.cohort.growth
    grows = "" if growth is None else f", times {growth.factor:g} every {counted(growth.every, 'round')}"
    yield "cohort", f"{selected.num_asked:,} of {population}, {plan.experiment.cohort.sampler.name}{grows}"
    if systems is not None:
        yield "devices", _choice(systems.time)
        takes = number_formats.duration(selected.metrics["simulated_time_s"] or 0.0)
        yield "reports", f"{len(selected.positions):,} count in the first round, which takes {takes} of simulated time"


def _chunks(plan: Plan, selected: Selection) -> Iterator[tuple[str, str]]:
    """Yield how the first round's clients are trained."""
    steps = plan.work(selected.positions, 0).steps.tolist()
    chunks, _ = plan.chunks(selected.positions, 0)
    least, most = min(steps, default=0), max(steps, default=0)
    spread = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    yield "local steps", f"{spread} a client, {sum(steps):,} in the first round"
    yield "trainer", f"{plan.choice.trainer}: {plan.choice.why}"
    most_clients = counted(max(map(len, chunks), default=0), "client")
    yield "chunks", f"{len(chunks):,} a round, of up to {most_clients}, so at most {len(chunks):,} workers have work"


def _of_clients(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the choices of local training."""
    client, fedex = experiment.client, experiment.fedex
    yield (
        "client step",
        _choice(client.optimizer)
        + ("" if client.lr_decay == 1 else f", the rate times {client.lr_decay:g} after every round"),
    )
    for change in client.schedule:
        changed = _written(change.model_dump(exclude={"round"}))
        yield "", f"from round {change.round:,} on: {changed}"
    if fedex is not None:
        yield "FedEx", f"{len(experiment.configurations)} configurations, by clients' errors on {fedex.split}"
    yield from _chosen(
        {
            "augmentation": client.augment,
            "objective": client.objective,
            "correction": client.correction,
            "personal models": client.personalisation,
            "posterior": client.posterior,
        }
    )
    yield from (("transform", _choice(each)) for each in client.transform)
    if experiment.composite is not None:
        yield "composite", _keys(experiment.composite)


def _of_server(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the choices of the server, and of what changes the messages to it and from it."""
    server = experiment.server
    yield "server step", f"{_choice(server.optimizer)}, weighted by {_weighting(server.weighting)}"
    if server.lr_scaling != LrScaling():
        yield "server rate", _keys(server.lr_scaling)
    yield from _chosen(
        {
            "server schedule": server.lr_schedule,
            "aggregator": server.aggregator if server.aggregator.name != "mean" else None,
            "fairness": server.fairness,
            "updates sent": experiment.client.compression,
            "models sent": server.compression,
            "privacy": server.privacy,
        }
    )
    if server.secure_sum is not None:
        yield "secure sum", _secure_sum(server.secure_sum, server)
    for label, section in (("clipping", server.clip), ("zeroing", server.zeroing), ("FedGLAD", server.glad)):
        if section is not None:
            yield label, _keys(section)
    yield from _chosen({"adversary": experiment.adversary})


def _secure_sum(section: SecureSum, server: ServerSection) -> str:
    """Return what the fixed-point numbers of a secure sum mean: their steps, and the sums that they can hold."""
    summed = "examples times update" if server.weighs_examples else "updates"
    step, most = 2.0**-section.fraction_bits, 2.0 ** (section.bits - 1 - section.fraction_bits)
    return (
        f"{section.bits} bits a number, in steps of {step:.3g}; a cohort's sum of {summed} wraps around outside "
        f"-{most:,.6g} to {most:,.6g}"
    )


def _beside_training(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a round costs beside its training."""
    if plan.keeps_updates:
        kept = number_formats.size(plan.kept_bytes)
        yield "kept updates", f"{kept} a round, in shards in the object store: {_why_kept(plan)} looks at every update"
    if (probe := plan.experiment.server.diagnostics.probe) is not None:
        yield "probe", f"all {counted(len(plan.dataset.train), 'client')}, every {counted(probe, 'round')}"


def _transfer(plan: Plan, algorithm: Algorithm, selected: Selection) -> str:
    costs = transfers(plan, algorithm.traffic, selected.num_asked, len(selected.positions))
    down, up = costs["bytes_down"], costs["bytes_up"]
    both = f"{number_formats.size(down)} down and {number_formats.size(up)} up"
    cohort = plan.experiment.cohort
    if cohort.growth is not None or cohort.rule.sized_by is not None:
        return f"{both} in the first round, were clients real; the size of cohorts changes"
    total = number_formats.size((down + up) * plan.experiment.rounds)
    which, about = ("in the first round", "about ") if _transfers_vary(plan.experiment) else ("a round", "")
    most = " at most, as it may end earlier" if _may_end_earlier(plan.experiment) else ""
    return f"{both} {which}; {about}{total} in all{most}, were clients real"


def _transfers_vary(experiment: Experiment) -> bool:
    """Whether a round of as many clients may have another number of those that get the model, or send an update."""
    rule = experiment.cohort.rule
    return rule.varies or rule.repeats or bool(leaving(experiment.client, experiment.systems))


def _may_end_earlier(experiment: Experiment) -> bool:
    privacy = experiment.server.privacy
    return experiment.stop is not None or (privacy is not None and privacy.epsilon is not None)


def _operations(plan: Plan, algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Yield a round's costs in the letters of Varno et al. (2022), tables 3 to 5; docs/algorithms.md explains them."""
    client, params = plan.experiment.training, plan.initial.params
    correction = corrections.make(client.correcting)
    optimizer = optimizers.make(client.optimizer)
    found = operations(correction, optimizer, client.is_plain_sgd, plan.model.params, params)
    if client.personalisation is None:
        yield "computes", f"a client {found.of_client}, the server {found.of_server} a round"
    of_server = sum(vector.numel() == params.numel() for vector in correction.server.init(params).values())
    kept = [_models(count) for count in (algorithm.state_vectors, of_server)]
    yield "stores", f"a client {kept[0]}, the server {kept[1]} beside the model"
    traffic, whole = algorithm.traffic, plan.model.params.num_values
    share = "" if not traffic.unsent else f", of which {whole - traffic.unsent:,} of {whole:,} numbers are sent"
    down, up = (_models(1 + count) for count in (traffic.down, traffic.up))
    yield "sends", f"{down} to a client, {up} back{share}"
    yield "", "n numbers of the model, K local steps, |P| clients; g gradient, s sum, m product, o other operation"


def _models(count: int) -> str:
    return "n" if count == 1 else f"{count} n" if count else "nothing"


def _why_kept(plan: Plan) -> str:
    rule = plan.experiment.server.rule
    return f"the {plan.experiment.cohort.sampler.name} sampler" if rule is None else rule.name


def _weighting(chosen: Section | str) -> str:
    return chosen if isinstance(chosen, str) else _choice(chosen)


def _chosen(sections: Mapping[str, Section | None]) -> Iterator[tuple[str, str]]:
    """Yield the choices that were made, each with its label."""
    for label, section in sections.items():
        if section is not None:
            yield label, _choice(section)


def _choice(section: Section) -> str:
    """Return a choice and its keys: "sgd (lr = 0.1)"."""
    name, keys = dict(section)["name"], _keys(section)
    return f"{name} ({keys})" if keys else str(name)


def _keys(section: Section) -> str:
    """Return the keys of a section without its name: "lr = 0.1, momentum = 0.0"."""
    return _written(section.model_dump(by_alias=True))


def _written(keys: Mapping[str, Any]) -> str:
    shown = {
        key: f"{value['name']} ({_written(value)})" if isinstance(value, Mapping) and "name" in value else value
        for key, value in keys.items()
    }
    return ", ".join(f"{key} = {value}" for key, value in shown.items() if key != "name" and value is not None)


def _schedule(plan: Plan) -> Iterator[tuple[str, str]]:
    experiment = plan.experiment
    if experiment.trials.count > 1:
        first, last = experiment.seed, experiment.seed + experiment.trials.count - 1
        yield "trials", f"{experiment.trials.count:,}, seeds {first} to {last}: the lines below describe the first"
    yield "rounds", f"{experiment.rounds:,}, a checkpoint every {experiment.checkpoint.every:,}"
    for name, condition in () if experiment.stop is None else experiment.stop:
        if condition is not None:
            yield "stop", f"{name}: {_keys(condition)}"
    if (best := experiment.checkpoint.best) is not None:
        yield "best model", f"kept by {best.metric}, the {'largest' if best.is_maximised else 'smallest'}"
    splits = evaluated_splits(plan)
    most = experiment.evaluation.clients
    if most == "all" or all(len(plan.dataset.split(name)) <= most for name in splits):
        whom = "all clients"
    else:
        whom = f"{counted(most, 'client')} chosen at random"
    if (examples := experiment.evaluation.examples) != "all":
        whom += f", {counted(examples, 'example')} of theirs at most"
    every = f"every {counted(experiment.evaluation.every, 'round')} and after the last"
    yield "evaluation", f"{' and '.join(splits)}, {whom}, {every}" if splits else "none: the data have no test split"
    if metrics := experiment.evaluation.metrics:
        yield "metrics", ", ".join(metric_columns.column(each) for each in metrics)
    if (tuned := experiment.evaluation.fine_tuning) is not None:
        yield "fine-tuning", _keys(tuned)
    if plan.optimum is not None:
        yield "optimum", f"known: distance_to_optimum and excess_loss, {every}"
    elif plan.dataset.optimum is not None:
        yield "optimum", "known for a linear model without bias and the built-in loss, so not for this run"


def _engine(plan: Plan) -> Iterator[tuple[str, str]]:
    engine = plan.experiment.engine
    threads = f"{counted(engine.threads, 'thread')} each"
    if (remark := precision_remark(plan)) is not None:
        yield "precision", remark
    yield "engine", f"in this process, {threads}" if engine.workers == 0 else f"{_workers(engine)}, {threads}"


def _workers(engine: EngineSection) -> str:
    auto = "in this process, or as many workers as fit"
    number = auto if engine.workers == "auto" else counted(engine.workers, "worker")
    cpus = f"{engine.cpus_per_worker:g} CPU"
    gpus = "an equal share of the cards" if engine.gpus_per_worker == "auto" else f"{engine.gpus_per_worker:g} GPU"
    return f"{number} on Ray, {cpus} and {gpus} each"


def _folder(plan: Plan, path: Path) -> Iterator[tuple[str, str]]:
    there = " (exists already: --resume continues it, --overwrite starts afresh)" if path.exists() else ""
    yield "folder", f"{path}{there}"
    yield "fingerprint", plan.fingerprint


def calibrated(timings: Sequence[Timing], chosen: Timing) -> str:
    """Return a calibration: a line per trainer and chunk size, fastest first, with a round's median time and spread."""
    lines = []
    for timing in timings:
        low, high = min(timing.round_s), max(timing.round_s)
        mark = "  <- chosen" if timing is chosen else ""
        spread = f"{1000 * timing.median_s:10.1f} ms a round ({1000 * low:.1f} to {1000 * high:.1f})"
        lines.append(f"{timing.trainer:<10}  chunk_size {timing.chunk_size:>4} {spread}{mark}")
    return "\n".join(lines)
