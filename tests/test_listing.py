"""`raysim parts`: the listing is what the schema allows, and is read without importing what it lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args

import pytest

import raysim
from raysim.config import listing, part, section_source
from raysim.config.section import Section
from tests.support.command import Raysim, python
from tests.support.packages import install_example, installed_here, write_package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("installed"))


def names(annotation: Any) -> Iterator[str]:
    """All names that an annotation of the schema allows, by what pydantic made of it."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield from get_args(annotation.model_fields["name"].annotation)
    for each in get_args(annotation):
        yield from [each] if isinstance(each, str) else names(each)


@pytest.mark.parametrize("kind", listing.ALL)
def test_the_listing_has_the_choices_of_the_schema(kind: str) -> None:
    section, key, dotted = listing.ALL[kind]
    table = dotted.removesuffix(key).removesuffix(".")
    home: Any = getattr(import_module(section.module), section.name)
    assert home is (cast(Any, raysim.Experiment.model_fields[table].annotation) if table else raysim.Experiment)
    listed = [each for each in listing.parts("1") if each.kind == kind and each.package == "raysim"]
    allowed = list(dict.fromkeys(names(home.model_fields[key].annotation)))
    assert [each.name for each in listed] == [name for name in allowed if name != "own"]
    assert all(each.summary for each in listed)


def test_every_kind_of_part_is_listed() -> None:
    assert tuple(kind for kind in listing.KEYS if listing.KEYWORDS.get(kind, kind)) == get_args(part.Kind)
    sources = {each.name: each.source for each in listing.parts("1") if each.kind == "correction"}
    assert sources["scaffold_m"] == "Varno et al. (2022), algorithm 2"
    assert all(sources.values())


def test_each_word_of_a_key_has_its_own_summary() -> None:
    said = {each.name: each.summary for each in listing.parts("1") if each.kind == "weighting"}
    assert said == {
        "examples": "A client's weight p_i: the number of its training examples.",
        "uniform": "A client's weight p_i: the same for all.",
        "ida": "A client's weight p_i: its inverse distance from the mean.",
    }


def test_a_kind_without_parts_says_so(command: Raysim) -> None:
    assert command("parts", "--kind", "objective") == 0
    assert command.out == (
        "objective: client.objective, or objective= of a script\n  (none of raysim's or of an installed package)\n"
    )


def test_the_command_imports_no_torch() -> None:
    code = "import sys\nfrom raysim.cli import app\napp(standalone_mode=False)\nprint('torch' in sys.modules)"
    done = python("-c", code, "parts", "--kind", "correction")
    *listed, imported = done.stdout.splitlines()
    assert imported == "False"
    assert listed[0] == "correction: client.correction, or correction= of a script"
    assert listed[1].split()[:2] == ["prox", "raysim"]
    assert listed[1].endswith("FedProx. [Li et al. (2020), equation 2]")


def test_a_package_s_parts_are_listed_without_importing_it(site: Path, tmp_path: Path) -> None:
    with installed_here(site):
        theirs = [each for each in listing.parts("1") if each.package == "example-parts"]
        assert not [name for name in sys.modules if name.startswith("example_parts")]
    assert [(each.kind, each.name) for each in theirs] == [
        ("correction", "theirs"),
        ("client_optimizer", "signed"),
        ("server_optimizer", "halving"),
        ("metric", "top_k"),
    ]
    version, summary, source = "1.2", "A pull of one's own strength.", "Li et al. (2020), algorithm 2"
    assert theirs[0] == listing.ListedPart("correction", "theirs", "example-parts", version, source, summary)
    assert theirs[2].source == ""


COMPUTED = """
'''Parts that a loop makes.

Source: Nobody (2031), theorem 3.
'''
import raysim
from typing import Literal
class Mine(raysim.Section):
    '''Made by a loop.'''
    name: Literal["mine"] = "mine"
parts = [raysim.Part("correction", "mine", Mine, lambda section: raysim.Correction())]
PART = parts[0]
"""


def test_what_the_source_does_not_say_is_imported_and_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    write_package(tmp_path, "computed", COMPUTED)
    write_package(tmp_path, "broken", "import nothing_of_that_name")
    with installed_here(tmp_path):
        listed = {each.package: each for each in listing.parts("1") if each.package != "raysim"}
    assert listed["computed"] == listing.ListedPart(
        "correction", "mine", "computed", "1.0", "Nobody (2031), theorem 3", "Made by a loop."
    )
    assert listed["broken"].kind == ""
    assert "broken:PART of the package broken cannot be imported: ModuleNotFoundError" in listed["broken"].problem


def test_owners_of_one_name_are_told(site: Path, tmp_path: Path, command: Raysim) -> None:
    for package, name in (("twin", "theirs"), ("bold", "prox")):
        code = COMPUTED.replace("mine", name).replace("parts = [", "PART = ").replace("())]", "())")
        write_package(tmp_path, package, code.replace("PART = parts[0]", ""))
    with installed_here(site, tmp_path):
        assert command("parts", "--json") == 0
    problems = {(each["package"], each["name"]): each["problem"] for each in json.loads(command.out) if each["problem"]}
    assert problems == {
        ("raysim", "prox"): "bold has one of that name too: uninstall one of them",
        ("bold", "prox"): "raysim has one of that name too: uninstall one of them",
        ("example-parts", "theirs"): "twin has one of that name too: uninstall one of them",
        ("twin", "theirs"): "example-parts has one of that name too: uninstall one of them",
    }


def test_a_kind_that_there_is_none_of_is_refused(command: Raysim) -> None:
    assert command("parts", "--kind", "corection") == 2
    assert "but got 'corection' (did you mean 'correction'?)" in command.err


@pytest.fixture
def command(tmp_path: Path) -> Raysim:
    return Raysim(tmp_path)


def test_a_key_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"ClientSection of raysim.client.section has no key 'corection'"):
        section_source.choices(section_source.Named("raysim.client.section", "ClientSection"), "corection")
