"""The code of a script's part: changed code is noticed, other comments are not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.run_folder import part_code

Make = Callable[..., raysim.Experiment]


def compiled(source: str) -> Any:
    """What the source calls `part`."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(source, names)
    return names["part"]


FUNCTION = "def part(x):\n    return x + 1"


@pytest.mark.parametrize(
    "other",
    [
        "# A comment.\ndef part(x):\n    # Another one.\n\n    return x + 1",
        "def part(x):\n    'A docstring.'\n    return x + 1",
    ],
)
def test_comments_and_docstrings_are_no_code(other: str) -> None:
    assert part_code.digest(compiled(FUNCTION)) == part_code.digest(compiled(other))


@pytest.mark.parametrize(
    "other",
    [
        "def part(x):\n    return x + 2",
        "def part(x):\n    return x - 1",
        "def part(y):\n    return y + 1",
        "def part(x, scale=2.0):\n    return x + 1",
        "def part(x, scale=(2.0,)):\n    return x + 1",
        "def part(x, *, scale=2.0):\n    return x + 1",
        "def part(x):\n    return x in {1, 2, 3}",
        "def part(x):\n    return [each + 1 for each in x]",
    ],
)
def test_other_code_has_another_digest(other: str) -> None:
    one, two = part_code.digest(compiled(FUNCTION)), part_code.digest(compiled(other))
    assert one is not None
    assert two is not None
    assert part_code.differs(one, two)


MAKE = "def make(scale): return lambda x: x * scale"


@pytest.mark.parametrize(
    ("part", "one", "two"),
    [
        ("def part(x): return helper(x)", "def helper(x): return x + 1", "def helper(x): return x + 2"),
        ("def part(x): return helper(x)", "S = 1\ndef helper(x): return x * S", "S = 2\ndef helper(x): return x * S"),
        ("def part(): return Net()", "class Net:\n def f(self): return 1", "class Net:\n def f(self): return 2"),
        ("def part(x): return [each * SCALE for each in x]", "SCALE = 1.5", "SCALE = 2.5"),
        ("def part(x): return x in NAMES", "NAMES = ('a',)", "NAMES = ('b',)"),
        ("class part:\n def f(self, x): return helper(x)", "def helper(x): return x", "def helper(x): return -x"),
        ("part = make(S)", f"{MAKE}\nS = 1.0", f"{MAKE}\nS = 2.0"),
    ],
)  # fmt: skip
def test_what_the_code_reads_by_name_counts(part: str, one: str, two: str) -> None:
    digests = [part_code.digest(compiled(f"{each}\n{part}")) for each in (one, one, two)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("part", "one", "two"),
    [
        ("def part(x): return x + 1", "SCALE = 1", "SCALE = 2"),
        ("def part(x): return x.scale", "scale = 1", "scale = 2"),
        ("def part(x):\n global calls\n calls += 1\n return x", "calls = 0", "calls = 7"),
        ("def part(x): seen.append(x)", "seen = []", "seen = [1]\nseen.append(seen)"),
        ("def part(x): return json.dumps(x)", "import json", "import json; json.calls = 1"),
    ],
)
def test_what_it_does_not_read_so_does_not_count(part: str, one: str, two: str) -> None:
    digests = [part_code.digest(compiled(f"{each}\n{part}")) for each in (one, two)]
    assert digests[0] == digests[1]


HASHING = {
    "a function": "def part(facts):\n    return hash(facts.client)",
    "what it calls": "def seed(text):\n    return hash(text)\ndef part(facts):\n    return seed(facts.client)",
    "inside": "def part(facts):\n    return [hash(each) for each in facts.client]",
    "a method": "class Part:\n    def of(self, facts):\n        return hash(facts.client)\npart = Part()",
    "a lambda": "part = lambda facts: hash(facts.client) % 7",
}

NOT_HASHING = {
    "another name": "def part(facts):\n    return facts.hash",
    "its own": "def hash(text):\n    return len(text)\ndef part(facts):\n    return hash(facts.client)",
    "an argument": "def part(facts, hash=len):\n    return hash(facts.client)",
    "for dictionaries": "class Part:\n    def __hash__(self):\n        return hash('part')\npart = Part()",
}


@pytest.mark.parametrize("source", HASHING.values(), ids=HASHING)
def test_python_s_hash_is_found(source: str) -> None:
    assert part_code.calls_hash(compiled(source))


@pytest.mark.parametrize("source", NOT_HASHING.values(), ids=NOT_HASHING)
def test_other_hashes_are_not(source: str) -> None:
    assert not part_code.calls_hash(compiled(source))


@pytest.mark.parametrize(("seed", "said"), [(None, 1), ("random", 1), ("0", 0)])
def test_a_run_says_that_hashes_of_texts_differ_from_process_to_process(
    seed: str | None,
    said: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    experiment: Make,
    dataset: raysim.FederatedDataset,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    weighting = compiled("def part(facts):\n    return 1 + hash(facts.client) % 5")
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", progress=False, weighting=weighting)
    assert sum("weighting= calls hash()" in each for each in caplog.messages) == said


def test_functions_that_read_each_other_have_a_digest() -> None:
    both = "def other(x): return part(x - 1)\ndef part(x): return x and other(x)"
    assert part_code.digest(compiled(both)) == part_code.digest(compiled(both))


def test_what_is_installed_does_not_count() -> None:
    assert part_code._with_read([compiled("from json import dumps\ndef part(x): return dumps(x)")])[1:] == []


def test_methods_and_bases_of_a_class_count() -> None:
    base = "class Base:\n    def step(self):\n        return {}\n"
    inherits = "class part(Base):\n    def start(self):\n        return 0"
    digests = [part_code.digest(compiled(base.format(number) + inherits)) for number in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    made = compiled(base.format(1) + inherits)()
    assert part_code.digest(made) == digests[0]
    assert part_code.digest([functools.partial(made.step)]) is not None


def test_what_a_partial_presets_counts() -> None:
    part = compiled("def part(at, scale=1.0, name=''):\n    return scale")
    presets: list[dict[str, Any]] = [{"scale": 1.0}, {"scale": 1.0}, {"scale": 2.0}, {"name": "a"}]
    one, same, *others = [part_code.digest(functools.partial(part, **preset)) for preset in presets]
    assert one == same
    assert len({one, part_code.digest(part), *others}) == 4
    nested = [part_code.digest([functools.partial(functools.partial(part, scale=each), 1)]) for each in (1.0, 2.0)]
    assert nested[0] != nested[1]
    # An object has no text that stays.
    held = [functools.partial(part, object()) for _ in range(2)]
    assert part_code.digest(held[0]) == part_code.digest(held[1])


@pytest.mark.parametrize(
    "source",
    [
        "def part(x, *, scale={}):\n    return x * scale",
        "def part(x, scales=(1.0, {})):\n    return x * scales[1]",
        "class Part:\n    def __init__(self, a): self.a = a\n    def __call__(self, x): return x\npart = Part({})",
        "class Part:\n    def __init__(self, a): self.a = a\n    def of(self, x): return x\npart = Part({}).of",
        "import functools\ndef f(x, scale): return x\ng = functools.partial(f, scale={})\ndef part(x): return g(x)",
        "import functools\ndef f(x, act): return act(x)\npart = functools.partial(f, act=lambda x: x * {})",
    ],
    ids=[
        "keyword-only default",
        "default tuple",
        "object",
        "method",
        "partial that is read",
        "function that is preset",
    ],
)
def test_what_a_part_holds_counts(source: str) -> None:
    """Numbers given when it was made or defined, however the script hands them over."""
    one, same, two = (part_code.digest(compiled(source.replace("{}", number))) for number in ("1.5", "1.5", "2.5"))
    assert one == same
    assert one is not None
    assert two is not None
    assert part_code.differs(one, two)


def test_what_an_object_changes_itself_does_not_count() -> None:
    counts = "class Part:\n    def __init__(self): self.calls = 0\n    def __call__(self, x): self.calls += 1"
    fresh, called = (compiled(f"{counts}\npart = Part()") for _ in range(2))
    called(1.0)
    assert part_code.digest(fresh) == part_code.digest(called)


def test_what_is_not_the_scripts_has_no_digest() -> None:
    assert part_code.digest(torch.nn.Linear(1, 1)) is None
    assert part_code.digest(torch.relu) is None
    assert part_code.digest(3) is None


def test_a_run_that_goes_on_with_other_code_says_so(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def weighting(scale: float) -> Any:
        if scale == 1.0:
            return lambda at: at.examples
        return lambda at: 2 * at.examples

    raysim.run(experiment(), dataset=dataset, weighting=weighting(1.0), path=tmp_path / "run")
    longer = experiment().changed({"rounds": experiment().rounds + 1})
    raysim.run(longer, dataset=dataset, weighting=weighting(1.0), path=tmp_path / "run", resume=True)
    assert "other code" not in caplog.text
    longer = longer.changed({"rounds": longer.rounds + 1})
    raysim.run(longer, dataset=dataset, weighting=weighting(2.0), path=tmp_path / "run", resume=True)
    assert f"weighting= has other code than when the run of {tmp_path / 'run'} began" in caplog.text
