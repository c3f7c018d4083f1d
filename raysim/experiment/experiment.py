"""Defines the experiment: one frozen, complete record, validated once. It reads TOML and writes JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from raysim.client.adversary import Adversary
from raysim.client.corrections.feddualavg import Composite
from raysim.client.section import ClientSection, FineTuning
from raysim.client.trainers.trainer_choice import Precision, TrainerName
from raysim.cohort.section import CohortSection
from raysim.config import kinds, messages, overrides
from raysim.config.call_advice import advised
from raysim.config.own_part import OwnMetric
from raysim.config.part import Packaged
from raysim.config.plain import plain, shown
from raysim.config.section import Section
from raysim.config.values import RUN_NAME, Count, Name, Seed
from raysim.data.section import Data, paths
from raysim.errors import ExperimentError
from raysim.experiment import compatibility, fedex, metric_columns
from raysim.experiment.pictures import ReportSection
from raysim.experiment.stop import BestModel, StopSection
from raysim.models.section import ModelSection
from raysim.server.fedex import FedEx
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection

Percentile = Annotated[float, Field(ge=0, le=100)]
RunName = Annotated[str, Field(pattern=RUN_NAME, max_length=100)]
Share = Annotated[float, Field(ge=1e-4, le=1e4)]
"""Of a processor or a card: Ray counts them in ten-thousandths."""


MetricSection = Annotated[OwnMetric, Packaged("metric", "evaluation.metrics")]


def _listed(given: Any) -> Any:
    return (given,) if isinstance(given, Mapping | Section | str) else given


class EvaluationSection(Section):
    """When and where the model is scored."""

    every: Count = Field(10, description="Rounds between evaluations; the last round is always evaluated.")
    split: Name | Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)] | None = Field(
        None, description='One split or several; "train" is the training clients. Absent: "test", if the data have it.'
    )
    clients: Count | Literal["all"] = Field(
        10_000, description='Clients scored per split at most, a sample drawn by the seed; or "all".'
    )
    examples: Count | Literal["all"] = Field(
        "all",
        description=(
            "Examples of these clients scored per split at most, a sample drawn by the seed, the same in every round. "
            "Fine-tuning scores all."
        ),
    )
    batch_size: Count = Field(
        256,
        description=(
            "Examples that are scored at a time, of one client or of several; fewer of them take less memory where a "
            "model has many outputs. Where training takes scores (server.fairness, fedex, clusters, samplers that look "
            "at losses), their last digits depend on it, and so do the run's numbers."
        ),
    )
    percentiles: tuple[Percentile, ...] = Field(
        (5, 25, 50, 75, 95),
        min_length=1,
        max_length=101,
        description="Percentiles of the clients' accuracies that are recorded, from 0 to 100.",
    )
    fine_tuning: FineTuning | None = Field(
        None, description="Also scores clients before and after local steps on their training examples. Absent: off."
    )
    metrics: Annotated[tuple[MetricSection, ...], BeforeValidator(_listed)] = Field(
        (),
        max_length=100,
        description="Metrics beside loss and accuracy: names or tables, of installed packages or a script.",
    )

    @model_validator(mode="after")
    def _metrics_that_can_be_columns(self) -> Self:
        if refused := list(metric_columns.refusals(self.metrics)):
            raise ValueError("; ".join(refused))
        return self


class EngineSection(Section):
    """How work is computed. Workers, their shares, wait_s, examples and cuda_graphs affect time, the rest also bits."""

    MEANT: ClassVar[Mapping[str, str]] = {"device": "gpus_per_worker", "gpus": "gpus_per_worker"}
    """Words that other frameworks have for a key."""

    PLACEMENT: ClassVar[tuple[str, ...]] = ("workers", "cpus_per_worker", "gpus_per_worker", "wait_s")
    """Keys of which workers there are: runs that are equal in them can share theirs."""

    WITHOUT_BITS: ClassVar[tuple[str, ...]] = (*PLACEMENT, "examples", "cuda_graphs")
    """Keys that affect time alone, and no number."""

    @model_validator(mode="before")
    @classmethod
    def _former_key(cls, given: Any) -> Any:
        """Accept `form`, the former name of `trainer`."""
        if isinstance(given, Mapping) and "form" in given and "trainer" not in given:
            return {"trainer" if key == "form" else key: value for key, value in given.items()}
        return given

    workers: Annotated[int, Field(ge=0, le=100_000)] | Literal["auto"] = Field(
        "auto",
        description=(
            'Worker processes; 0: in-process, without Ray; "auto": as many as Ray\'s cores or cards allow. Without an '
            'address and a card, "auto" begins in-process, and moves to workers once they would end the run sooner.'
        ),
    )
    cpus_per_worker: Share = Field(1, description="CPU cores that a worker reserves in Ray.")
    gpus_per_worker: Annotated[float, Field(ge=0, le=1e4)] | Literal["auto"] = Field(
        "auto", description='Cards that a worker reserves in Ray; "auto": an equal share of those that Ray has.'
    )
    wait_s: float = Field(
        300,
        ge=0.001,
        le=1e7,
        description=(
            "Seconds for which a run without a worker waits for one. It begins with the first that has started; the "
            "others join it."
        ),
    )
    threads: int = Field(1, ge=1, le=1024, description="Intra-op threads of a worker.")
    chunk_size: Count | Literal["auto"] = Field(
        "auto", description='Clients trained and retried together; "auto": chunks of about equal cost.'
    )
    trainer: TrainerName | Literal["auto"] = Field(
        "auto",
        description=(
            'How local training is computed: "one_by_one" by autograd, for any module; "recorded" by the '
            "operators of autograd's local step, recorded once for each shape of batch, for modules whose course does "
            'not depend on values; "interpreted" by the same operators, most of which a compiled interpreter '
            "carries out, on CPUs with a C compiler on every machine; "
            '"fused" and "stacked" with '
            "hand-written gradients, for sequences of standard layers, one client after another or with a client "
            'axis; "compiled" by a kernel in C, for dense layers on CPUs, which needs a C compiler on every '
            'machine; "vmap" by torch.func, with a client axis, for modules that allow it. "auto": what was '
            "measured as fastest."
        ),
    )
    examples: Literal["auto", "device", "host"] = Field(
        "auto",
        description=(
            'Where workers keep stored examples: "device" copies the training split and the scored ones to each '
            'worker\'s device, and warns of what does not fit; "host" sends rows there chunk by chunk. "auto": '
            '"device" on a card, for splits that take at most a quarter of the memory that the worker may still use '
            "and whose clients the run meets at least once on average."
        ),
    )
    cuda_graphs: bool | Literal["auto"] = Field(
        "auto",
        description=(
            'Record local steps on a card as CUDA graphs, and replay them; "auto": where clients are trained by '
            '"stacked" or "recorded", as far as an eighth of the free memory goes.'
        ),
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="Type in which weights are kept.")
    precision: Precision = Field(
        "float32",
        description=(
            'Type of products: as dtype, unless "tf32" (NVIDIA cards) or "bf16" is chosen. The trainers "fused" and '
            '"stacked" make products in bf16 only of convolutions, and of weights of at least 65,536 numbers. LSTMs '
            "stay in float32 on CPUs, which is faster there."
        ),
    )


class CheckpointSection(Section):
    """Files of the server's state, from which a run resumes."""

    every: Count = Field(50, description="Rounds between checkpoints; the last round always has one.")
    keep: Count = Field(2, description="Number of newest checkpoints that are kept.")
    best: BestModel | None = Field(
        None,
        description=(
            "A metric of the evaluations: the model with its best value is kept too, the first of several. "
            "Absent: only the newest models."
        ),
        examples=["eval/validation/accuracy"],
    )


Varied = Literal["data", "model", "cohort"]


class TrialsSection(Section):
    """Several seeds of the experiment, and what varies with them."""

    count: int = Field(1, ge=1, le=1_000, description="Number of trials; trial i has the seed `seed` + i.")
    vary: tuple[Varied, ...] = Field(
        get_args(Varied),
        max_length=len(get_args(Varied)),
        description=(
            'What varies with the seed: "data" is how data are generated and divided, "model" the initial weights, '
            "\"cohort\" the sampling; what is left out keeps the first trial's seed. Clients' draws (batches, "
            "dropout) always vary."
        ),
    )


def _counted(given: Any) -> Any:
    return {"count": given} if isinstance(given, int) and not isinstance(given, bool) else given


Trials = Annotated[TrialsSection, BeforeValidator(_counted)]
"""`trials = 5` is `trials = { count = 5 }`."""


class Experiment(Section):
    """Everything that determines a run."""

    _TABLE = ""

    name: RunName = Field("run", description="Name of the run's folder, runs/NAME.")
    seed: Seed = Field(0, description="Seed of the run; every random draw is addressed by it.")
    rounds: int = Field(
        100, ge=1, le=10**7, description="Number of rounds: a cohort, its local training, a server step."
    )
    trials: Trials = Field(
        TrialsSection(), description="Number of seeds and what varies with them; `trials = 5` sets the number."
    )
    pooled: bool = Field(False, description='One client, "pooled", holds all training examples (centralised training).')
    data: Data | None = Field(
        None, description="The dataset and its division among clients. Absent: a script passes `dataset=`."
    )
    model: ModelSection | None = Field(None, description="The model that is trained. Absent: a script passes `model=`.")
    client: ClientSection = Field(ClientSection(), description="Local training on each client.")
    composite: Annotated[Composite, Field(discriminator="name")] | None = Field(
        None, description="FedDualAvg: the penalty of the model. Absent: none."
    )
    fedex: FedEx | None = Field(
        None, description="FedEx: tuning of the clients in tandem with the model. Absent: all train by [client]."
    )
    cohort: CohortSection = Field(description="The clients that take part in a round.")
    server: ServerSection = Field(ServerSection(), description="How updates are aggregated and the model is stepped.")
    adversary: Adversary | None = Field(None, description="Clients that attack the training. Absent: none.")
    systems: SystemsSection | None = Field(
        None, description="Simulated devices, their time per round and who reports. Absent: no time is simulated."
    )
    evaluation: EvaluationSection = Field(
        EvaluationSection(), description="When and on which clients the model is scored."
    )
    engine: EngineSection = Field(EngineSection(), description="How the work is computed: workers, chunks, precision.")
    checkpoint: CheckpointSection = Field(CheckpointSection(), description="When the server's state is saved.")
    stop: StopSection | None = Field(None, description="When the run ends before its last round. Absent: it does not.")
    report: ReportSection = Field(ReportSection(), description="Size, letters and files of pictures.")
    tuning: dict[str, Any] | None = Field(
        None, max_length=100, description="Hyper-parameter search of `raysim tune`; a run ignores it."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _weights_by_definition(cls, given: Any, validated: Callable[[Any], Self]) -> Self:
        """Set the default weighting by the other choices."""
        server = given.get("server", {}) if isinstance(given, Mapping) else None
        if not isinstance(server, Mapping):
            return validated(given)
        try:
            checked = ServerSection.checked(server)
            client, cohort = ClientSection.checked(given.get("client", {})), CohortSection.checked(given.get("cohort"))
        except ExperimentError:
            # The experiment's own message has the place of what is wrong.
            return validated(given)
        weighted = compatibility.with_usual_weighting(checked, client, cohort)
        # Without a weighting to set, a table that is not given stays so.
        return validated(given if weighted is checked else {**given, "server": weighted})

    @model_validator(mode="after")
    def _choices_that_fit(self) -> Experiment:
        if self.composite is not None and self.client.correcting is not None:
            other = compatibility.correction_name(self.client)
            raise ValueError(f"composite has local steps of its own, and {other} changes them: remove one")
        if refused := list(self.refusals()):
            raise ValueError("; ".join(refused))
        return self

    def refusals(self) -> Iterator[str]:
        """Yield a sentence for each pair of choices that are not defined together."""
        server, cohort, systems = self.server, self.cohort, self.systems
        yield from compatibility.refusals(self.training, server, cohort, systems)
        if self.fedex is not None:
            yield from fedex.refusals(self.fedex, self.client, self.composite, server, cohort, systems)

    @property
    def training(self) -> ClientSection:
        """The clients' local training, with what `composite` makes of it."""
        return self.client.with_composite(self.composite)

    @property
    def configurations(self) -> tuple[ClientSection, ...]:
        """The local trainings of which each client draws one in a round; none without FedEx."""
        return () if self.fedex is None else fedex.configurations(self.fedex, self.client)

    @advised("it takes tables by their names, as name=..., data={...}; raysim.load(path) reads a file")
    def __init__(self, /, **tables: Any) -> None:
        """Check the tables and keys, as `model_validate` does: Experiment(name="a", rounds=5, data={...}, ...).

        Raises:
            ExperimentError: see `checked`.
        """
        try:
            super().__init__(**plain(tables))
        except ValidationError as error:
            raise ExperimentError(messages.message(error, type(self), "")) from None

    # As in pydantic's own classes: validation fills the fields itself, and does not call __init__.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Experiment:
        """Validate a mapping.

        Raises:
            ExperimentError: names every wrong key, its value and the allowed values.
        """
        return cls.checked(obj, **kwargs)

    def to_json(self) -> str:
        """Return the complete record, defaults included; `Experiment.model_validate(json.loads(...))` reads it."""
        return self.model_dump_json(indent=2, by_alias=True)

    def said(self) -> dict[str, Any]:
        """Return the explicit keys, as plain values, without defaults: a default may depend on a changed key."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def __repr__(self) -> str:
        """Return the explicit keys, a line each, as a file has them."""
        lines = [f"{key} = {kinds.toml(value)}" for key, value in self.said().items() if value is not None]
        return "\n".join(["Experiment, with the defaults of all other keys:", *lines])

    __str__ = __repr__

    @property
    def default_folder(self) -> Path:
        """The default folder of a run."""
        return Path("runs") / self.name

    @advised(f"changed(set) takes {overrides.TAKEN['set']}")
    def changed(self, set: Iterable[str] | Mapping[str, Any]) -> Experiment:
        """Return a validated copy, with changes as in `load`, or with values by dotted keys.

        A table as a value replaces the whole table, so keys that it does not name have their defaults again: to change
        one key of a table, name it, as in changed({"client.batch_size": 7}).
        """
        return Experiment.model_validate(overrides.apply(self.said(), set, ()))

    def check_constants(self, keys: Iterable[str]) -> None:
        """Check that the experiment has the constants of parts that dotted keys name: a misspelled one varies nothing.

        Raises:
            ExperimentError: one that it does not have; names the nearest.
        """
        values = dict(overrides.leaves(self.said()))
        for key in keys:
            table, dot, name = key.rpartition(".constants.")
            inside = f"{table}{dot}"
            known = [each.removeprefix(inside) for each in values if each.startswith(inside)]
            if dot and name not in known:
                raise ExperimentError(
                    f"{table}.constants has no {name!r} that could vary: it has {', '.join(known) or 'none'}"
                    f"{messages.nearest(name, known)}. Give each constant its usual value in the experiment."
                )

    def fingerprint(self, data_fingerprint: str) -> str:
        """Return a hex digest of `determining` and the data: no names, paths, placement or end."""
        canonical = json.dumps(self.determining() | {"data": data_fingerprint}, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()

    def determining(self) -> dict[str, Any]:
        """Return all keys that determine a round's numbers, as plain values: equal in a run and its continuation."""
        record = self.model_dump(
            mode="json", by_alias=True, exclude={"name", "rounds", "trials", "checkpoint", "stop", "report", "tuning"}
        )
        for key in EngineSection.WITHOUT_BITS:
            del record["engine"][key]
        if record["model"] is not None:
            # The values that it names are in the plan's fingerprint.
            record["model"].pop("init")
        if self.data is not None:
            # The same data may be in another folder; the data's fingerprint covers their content.
            for path in paths(self.data):
                record["data"].pop(path, None)
        return record


def check_kind(given: object) -> None:
    """Raise ExperimentError if something else stands in the place of an experiment."""
    if not isinstance(given, Experiment):
        got = shown(given) if given is None or isinstance(given, str | Path) else type(given).__name__
        raise ExperimentError(
            f"experiment must be a raysim.Experiment, but got {got}: raysim.load(path) reads one, "
            "Experiment.model_validate(mapping) makes one."
        )
