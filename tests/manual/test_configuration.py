"""The configuration reference says everything, and what it says is so."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import Field, NonNegativeFloat, PositiveInt

import raysim
import tuning
from manual import configuration, examples
from raysim import Section
from raysim.config import kinds
from raysim.data.sources.newsgroups import Newsgroups
from raysim.experiment import keys


def test_every_key_has_a_description_and_an_example() -> None:
    # Write Field(description="..."), and Field(examples=[...]) where no value is found.
    assert configuration.missing() == []


def test_the_default_of_a_table_has_the_keys_that_are_not_the_tables_own_defaults() -> None:
    words = Newsgroups.model_fields["tokens"]
    assert keys.default(words) == "default `words` with `length = 300`"
    assert keys.default(raysim.Experiment.model_fields["client"]) == "default: its keys' defaults"


@pytest.mark.parametrize("record", [raysim.Experiment, tuning.TuningSection])
def test_the_json_schema_describes_every_table_and_every_key(record: type[Section]) -> None:
    schema = record.model_json_schema()
    for title, table in {"": schema, **schema["$defs"]}.items():
        assert table["description"], title
        # The name of a choice is described by its table. (Pydantic drops a description that repeats its table's.)
        keys = {key: value for key, value in table["properties"].items() if "const" not in value}
        assert all(value.get("description", "").endswith(".") for value in keys.values()), (title, keys)


def test_every_section_has_its_place() -> None:
    tables = list(configuration.described())
    sections = [section for table in tables for section in table.sections]
    assert len(sections) == len(set(sections))
    # All that the schema holds: a section that is gained is described without more ado.
    defined = raysim.Experiment.model_json_schema(by_alias=True)["$defs"]
    assert {name.rpartition("__")[2] for name in defined} <= {section.__name__ for section in sections}


def test_the_page_is_as_the_schema_is() -> None:
    said = "python -m manual.configuration writes the page anew"
    assert configuration.PAGE.read_text(encoding="utf-8") == configuration.page(), said


def test_every_example_is_toml_that_its_key_takes() -> None:
    for table in configuration.described():
        for section in table.sections:
            for key, field, _ in keys.keys(section, configuration.ELSEWHERE):
                value = examples.example(f"{table.path}.{key}", None, field, examples.used_in_configs())
                if value is not None and not isinstance(value, Section):
                    read = tomllib.loads(f"{key} = {kinds.toml(value)}")[key]
                    assert examples.takes(field, read), f"{table.path}.{key} = {read}"


def test_links_lead_to_headings() -> None:
    page = configuration.page()
    headings = [configuration.anchor(heading) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
    assert len(headings) == len(set(headings))
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= set(headings)


def test_a_key_is_said_in_one_piece() -> None:
    page = configuration.page()
    key = "- **`lr`**: Server learning rate.\n  A number in [0, 1e6]; default `0.01`; such as `lr = 0.01`.\n"
    assert page.count(key) == 5  # adagrad, adam, yogi, lars, lamb
    assert "### `server.optimizer` = `sgd`\n\nServer SGD, which is FedAvg: x <- x - lr f g." in page


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
        (Annotated[tuple[int, ...], Field(max_length=10_000)], "a list of at most 10_000, each a whole number"),
        (Annotated[tuple[str, ...], Field(min_length=1, max_length=9)], "a list of 1 to 9, each a text"),
        (Annotated[str, Field(max_length=100)], "a text of at most 100 characters"),
        (Annotated[int, Field(ge=-(2**63), lt=2**63)], "a whole number of 64 bits"),
        (Annotated[float, Field(ge=1e-12, le=1e12)], "a number in [1e-12, 1e12]"),
        (tuple[int, str], "a list: a whole number, then a text"),
        (dict[str, int], "a table"),
    ],
)
def test_what_a_key_takes_is_said_in_words(annotation: object, said: str) -> None:
    assert kinds.takes(annotation) == said
