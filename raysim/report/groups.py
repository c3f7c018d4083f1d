"""Groups runs by method: runs with the same settings and other seeds are the trials of one method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, starmap
from pathlib import Path
from typing import Any

from raysim.config.printable import in_one_line
from raysim.errors import RunFolderError
from raysim.experiment import differences
from raysim.report.column_names import headlines
from raysim.report.looks import CurveStyle, looks
from raysim.report.number_formats import setting_number
from raysim.report.runs import Run
from raysim.report.same_data import files, same_data, short
from raysim.report.series import MeanCourse, Series, last_of, over_trials, rising
from raysim.run_folder.part_code import digits, other_code
from raysim.storage.remote.folder import named

LISTED = 24
"""With more groups a picture would be too high."""
_SAMPLES = ("clients", "examples")
"""Keys of [evaluation] that say whose figures it takes."""
_Trials = dict[tuple[int, int, int, int], Run]
"""Of one method, by their seeds."""
_WITHOUT_LABEL = frozenset({"loss", "params"})
"""Parts of a script that no label tells apart, and that change a run's numbers."""
SHOWN_KEYS = 3
"""Groups that differ in more keys are labelled by their runs' names: the keys would fit no legend."""


@dataclass(frozen=True)
class Group:
    """The trials of one method.

    label: its name in legends. keys: the keys in which groups differ, with this group's values. runs: one for each
    choice of seeds, in order of appearance. look: its colour, dashes and marker, the same in every picture. names:
    those that were given to texts of labels; see `with_labels`.
    """

    label: str
    keys: Mapping[str, Any]
    runs: tuple[Run, ...]
    look: CurveStyle
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def legend(self) -> str | None:
        """The label if the group is named in pictures, else None."""
        return self.label if self.look.is_named else None

    def series(self, column: str, cumulated: bool = False, best_so_far: bool = False) -> Series | None:
        """Return mean and deviation of a column by round, see `over_trials`; None if no trial has it."""
        return over_trials([run.rounds for run in self.runs], column, cumulated, best_so_far)

    def rising(self, column: str, cumulated: bool = False) -> MeanCourse | None:
        """Return the mean of a column that never falls, by round, see `series.rising`; None if no trial has it."""
        return rising([run.rounds for run in self.runs], column, cumulated)

    def finals(self, column: str) -> list[float]:
        """Return the newest value of each trial that has one."""
        values = (last_of(run.rounds, column) for run in self.runs)
        return [value for value in values if value is not None]


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Return the groups in order of their first run, and notes of caution."""
    methods: dict[str, list[_Trials]] = {}
    found: list[_Trials] = []
    notes = []
    for run in runs:
        alike = methods.setdefault(json.dumps(_method(run), sort_keys=True), [])
        # Data, code of parts, or the run from which one goes on make other methods where they differ, though no setting
        # tells.
        of_method = next((each for each in alike if all(_are_alike(run, trial) for trial in each.values())), None)
        if of_method is None:
            of_method = {}
            alike.append(of_method)
            found.append(of_method)
        other = of_method.setdefault(run.seeds, run)
        if other is not run:
            kept, dropped = sorted((other, run), key=lambda r: -r.rounds.num_rows)
            of_method[run.seeds] = kept
            twice, shown = named(dropped.path), named(kept.path)
            notes.append(f"{twice} has the settings and seeds of {shown}, so it is not counted again.")
    members = [tuple(of_method.values()) for of_method in found]
    apart = [[next(iter(trials.values())) for trials in alike] for alike in methods.values() if len(alike) > 1]
    records = [_told(of_method, apart) | _told_by_code(of_method, apart) for of_method in members]
    differing = differences.distinguishing(records)
    labels = _labels(members, records, differing)
    drawn = looks(_score(of_method) for of_method in members)
    groups = [Group(*fields) for fields in zip(labels, differing, members, drawn, strict=True)]
    return groups, [*notes, *_different_data(groups), *_different_code(apart)]


def with_labels(groups: Sequence[Group], names: Iterable[str]) -> list[Group]:
    """Return the groups with other labels.

    Args:
        groups: of a report.
        names: texts such as "cohort.size = 5=small": before the "=" a label, a setting of labels, a key (for axes), or
            a folder with the runs of one group; after it the new name.

    Raises:
        RunFolderError: nothing is so called; or two groups would be called the same, or one by two names.
    """
    pairs = [_label_and_name(groups, each) for each in names]
    names_by_text = dict(pairs)
    if other := [(text, name) for text, name in pairs if names_by_text[text] != name]:
        text, name = other[0]
        raise RunFolderError(f"--label gives {text!r} two names, {name!r} and {names_by_text[text]!r}: choose one.")
    named_groups = [
        replace(group, label=with_names(group.label, names_by_text), names=names_by_text) for group in groups
    ]
    labels = [group.label for group in named_groups]
    if names_by_text and (twice := [label for label in labels if labels.count(label) > 1]):
        raise RunFolderError(f"--label calls two methods {twice[0]!r}: give each one a name of its own.")
    return named_groups


def without_shared(groups: Sequence[Group]) -> list[Group]:
    """Return some of the groups of a report, their labels without the settings that all of these have.

    A setting that was given a name stays. So do all labels, where some would be empty or equal without them.
    """
    shared = {
        setting(key, value)
        for group in groups[:1]
        for key, value in group.keys.items()
        if all(key in other.keys and other.keys[key] == value for other in groups)
    } - {text for group in groups for text in group.names}
    labels = [", ".join(part for part in group.label.split(", ") if part not in shared) for group in groups]
    if not all(labels) or len(set(labels)) < len(labels):
        return list(groups)
    return [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]


def _label_and_name(groups: Sequence[Group], pair: str) -> tuple[str, str]:
    """Return the text of labels that is meant, and its name: the longest text before a "=" that means something."""
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    settings = (setting(*item) for group in groups for item in group.keys.items())
    texts = dict.fromkeys([*(group.label for group in groups), *settings, *keys])
    parts = pair.split("=")
    for place in range(len(parts) - 1, 0, -1):
        old, new = ("=".join(part).strip() for part in (parts[:place], parts[place:]))
        labels = [text for text in texts if text.replace(" = ", "=") == old.replace(" = ", "=")]
        labels = labels or [group.label for group in groups if any(_lies_in(run.path, Path(old)) for run in group.runs)]
        # What names no setting may not be taken for one: "cohort.size = 7=small".
        if new and len(labels) == 1 and (labels[0] not in keys or "=" not in new):
            return labels[0], in_one_line(new)
    raise RunFolderError(
        f"--label {pair!r} must be TEXT=NAME, with a folder that holds the runs of one method, or a text of labels: "
        f"{', '.join(texts)}."
    )


def with_names(label: str, names: Mapping[str, str]) -> str:
    """Return a label with the names of it, or of its settings.

    >>> with_names("cohort.size = 5, seed = 1", {"cohort.size = 5": "small"})
    'small, seed = 1'
    """
    return names.get(label) or ", ".join(names.get(part, part) for part in label.split(", "))


def setting(key: str, value: Any) -> str:
    """Return a setting as labels have it."""
    return f"{key} = {written(value)}"


def _lies_in(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def groups_to_list(groups: Sequence[Group]) -> list[Group]:
    """Return the groups to list in rows: all, or only the named ones if they are too many."""
    return [group for group in groups if len(groups) <= LISTED or group.look.is_named]


def headline(groups: Sequence[Group]) -> str:
    """Return the column that best measures a model: the test split's accuracy if there is one.

    Else that of another evaluation, an accuracy rather than a loss; else that of training.
    """
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    figures = list(headlines(names).values())
    ranked = sorted(figures, key=lambda name: (not name.endswith("/accuracy"), not name.startswith("eval/test/")))
    return next(iter(ranked), "accuracy" if "accuracy" in names else "loss")


def written(value: Any) -> str:
    r"""Return a setting's value for people: null is "none", a whole number has no decimal point; in one line.

    >>> print(written("a\x1b[31m"), written(2.0), written(0.12345671))
    a\x1b[31m 2 0.12345671
    """
    if value is None:
        return "none"
    return setting_number(value) if isinstance(value, float) else in_one_line(str(value))


def _method(run: Run) -> dict[str, Any]:
    """Return the settings that define a method: without seeds and diagnostics, and of evaluation what changes a figure.

    Of data, a model and whatever else came from a script without a label, only the run's name distinguishes methods.
    A run whose first rounds are another run's was not trained by its own settings alone.
    """
    experiment = run.experiment
    record = experiment.determining()
    record.pop("seed", None)
    record["evaluation"] = {key: record["evaluation"][key] for key in (*_SAMPLES, "fine_tuning")}
    for name in ("data", "model", "cohort"):
        if record[name] is not None:
            record[name] = {key: value for key, value in record[name].items() if key != "seed"}
    if experiment.model is not None:
        record["model"]["init"] = experiment.model.init
    record["server"] = {key: value for key, value in record["server"].items() if key != "diagnostics"}
    if experiment.data is None or experiment.model is None:
        record["run"] = experiment.name
    if run.goes_on_after:
        record["rounds of another run"] = run.goes_on_after
    return record | {part: experiment.name for part in run.passed if part in _WITHOUT_LABEL}


def _told(runs: Sequence[Run], apart: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """Return a method's settings, with the files of its data if there are methods that only their data tell apart.

    apart: the first runs of such methods, together for one setting. Where files do not tell either, as where these were
    changed, the data's fingerprint is added.
    """
    first = runs[0]
    record = _method(first)
    of_script = first.experiment.data is None
    # Beside methods of files, the run's name tells those of a script's data.
    apart = [alike for alike in apart if not of_script or alike[0].experiment.data is None]
    apart = [alike for alike in apart if not all(starmap(_has_other_code_or_origin, combinations(alike, 2)))]
    if apart:
        record["data"] = {**(record["data"] or {}), **files(first)}
        if any(len({json.dumps(files(each), sort_keys=True) for each in alike}) < len(alike) for alike in apart):
            # An older raysim recorded none.
            record["data"]["fingerprint"] = next(filter(None, map(short, runs)), None)
    return record


def _are_alike(run: Run, other: Run) -> bool:
    return same_data(run, other) and not _has_other_code_or_origin(run, other)


def _has_other_code_or_origin(run: Run, other: Run) -> bool:
    # Trials go on from the trials of another method, each from its own.
    return bool(other_code(run.code, other.code)) or (run.seeds == other.seeds and run.origin != other.origin)


def _told_by_code(runs: Sequence[Run], apart: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """Return the first digits of the code of the parts that alone tell a method from another; `apart`: as `_told`."""
    first = runs[0]
    alike = next((each for each in apart if any(one is first for one in each)), ())
    return {f"code of {keyword}": digits(first.code[keyword]) for keyword in _keywords_apart(alike)}


def _keywords_apart(alike: Sequence[Run]) -> list[str]:
    """Return the keywords of parts whose code tells some of these runs apart, and that all of them have."""
    pairs = combinations([run.code for run in alike], 2)
    found = dict.fromkeys(keyword for one, other in pairs for keyword in other_code(one, other))
    return [keyword for keyword in found if all(keyword in run.code for run in alike)]


def _different_code(apart: Sequence[Sequence[Run]]) -> Iterator[str]:
    """Yield a sentence for methods that only the code of a script's parts tells apart."""
    for alike in apart:
        for keyword in _keywords_apart(alike):
            paths = ", ".join(named(run.path) for run in alike)
            yield (
                f"The code of {keyword}= differs between runs of the same settings, so they are methods of their own: "
                f"see {paths}. A label of the part says which is which; where it has none, the name of the run."
            )


def _labels(
    members: Sequence[Sequence[Run]], records: Sequence[Mapping[str, Any]], differing: Sequence[Mapping[str, Any]]
) -> list[str]:
    names = [runs[0].experiment.name for runs in members]
    if len({key for keys in differing for key in keys}) <= SHOWN_KEYS and len(members) > 1:
        labels = [", ".join(setting(key, value) for key, value in keys.items()) for keys in differing]
    else:
        labels = _of_names(names, records)
    # Runs of one name with many differences are numbered; the page's table lists the differences.
    return [f"{label} ({i + 1})" if labels.count(label) > 1 else label for i, label in enumerate(labels)]


def _of_names(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs' names; those of one name, such as a study's trials, with the few keys in which they differ."""
    labels = list(names)
    for name in dict.fromkeys(names):
        places = [place for place, other in enumerate(names) if other == name]
        keys = differences.distinguishing([records[place] for place in places])
        if len(places) > 1 and len({key for each in keys for key in each}) <= SHOWN_KEYS:
            for place, settings in zip(places, keys, strict=True):
                labels[place] = ", ".join([name, *(setting(*each) for each in settings.items())])
    return labels


def _score(runs: Sequence[Run]) -> float:
    """Return the method's score, larger is better; minus infinity if nothing is known."""
    for column in (*headlines(runs[0].rounds.column_names).values(), "accuracy", "loss"):
        values = [value for run in runs if (value := last_of(run.rounds, column)) is not None]
        if values:
            mean = sum(values) / len(values)
            return -mean if column.endswith("loss") else mean
    return float("-inf")


def _different_data(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a warning if the compared runs were not measured on the same data."""
    samples = [f"evaluation.{key}" for key in _SAMPLES]
    for key in dict.fromkeys(key for group in groups for key in group.keys):
        values = ", ".join(dict.fromkeys(written(group.keys[key]) for group in groups if key in group.keys))
        if key.partition(".")[0] == "data":
            yield f"Runs of different data are compared: {key} is {values}."
        elif key in samples:
            yield f"Runs are compared whose evaluations take different samples: {key} is {values}."
    first: dict[tuple[object, ...], tuple[Group, Run]] = {}
    for group, run in [(each, run) for each in groups for run in each.runs]:
        data = run.experiment.data
        settings = "script" if data is None else json.dumps(_method(run)["data"], sort_keys=True)
        others, other = first.setdefault((settings, run.seeds[1] if data is not None else None), (group, run))
        if (
            None not in (run.data_fingerprint, other.data_fingerprint)
            and run.data_fingerprint != other.data_fingerprint
            and _of_data(group) == _of_data(others)
        ):
            yield f"Runs of different data are compared: those of {run.path} are not those of {other.path}."


def _of_data(group: Group) -> dict[str, Any]:
    """Return the keys of `[data]` that tell the group from others; a note of these says it all."""
    return {key: value for key, value in group.keys.items() if key.partition(".")[0] == "data"}
