"""The configuration reference says everything, and what it says is so."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import Field, NonNegativeFloat, PositiveInt

import raysim
from manual import configuration, examples, kinds, meanings
from raysim import Section


def test_every_key_has_a_meaning_and_an_example() -> None:
    # Write an entry `key: meaning.` in the section's docstring, and Field(examples=[...]) where no value is found.
    assert configuration.unsaid() == []


def test_every_section_has_its_place_and_every_table_of_the_experiment_its_page() -> None:
    tables = list(configuration.described())
    sections = [section for table in tables for section in table.sections]
    assert len(sections) == len(set(sections))
    # All that the schema holds: a section that is gained is described without more ado.
    defined = raysim.Experiment.model_json_schema(by_alias=True)["$defs"]
    assert {name.rpartition("__")[2] for name in defined} <= {section.__name__ for section in sections}
    made = configuration.pages()
    assert {f"{configuration.FOLDER}{table.page}.md" for table in tables} == set(made) - {
        f"{configuration.FOLDER}index.md"
    }


def test_every_example_is_toml_that_its_key_takes() -> None:
    for table in configuration.described():
        for section in table.sections:
            for name, field in section.model_fields.items():
                key = field.alias or name
                value = examples.example(f"{table.path}.{key}", None, field, examples.used_in_configs())
                if value is not None and not isinstance(value, Section):
                    read = tomllib.loads(f"{key} = {kinds.toml(value)}")[key]
                    assert examples.takes(field, read), f"{table.path}.{key} = {read}"


def test_links_lead_to_headings() -> None:
    made = configuration.pages()
    anchors = {path: set(re.findall(r"\{ #(\S+) \}", text)) for path, text in made.items()}
    for path, text in made.items():
        for file, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", text):
            target = f"{configuration.FOLDER}{file}" if file else path
            assert anchor in anchors[target], f"{path} links to {file}#{anchor}"


def test_a_key_is_said_in_one_piece() -> None:
    page = configuration.pages()["reference/configuration/server.md"]
    key = "`lr`\n:   a number ≥ 0; default `0.01`; such as `lr = 0.01`\n\n    the server learning rate.\n"
    assert page.count(key) == 5  # adagrad, adam, yogi, lars, lamb
    assert "### `sgd` { #server-optimizer-sgd }\n\nServer SGD, which is FedAvg: x <- x - lr f g." in page


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int, "a whole number"),
        (PositiveInt, "a whole number ≥ 1"),
        (NonNegativeFloat, "a number ≥ 0"),
        (Annotated[float, Field(gt=0, lt=1)], "a number in (0, 1)"),
        (Annotated[float, Field(le=2)], "a number ≤ 2"),
        (bool, "`true` or `false`"),
        (Literal["a", "b"], '`"a"` or `"b"`'),
        (PositiveInt | Literal["auto"] | None, 'a whole number ≥ 1 or `"auto"`'),
        (tuple[str, ...], "a list, each a text"),
        (Annotated[tuple[int, ...], Field(min_length=2)], "a list of at least 2, each a whole number"),
        (tuple[int, str], "a list: a whole number, then a text"),
        (dict[str, int], "a table"),
    ],
)
def test_what_a_key_takes_is_said_in_words(annotation: object, said: str) -> None:
    assert kinds.takes(annotation) == said


class Base(Section):
    """`alpha`: of the base. beta: likewise."""

    alpha: float = 1
    beta: float = 2


class Derived(Base):
    """Some prose: not of a key.

    gamma, delta (a note): shared,
        over two lines. beta: of its own.

    Source: nobody.
    """

    gamma: float = 3
    delta: float = 4


def test_meanings_are_the_entries_of_docstrings_and_those_of_bases() -> None:
    assert meanings.meanings(Derived) == {
        "alpha": "of the base.",
        "beta": "of its own.",
        "gamma": "shared, over two lines.",
        "delta": "shared, over two lines.",
    }
    assert meanings.prose(Derived) == "Some prose: not of a key.\n\nSource: nobody."
