"""Says what a run that begins does otherwise than its keys or its parts let one expect.

Of several runs the same is said once: runs of a series, and trials of a study, mostly differ in a few keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import torch

from raysim.config.global_draws import draws
from raysim.config.torch_settings import as_on_workers
from raysim.engine.cores import on_free_cores
from raysim.engine.plan import empty_splits, example_remarks, first_examples, own_models
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.engine.plan.resolve import precision_remark
from raysim.experiment import idle_keys
from raysim.models import holdable
from raysim.models.bilstm import VECTORS, Bilstm
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Classifier, Distilbert
from raysim.models.frozen_norms import frozen_norms
from raysim.models.name_patterns import matching
from raysim.models.section import ModelSection
from raysim.server.privacy.gaussian import Gaussian, counts_noised

log = logging.getLogger("raysim")


class _Remark(NamedTuple):
    """What is said of a run. about: the same for runs of which the same is said, perhaps with other values."""

    about: str
    text: str


def log_beginning(plan: Plan) -> None:
    """Log the trainer that trains the clients, with its reason; warn of keys that do not do what they say.

    The script's process calls this once, and the messages are about its processor.
    """
    Beginnings().log(plan, "")


class Beginnings:
    """Logs the beginnings of runs that share their parts: what was said of one is not said of another again."""

    def __init__(self) -> None:
        self._said = set[str]()
        self._looked_at = set[tuple[str, str]]()

    @as_on_workers()
    def log(self, plan: Plan, name: str) -> None:
        """Log the beginning of a run; `name` of one that is not the first tells people which one is meant."""
        prefix = f"{name}: " if self._looked_at and name else ""
        if not self._looked_at:
            log.info("clients are trained by the trainer %s: %s", plan.choice.trainer, plan.choice.why)
        found = [*_of_keys(plan)]
        data = (plan.dataset.fingerprint, str(plan.initial.params.dtype))
        if data not in self._looked_at:
            # Examples are read once, not for every run on them.
            self._looked_at.add(data)
            found += _of_examples(plan)
        for remark in found:
            if remark.about not in self._said:
                log.warning("%s%s", prefix, remark.text)
        self._said.update(remark.about for remark in found)


def _of_keys(plan: Plan) -> Iterator[_Remark]:
    """Yield what follows from the experiment and its model."""
    norms, holds = frozen_norms(plan.model.module()), plan.experiment.client.hold_frozen_norms
    if norms and not holds:
        yield _Remark(
            "statistics of frozen norms",
            f"the parameters of BatchNorm {', '.join(norms)} are frozen, but its running statistics follow the "
            f"clients' batches: client.hold_frozen_norms = true holds them still",
        )
    if holds and not norms:
        yield _Remark(
            "client.hold_frozen_norms",
            "client.hold_frozen_norms = true holds nothing: the model has no BatchNorm with frozen parameters",
        )
    if (shortage := plan.cohorts().shortage(plan.experiment.rounds)) is not None:
        yield _Remark("cohort.sampler", f"cohort.sampler: {shortage}")
    if (few := plan.experiment.client.few_samples) is not None:
        yield _Remark("client.posterior", f"client.posterior: {few}")
    privacy, clip = plan.experiment.server.privacy, plan.experiment.server.clip
    if isinstance(privacy, Gaussian) and (noised := counts_noised(privacy, clip)) is not None:
        yield _Remark("server.privacy.count_std", f"server.privacy: {noised}")
    for idle in idle_keys.remarks(plan.experiment, len(plan.dataset.train)):
        yield _Remark(f"no effect of {idle.key}", idle.text)
    evaluation = plan.experiment.evaluation
    if "every" in evaluation.model_fields_set and not evaluated_splits(plan) and not own_models.splits(plan.experiment):
        has = ", ".join(name for name, split in plan.dataset.splits.items() if len(split))
        yield _Remark(
            "evaluation.every",
            f"evaluation.every = {evaluation.every}, but the data have no test split, so no split is scored: they have "
            f"{has}; dataset.hold_out(share) and data.holdout make the split 'validation', for evaluation.split",
        )
    for empty in empty_splits.remarks(plan):
        yield _Remark(empty, empty)
    if "dataset" in plan.passed.names and plan.experiment.data is not None:
        data = plan.experiment.data.name
        yield _Remark("dataset=", f"dataset= is used, and the {data!r} of [data] is not: leave [data] out")
    for keyword in plan.hashing:
        yield _Remark(
            f"hash in {keyword}=",
            f"{keyword}= calls hash(), which gives a text another number in every process, so figures would differ "
            f"from worker to worker, and where the run is resumed: take zlib.crc32(text.encode()), or start Python "
            f"with PYTHONHASHSEED=0 in the environment, everywhere",
        )
    yield from _of_model_section(plan)
    if (remark := precision_remark(plan)) is not None:
        yield _Remark("engine.precision", f"engine.precision: {remark}")
    held = plan.initial.params.dtype
    for made in {part.dtype for part in plan.model.parts if part.kind == "trainable"}:
        if made.itemsize > held.itemsize and "dtype" not in plan.experiment.engine.model_fields_set:
            yield _Remark(
                "engine.dtype",
                f"the module has parameters of {made}, which are trained in {held}: set engine.dtype = "
                f"'{str(made).removeprefix('torch.')}' to keep them so, or engine.dtype = "
                f"'{str(held).removeprefix('torch.')}'",
            )


def _of_model_section(plan: Plan) -> Iterator[_Remark]:
    """Yield that `[model]` is not used, and of values that a file would be expected to have, or has."""
    section = plan.experiment.model
    if section is None:
        return
    if "model" in plan.passed.names and section.name != "own":
        yield _Remark(
            "model=",
            f"model= is trained, and the {section.name!r} of [model] is not: set model.name = 'own', or leave [model] "
            f"out",
        )
    if (section.lora is not None or _freezes_drawn(plan, section)) and _draws_all(plan):
        key = "model.freeze" if section.lora is None else "model.lora"
        yield _Remark(
            key,
            f"{key} freezes values that the seed has drawn: model.init names a file with those of a base, or params= "
            f"has them",
        )
    if section.seed is not None and section.lora is None and _is_whole_folder(plan, section):
        yield _Remark("model.seed", f"model.seed = {section.seed} draws nothing: model.path has all values")


def _of_examples(plan: Plan) -> Iterator[_Remark]:
    """Yield what the first clients' examples show, of the data and of a script's parts."""
    looked = range(min(example_remarks.LOOKED_AT, len(plan.dataset.train)))
    if found := example_remarks.not_finite(plan.dataset, looked, plan.initial.params.dtype):
        yield _Remark(
            "not finite",
            f"of the first {len(looked)} training clients {len(found)} have values that are not finite: "
            f"{', '.join(found)}: updates that this makes not finite are rejected",
        )
    if (largest := example_remarks.far_from_one(plan.dataset, looked)) is not None:
        yield _Remark(
            "large",
            f"x of the first training clients goes up to {largest:.3g}: most models learn little from numbers far from "
            f"1; give each feature a mean near 0 and a deviation near 1 before the data are read",
        )
    for name, size in example_remarks.vanishing(plan.dataset, looked, plan.initial.params.dtype).items():
        scale = getattr(plan.dataset, name).scale
        times = "" if scale == 1 else f" and times the scale {scale:g}"
        yield _Remark(
            f"{name} vanishes",
            f"{name} of the first training clients has a place in which no number is larger than {size:.3g}, and as "
            f"{str(plan.initial.params.dtype).removeprefix('torch.')}{times} these are 0, so the model does not see "
            f"them: {'choose another scale' if times else 'multiply them before the data are read'}",
        )
    # A script's loss may take labels as real numbers.
    dtype = None if "loss" in plan.passed.names else example_remarks.labels_as_floats(plan.dataset, looked)
    if dtype is not None:
        yield _Remark(
            "labels",
            f"y holds whole numbers, but is of {dtype}, which makes this a regression: class labels are integers",
        )
    if "model" in plan.passed.names:
        if lost := holdable.lost_by_rounding(plan.model.module(), plan.initial.buffers.dtype):
            yield _Remark(
                "buffers",
                f"the buffers of a module are held as engine.dtype = {plan.experiment.engine.dtype!r}, in which the "
                f"values of {', '.join(map(repr, lost))} are no longer told apart, or become 0 or infinite: set "
                f"engine.dtype = 'float64', or keep such values in whole numbers, or as differences from one of them",
            )
        yield from _of_outputs(plan)
    if "loss" in plan.passed.names:
        yield from _of_loss(plan)


def _of_outputs(plan: Plan) -> Iterator[_Remark]:
    """Yield that the loss or an evaluation takes the outputs of a script's module for something else."""
    x, _ = first_examples.load_several(plan.experiment, plan.dataset, plan.initial, first_examples.MOST)
    with on_free_cores(), draws(), torch.no_grad():
        outputs = first_examples.outputs(plan.model, plan.initial, x)
        mixed = outputs is not None and example_remarks.mixes_examples(plan, x, outputs)
    if outputs is None:
        return
    by_logits = plan.dataset.num_classes is not None and not {"loss", "objective"} & set(plan.passed.names)
    if by_logits and example_remarks.are_shares(outputs):
        yield _Remark(
            "shares",
            "the outputs of model= are shares that sum to 1, as after a softmax, but the loss, cross-entropy, takes "
            "logits: end the module without softmax, or pass a loss= of shares",
        )
    if mixed:
        yield _Remark(
            "mixed examples",
            "in evaluation the outputs of model= for an example depend on the others of its batch, or on how many they "
            "are, so scores depend on evaluation.batch_size, and on the clients that share a batch: let forward "
            "compute each example by itself, and BatchNorm keep running statistics",
        )


def _of_loss(plan: Plan) -> Iterator[_Remark]:
    """Yield that a script's loss looks at the whole batch, or refuses equal examples: more often it is a mistake."""
    with on_free_cores(), draws(), torch.no_grad():
        flaw = example_remarks.flaw_of_loss(plan)
    if flaw is not None:
        yield _Remark("loss=", f"loss= {flaw}")


def _freezes_drawn(plan: Plan, section: ModelSection) -> bool:
    """Return whether `model.freeze` names parameters other than the vectors that a file has."""
    if not isinstance(section, Bilstm) or section.vectors is None:
        return bool(section.freeze)
    patterns = [*section.freeze, VECTORS]
    return matching(patterns, plan.model.constants, "model.freeze", "parameter") != [VECTORS]


def _is_whole_folder(plan: Plan, section: ModelSection) -> bool:
    """Return whether the folder of a pretrained model has all its values, the head's too."""
    if not isinstance(section, Distilbert):
        return isinstance(section, CausalLm)
    module = plan.model.module()
    return isinstance(module, Classifier) and not module.is_drawn


def _draws_all(plan: Plan) -> bool:
    """Return whether all values are drawn: a script's module, and a family with a path, may have read their own."""
    section, passed = plan.experiment.model, {"model", "params"} & set(plan.passed.names)
    return section is not None and section.init is None and not passed and getattr(section, "path", None) is None
