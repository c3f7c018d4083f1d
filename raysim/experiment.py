"""The experiment: one frozen, complete record, validated once. TOML in, JSON out."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from raysim import defined, overrides
from raysim.client.adversary import Adversary
from raysim.client.fine_tuning import FineTuning
from raysim.client.forms.choose import FormName, Precision
from raysim.client.section import ClientSection
from raysim.cohort.section import CohortSection
from raysim.data.paths import paths
from raysim.data.section import FORMS, AnyData, Data
from raysim.errors import ExperimentError
from raysim.models.section import ModelSection
from raysim.section import Section
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection
from raysim.trials import Trials, TrialsSection

SOURCE_CLIENTS = 100
"""Clients that a source without its own is dealt to, where it is prepared by its name."""

Percentile = Annotated[float, Field(ge=0, le=100)]
RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class EvaluationSection(Section):
    """When and where the model is scored.

    every: so many rounds, and after the last one.
    split: a split's name or several; "train" is the training clients. Absent: "test" where the data have one.
    clients: a seeded sample of at most that many per split, or all.
    percentiles: of the clients' accuracies.
    fine_tuning: clients are also scored before and after some local steps on their own training examples.
    """

    every: PositiveInt = 10
    split: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    clients: PositiveInt | Literal["all"] = 10_000
    percentiles: Annotated[tuple[Percentile, ...], Field(min_length=1)] = (5, 25, 50, 75, 95)
    fine_tuning: FineTuning | None = None


class EngineSection(Section):
    """How the work is carried out. Workers, their shares, examples and cuda_graphs decide the speed,
    all else the bits too.

    workers: number of pools; 0 is in-process, without Ray; "auto" is as many as Ray's free cores or cards allow.
    cpus_per_worker, gpus_per_worker: what Ray is asked for. "auto" is an equal share of the cards where Ray has some.
    threads: intra-op threads of a worker.
    chunk_size: clients trained and retried together; "auto" makes chunks of about equal cost.
    form: how local training is computed: "one_by_one" by autograd, for any module; "fused" and "stacked" by hand, for
        sequences of standard layers, one client after another or with a client axis; "compiled" by a kernel in C, for
        dense layers on CPUs, which needs a C compiler on every machine; "vmap" by torch.func, with a client axis, for
        modules that allow it. "auto" takes what was fastest when it was measured.
    examples: where workers keep stored examples, of which they gather a chunk's: "device" has a copy of the training
        split, and of the scored ones, in the memory of each worker's device, or warns of what does not fit; "host"
        sends them there chunk by chunk. "auto" is "device" on a card, for splits that take at most a quarter of what
        the worker may still use of its memory, and whose clients the run meets at least once on average.
    cuda_graphs: record the passes, forward and back, of stacked clients on a card, and play them back.
    dtype: what weights are kept in. precision: what products are computed in: as dtype, unless "tf32" (NVIDIA cards) or
        "bf16" is asked for.
    """

    workers: NonNegativeInt | Literal["auto"] = "auto"
    cpus_per_worker: PositiveFloat = 1
    gpus_per_worker: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    threads: PositiveInt = 1
    chunk_size: PositiveInt | Literal["auto"] = "auto"
    form: FormName | Literal["auto"] = "auto"
    examples: Literal["auto", "device", "host"] = "auto"
    cuda_graphs: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "float32"


class CheckpointSection(Section):
    """The server's state as files, from which a run goes on.

    every: so many rounds, and after the last one.
    keep: the newest so many of them stay.
    """

    every: PositiveInt = 50
    keep: PositiveInt = 2


class Experiment(Section):
    """Everything that determines a run.

    name: of the run's folder, runs/<name>.
    seed: addresses every draw of the run.
    rounds: how many there are, each of a cohort, its local training and a step of the server.
    trials: how many seeds the experiment is run with, and what moves with them; `trials = 5` is short for its count.
    pooled: one client, "pooled", holds the training examples of all.
    data: whose examples clients have. It may be absent where a script passes `dataset=`.
    model: what is trained. It may be absent where a script passes `model=`.
    client: local training.
    cohort: who takes part in a round.
    server: what becomes of the updates.
    adversary: clients that do not send what they learnt; absent: there are none.
    systems: what the simulated devices would have experienced; absent: no time is simulated.
    evaluation: when and where the model is scored.
    engine: how the work is carried out.
    checkpoint: when the state is kept.
    tuning: how `raysim tune` looks for better values. A run takes no notice of it.
    """

    name: RunName = "run"
    seed: int = 0
    rounds: PositiveInt = 100
    trials: Trials = TrialsSection()
    pooled: bool = False
    data: Data | None = None
    model: ModelSection | None = None
    client: ClientSection = ClientSection()
    cohort: CohortSection
    server: ServerSection = ServerSection()
    adversary: Adversary | None = None
    systems: SystemsSection | None = None
    evaluation: EvaluationSection = EvaluationSection()
    engine: EngineSection = EngineSection()
    checkpoint: CheckpointSection = CheckpointSection()
    tuning: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _weights_by_definition(cls, given: Any) -> Any:
        """Where uniform weights are a choice's definition, they are the default."""
        match given:
            case {"cohort": {"sampler": {"name": "md"}}}:
                # The sampler puts the examples into the probabilities.
                uniform = True
            case {"client": {"correction": {"name": name}}}:
                uniform = name in defined.UNIFORM
            case _:
                uniform = False
        server = given.get("server", {}) if uniform else None
        if isinstance(server, Mapping) and "weighting" not in server:
            return {**given, "server": {**server, "weighting": "uniform"}}
        return given

    @model_validator(mode="after")
    def _choices_that_fit(self) -> Experiment:
        drawing = self.cohort.drawing
        if drawing is not None and drawing.name == "md" and self.server.weighting == "examples":
            raise ValueError(
                "the md sampler draws clients in proportion to their examples, and is defined with uniform weights, "
                "but got server.weighting = 'examples', which would count the examples twice"
            )
        if refused := list(defined.refusals(self.client, self.server, self.cohort, self.systems)):
            raise ValueError("; ".join(refused))
        return self

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Experiment:
        """Validate a mapping.

        Raises:
            ExperimentError: names every key that is wrong, what was given and what is allowed.
        """
        return cls.checked(obj, **kwargs)

    def to_json(self) -> str:
        """The complete record, defaults included; `Experiment.model_validate(json.loads(...))` gives it back."""
        return self.model_dump_json(indent=2, by_alias=True)

    def said(self) -> dict[str, Any]:
        """The keys that were given, as plain values, without defaults: a default may depend on what is changed."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def default_folder(self) -> Path:
        """Where a run of it is recorded unless somebody says otherwise."""
        return Path("runs") / self.name

    def changed(self, set: Iterable[str] | Mapping[str, Any]) -> Experiment:
        """A copy with changes as `load` takes them, or with values by their dotted keys; validated anew."""
        return Experiment.model_validate(overrides.apply(self.said(), set, ()))

    def fingerprint(self, data_fingerprint: str) -> str:
        """Hex digest of what determines the numbers of a round: never names, paths, placement or how long to go on."""
        canonical = json.dumps(self.determining() | {"data": data_fingerprint}, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()

    def determining(self) -> dict[str, Any]:
        """What determines the numbers of a round, as plain values: a run and its continuation must agree on it."""
        record = self.model_dump(
            mode="json", by_alias=True, exclude={"name", "rounds", "trials", "checkpoint", "tuning"}
        )
        for placement in ("workers", "cpus_per_worker", "gpus_per_worker", "examples", "cuda_graphs"):
            del record["engine"][placement]
        if self.data is not None:
            # The same data may lie elsewhere; their own fingerprint looks at what they are.
            for path in paths(self.data):
                record["data"].pop(path, None)
        return record


def load(path: str | Path, set: Iterable[str] = (), unset: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a TOML file, with changes.

    Args:
        path: the file.
        set: changes such as "server.optimizer.lr=0.5", in order; values are TOML, or a bare string. A changed `name`
            drops the other keys of the choice that it replaces.
        unset: keys to remove, before anything is set.

    Raises:
        ExperimentError: the file or a change cannot be read, or what results is not a valid experiment.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExperimentError(f"There is no experiment file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None
    changed: Mapping[str, Any] = overrides.apply(table, set, unset)
    try:
        return Experiment.model_validate(changed)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


def of_source(name: str, root: str | None, set: Iterable[str] = ()) -> Experiment:
    """The least experiment with a source's data, to prepare them by the source's name.

    Args:
        name: of the source.
        root: the folder of its files; None: its usual ones.
        set: changes, as for `load`.

    Raises:
        ExperimentError: there is no such source, or a change does not fit.
    """
    known = {kind.model_fields["name"].default: kind for kind in get_args(AnyData)}
    if name not in known:
        form = f" {name!r} is {FORMS[name]}." if name in FORMS else ""
        raise ExperimentError(
            f"{name!r} is neither a file nor a source of data: the sources are {', '.join(known)}.{form}"
        )
    data: dict[str, Any] = {"name": name, **({"root": root} if root else {})}
    if known[name].model_fields["clients"].is_required():
        data["clients"] = SOURCE_CLIENTS
    return Experiment.model_validate(overrides.apply({"data": data, "cohort": {"size": 1}}, set, ()))
