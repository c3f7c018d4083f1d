"""The experiment: frozen, complete, and clear about what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.client.optimizers.adam import ClientAdam
from raysim.config import toml
from raysim.experiment import sweep

MINIMAL: dict[str, Any] = {"cohort": {"size": 8}}


def test_json_gives_the_experiment_back() -> None:
    exp = raysim.Experiment.model_validate({**MINIMAL, "data": {"name": "digits", "clients": 10}})
    assert raysim.Experiment.model_validate(json.loads(exp.to_json())) == exp


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cohrt": {}}, r"unknown key 'cohrt'.*did you mean 'cohort'"),
        (
            {"server": {"optimizer": {"name": "sgd", "beta1": 0.9}}},
            r"unknown key 'server.optimizer.beta1': \[server.optimizer\] with name = 'sgd' takes name, lr",
        ),
        ({"composite": {"strength": 0.1}}, r"^composite.penalty must be given: one of l1, l2_ball$"),
        ({"composite": {"name": "l1", "strength": 0.1}}, r"\[composite\] with penalty = 'l1' takes penalty, strength"),
        ({"composite": {"penalty": "l3"}}, r"^composite.penalty must be one of l1, l2_ball, but got 'l3'"),
        ({"composite": {"penalty": "l1", "radius": 1.0, "strength": 1.0}}, "with penalty = 'l2_ball' has it"),
        ({"composite": "l1"}, r"\(composite.penalty = 'l1' chooses it\)$"),
        ({"composite": "l3"}, r"\(composite.penalty is one of l1, l2_ball"),
        ({"server": {"optimizer": {"name": "sgdd"}}}, "server.optimizer.name must be one of sgd, .*, but got 'sgdd'"),
        ({"model": {"name": "mpl"}}, r"model.name must be one of .*but got 'mpl' \(did you mean 'mlp'\?\)"),
        ({"model": {"hidden": [3]}}, r"^model.name must be given: one of linear, mlp, [\w, ]+$"),
        (
            {"data": {"source": "digits", "clients": 2}},
            r"^data.name must be given: one of digits, .*\(did you mean data.name in place of data.source\?\)$",
        ),
        ({"rounds": "many"}, "rounds must be an integer, but got 'many'"),
        ({"rounds": 0}, "rounds must be greater than or equal to 1, but got 0"),
        ({"name": "my run"}, "^name must be letters, digits, .* beginning with a letter or a digit, but got 'my run'$"),
        (
            {"evaluation": {"metrics": ["f1"]}},
            r"^evaluation.metrics must be 'own', .* passes as a keyword, or the name of a package's part, but got 'f1'",
        ),
        ({"cohort": {}}, "size must be given with the uniform sampler"),
        ({"cohort": {"size": 1, "sampler": {"name": "replay", "cohorts": [["a"]]}}}, "size must be absent"),
        ({"client": {"epochs": 1, "local_steps": 2}}, "remove one"),
        (
            {"client": {"accumulate": 2, "personalisation": {"name": "apfl", "alpha": 0.5}}},
            "'apfl' takes several: remove one",
        ),
        ({"client": {"accumulate": 2, "objective": {"name": "own"}}}, "an objective may look at the whole one"),
        ({"client": {"batch_size": "ful"}}, "client.batch_size must be an integer or 'full', but got 'ful'"),
        ({"client": {"optimizer": {"name": "sgd", "lr": float("nan")}}}, "client.optimizer.lr must be a finite number"),
        ({"engine": {"dtype": "float16"}}, "engine.dtype must be 'float32' or 'float64', but got 'float16'"),
        (
            {"data": {"name": "digits", "clients": 2, "partition": {"name": "shards", "alpha": 1}}},
            "with name = 'shards'",
        ),
        ({"evaluation": {"percentiles": [101]}}, "percentiles"),
        # A key that takes a number or a table: what is wrong is said of what was written, once.
        ({"client": {"epochs": 0}}, "^client.epochs must be greater than or equal to 1 or a table, but got 0$"),
        (
            {"client": {"epochs": {"low": 0, "high": 2}}},
            "^client.epochs.low must be greater than or equal to 1, but got 0$",
        ),
        (
            {"client": {"epochs": {"low": 3, "high": 2}}},
            "^client.epochs: low <= high must hold, but got .low=3, high=2.$",
        ),
        (
            {"server": {"lr_schedule": "cosine"}},
            r"^server.lr_schedule must be a table, but got 'cosine' \(server.lr_schedule.name = 'cosine' chooses it\)$",
        ),
        # A value in the place of a table: the key that was meant, if it is clear, and those that there are.
        (
            {"cohort": 10},
            r"^cohort must be a table, but got 10 \(did you mean cohort.size = 10\? \[cohort\] takes size, ",
        ),
        (
            {"stop": {"target": 0.9}},
            r"\(did you mean stop.target.value = 0.9\? \[stop.target\] takes metric, .*, and needs metric\)$",
        ),
        ({"evaluation": "val"}, r'\(did you mean evaluation.split = "val"\? \[evaluation\] takes every, '),
        (
            {"server": {"optimizer": 0.1}},
            r"\(did you mean server.optimizer.lr = 0.1\? \[server.optimizer\] takes lr\)",
        ),
        ({"client": 5}, r"^client must be a table, but got 5 \(\[client\] takes optimizer, "),
        ({"client": {"correction": 0.1}}, r"\(client.correction.name is one of prox, scaffold, "),
        (
            {"data": {"name": "digits", "clients": 2, "partition": "dirichelt"}},
            r"\(data.partition.name is one of iid, .* \(did you mean 'dirichlet'\?\)\)$",
        ),
        # A constant of a script's part, within a table or a list.
        (
            {"server": {"optimizer": {"name": "own", "constants": {"mu": [1]}}}},
            r"^server.optimizer.constants.mu must be true or false or an integer or .*, but got \[1\]$",
        ),
        (
            {"client": {"transform": {"name": "own", "constants": {"noise": [1], "k": 1}}}},
            r"^client.transform\[0\].constants.noise must be true or false or an integer or .*, but got \[1\]$",
        ),
        (
            {"client": {"transform": {"name": "own", "labl": "a"}}},
            r"^unknown key 'client.transform\[0\].labl': .* takes name, label, constants \(did you mean 'label'\?\)$",
        ),
        # A table in the place of a value.
        ({"rounds": {"count": 3}}, r"^rounds must be an integer, but got {'count': 3} \(rounds = 3 needs no table\)$"),
        ({"rounds": {"count": "3"}}, r"^rounds must be an integer, but got {'count': '3'}$"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.Experiment.model_validate({**MINIMAL, **wrong})
    # Called with tables, the class says the same.
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.Experiment(**{**MINIMAL, **wrong})


def test_an_experiment_is_made_of_tables_too() -> None:
    assert raysim.Experiment(**MINIMAL) == raysim.Experiment.model_validate(MINIMAL)


def test_an_experiment_cannot_be_changed() -> None:
    exp = raysim.Experiment.model_validate(MINIMAL)
    with pytest.raises(ValueError, match="cannot be assigned"):
        exp.rounds = 3  # type: ignore[misc]


def test_the_advice_on_an_assignment_names_the_key_of_an_attribute_of_another_name() -> None:
    delays = {"systems": {"time": {"name": "straggler", "alpha": 1.0, "lambda": 2.0}}}
    exp = raysim.Experiment.model_validate({**MINIMAL, **delays})
    assert exp.systems is not None
    time: Any = exp.systems.time
    assert time.delay == 2.0
    with pytest.raises(ValueError, match=r"experiment\.changed\(\{'TABLE\.lambda': 3\}\)"):
        time.delay = 3
    assert exp.changed({"systems.time.lambda": 3}).systems.time.delay == 3  # type: ignore[union-attr]


FILE = """
rounds = 7
[data]
name = "digits"
clients = 10
[model]
name = "mlp"
hidden = [5]
[cohort]
size = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(FILE)
    return path


def test_overrides_are_toml_values(file: Path) -> None:
    exp = raysim.load(file, ["client.optimizer.lr=0.5", "model.hidden=[3, 4]", "name=another", "client.shuffle=false"])
    assert exp.client.optimizer.lr == 0.5
    assert exp.model is not None
    assert exp.model.model_dump()["hidden"] == (3, 4)
    assert (exp.name, exp.client.shuffle) == ("another", False)


@pytest.mark.parametrize("key", ['"client"."optimizer".lr', 'client."optimizer".lr', "client . 'optimizer' . \"lr\""])
def test_parts_of_a_key_may_have_quotation_marks(key: str, file: Path) -> None:
    assert raysim.load(file, [f"{key}=0.5"]).client.optimizer.lr == 0.5
    assert raysim.load(file, [f"{key} = 0.5"]).client.optimizer.lr == 0.5
    assert raysim.load(file, [f"{key}=0.5"]) == raysim.load(file, ["client.optimizer.lr=0.5"])
    assert sweep.parse([f"{key}=0.5,1"]) == {"client.optimizer.lr": [0.5, 1]}


def test_a_key_to_remove_may_have_quotation_marks(file: Path) -> None:
    assert raysim.load(file, unset=["'model'.\"hidden\""]) == raysim.load(file, unset=["model.hidden"])


def test_a_quoted_part_may_have_what_divides_keys(file: Path) -> None:
    space = "{grid = [0.1, 1.0]}"
    changed = raysim.load(file, [f'tuning.space."client.optimizer.lr"={space}', 'tuning.space."a=b"=3'])
    assert changed.tuning is not None
    assert changed.tuning["space"] == {"client.optimizer.lr": {"grid": [0.1, 1.0]}, "a=b": 3}


@pytest.mark.parametrize(
    "change", ['"client".optimizer".lr=1', 'client"."lr=1', "'client.lr=1", '"client" "lr"=1', '"".lr=1']
)
def test_a_key_with_other_quotation_marks_is_refused_as_one(change: str, file: Path) -> None:
    with pytest.raises(
        raysim.ExperimentError, match=r"is not a key of TOML: .*|has the form key\.key=value"
    ) as refused:
        raysim.load(file, [change])
    assert "did you mean" not in str(refused.value)


def test_overriding_a_name_drops_the_keys_of_the_choice_it_replaces(file: Path) -> None:
    assert raysim.load(file, ["model.name=linear"]).model is not None
    with pytest.raises(raysim.ExperimentError, match=r"model.hidden.*with name = 'linear'"):
        raysim.load(file, ["model.name=linear", "model.hidden=[3]"])
    kept = raysim.load(file, ["model.name=mlp"]).model
    assert kept is not None
    assert kept.model_dump()["hidden"] == (5,)


def test_a_changed_name_says_which_keys_of_the_file_it_drops(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    raysim.load(file, ["rounds=2", "model.name=mlp", "server.optimizer.name=adam"])
    assert not caplog.messages
    raysim.load(file, ["model.name=linear"], unset=["rounds"])
    assert caplog.messages == [
        f"model.name was changed, which drops the keys of the former choice: model.hidden of {file}"
    ]


def test_a_table_as_a_value_says_which_keys_of_the_file_it_drops(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    raysim.load(file, ["model={name='mlp',hidden=[3],activation='tanh'}"])
    assert not caplog.messages
    raysim.load(file, ["model={name='mlp',activation='tanh'}"])
    assert caplog.messages == [f"model was replaced whole, which drops: model.hidden of {file}"]


@pytest.mark.parametrize("change", ["rounds=3\nseed=4", "rounds=3\n[cohort]\nsize=1"])
def test_a_change_of_several_lines_loses_none(change: str, file: Path) -> None:
    with pytest.raises(raysim.ExperimentError, match="rounds must be an integer, but got '3"):
        raysim.load(file, [change])


@pytest.mark.parametrize("last", [False, True])
def test_the_values_of_a_mapping_have_no_order(last: bool, file: Path) -> None:
    given = {"server.optimizer.lr": 0.25, "server.optimizer": {"name": "sgd"}, "server.optimizer.name": "adam"}
    one = raysim.load(file).changed(dict(sorted(given.items(), reverse=last)))
    assert (one.server.optimizer.name, one.server.optimizer.lr) == ("adam", 0.25)


def test_a_text_is_one_change(file: Path) -> None:
    assert raysim.load(file, "rounds=7").rounds == 7


def test_unset_removes_a_key(file: Path) -> None:
    assert raysim.load(file, unset=["rounds"]).rounds == raysim.Experiment.model_fields["rounds"].default
    with pytest.raises(raysim.ExperimentError, match="no key 'round' to remove"):
        raysim.load(file, unset=["round"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds", "has the form key.key=value"),
        ('server.optimizer={name = "sgd" lr = 0.1}', "is not TOML: a table is"),
        ("rounds.x=1", "goes through rounds, which is a value"),
        ("cohort.siz=1", r"unknown key 'cohort.siz'.*did you mean 'size'"),
    ],
)
def test_a_change_that_cannot_be_made_is_an_error(file: Path, change: str, message: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.load(file, [change])


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"no experiment file .*nowhere.toml"):
        raysim.load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(raysim.ExperimentError, match=r"bad.toml is not valid TOML"):
        raysim.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("line", "remedy", "mark"),
    [
        ('optimizer = { name = "sgd" lr = 0.1 }', r"has commas between its entries", "lr = 0.1 }"),
        ("vary = [1 2]", r"a list has commas between its values and ends with \]", "2]"),
        ("optimizer = { name = adam, lr = 0.1 }", r'texts are quoted: name = "adam"$', "adam,"),
        ('root = ["a", b]', r'texts are quoted: "b"$', "b]"),
        ("root = C:\\data", r"texts are quoted: root = 'C:\\data'$", "C:"),
        ('root = "C:\\data"', r"single quotation marks, 'C:\\data', or two of each", "ata"),
        ("weight = True", r"small letters: weight = true$", "True"),
        ("lr = -.5", r"a digit before its point: lr = -0.5$", "-.5"),
        ("lr =", r"a value is missing here$", ""),
        ("lr = none # yet", r"texts are quoted: lr = \"none\"$", "none"),
        ("lr = None", r"a key without a value is left out$", "None"),
        ("batch size = 3", r"a key has no blanks$", "size"),
        ("[client", r"a table's heading has brackets", ""),
        ("lr = 0.1 0.2", r"a line of their own", "0.2"),
        ('name = "a', r"ends with its quotation mark", '"a'),
        ("name = 'it's'", r"double quotation marks around it$", "s'"),
        ("seed = 5", r"this key is there twice$", ""),
        ("lr = = 3", r": a value is a number", "= 3"),
        ('root = "C:\\users"', r"single quotation marks, 'C:\\data', or two of each", "sers"),
        ('root = "C:\\Users"', r"single quotation marks, 'C:\\data', or two of each", "sers"),
        ("root = \u201ca\u201d", r"LEFT DOUBLE QUOTATION MARK \(U\+201C\) is not a quotation mark", "\u201ca"),
        ("lr = \u22121", r"MINUS SIGN \(U\+2212\) is not a minus", "\u22121"),
        ('{"seed": 1}', r"a line is key = value, or a heading", "{"),
        ("[[client]", r"two brackets on either side$", "]"),
        ("a = {b = 1, b = 2}", r"this key is there twice$", "}"),
        ("day = 2026-02-31", r"year-month-day", "2026"),
    ],
)
def test_what_is_no_toml_is_shown_with_a_remedy(line: str, remedy: str, mark: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(f"seed = 1\n{line}\n", encoding="utf-8")
    with pytest.raises(raysim.ExperimentError) as raised:
        raysim.load(file)
    said, shown, below = str(raised.value).split("\n")
    assert "(at line 2, column " in said
    assert re.search(remedy, said)
    assert shown == f"  {line}"
    at = below.index("^")
    assert shown[at:].startswith(mark)
    assert mark or at >= len(shown.rstrip())


def test_a_list_that_does_not_end_is_marked_at_the_last_line_and_a_long_line_is_shown_in_part(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("seed = [1,\n2,\n\n", encoding="utf-8")
    with pytest.raises(raysim.ExperimentError, match=r"end of document.*\n  2,\n    \^$"):
        raysim.load(file)
    file.write_text(f"seed = [{'1, ' * 500}x]", encoding="utf-8")
    with pytest.raises(raysim.ExperimentError, match=r"quoted: \"x\"\n  (1?, )+.*x\]\n {62}\^$"):
        raysim.load(file)


@pytest.mark.parametrize(
    ("before", "columns"),
    [("a", 1), ("日本", 4), ("e\u0301", 1), ("😀", 2), ("\uff37", 2), ("\t", 1), ("❤\ufe0f", 1), ("한", 2), ("é", 1)],
)
def test_the_mark_is_below_the_place_behind_letters_of_any_width(before: str, columns: int) -> None:
    with pytest.raises(toml.TomlError) as raised:
        toml.loads(f'name = "{before}" !')
    _, _, below = str(raised.value).split("\n")
    assert below == " " * (2 + len('name = "" ') + columns) + "^"


def test_a_text_that_does_not_end_in_the_file_is_marked_at_its_beginning() -> None:
    for mark in ("'", "'''", '"""'):
        with pytest.raises(toml.TomlError) as raised:
            toml.loads(f"seed = 1\nname = {mark}abc\nrounds = 3\n")
        assert str(raised.value).endswith(f"\n  name = {mark}abc\n         ^")


@given(st.data())
def test_whatever_is_wrong_with_a_document_has_a_remedy(data: st.DataObject) -> None:
    lines = ["seed = 1", 'name = "a"', "[client]", "optimizer = { lr = 0.1 }", "x = [1, 2]", "[[a.b]]", "c = 'd'"]
    text = "\n".join(data.draw(st.permutations(lines)))
    at, gone = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 4))
    odd = data.draw(st.text(alphabet=" \t\n\r\\ux\"'[]{}=.,#0a1_-+é日“\u00a0\ufeff\x00\x1b:TZ", max_size=4))
    text = text[:at] + odd + text[at + gone :]
    try:
        toml.loads(text)
    except toml.TomlError as error:
        first, line, mark = str(error).split("\n")
        assert re.search(r" \(at (line \d+, column \d+|end of document)\): .", first)
        assert mark.strip() == "^"
        assert (line + mark).isprintable()


def test_a_file_that_begins_with_the_mark_of_utf_8_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(FILE, encoding="utf-8-sig")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    assert raysim.load(file).rounds == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rounds = 3\n".encode("utf-16"), r"text in UTF-16LE, but TOML is text in UTF-8: .*iconv -f UTF-16LE -t UTF-8"),
        ("rounds = 3\n".encode("utf-16-le"), r"text in UTF-16LE"),
        ("# über\nrounds = 3\n".encode("utf-16-be"), r"text in UTF-16BE"),
        ("rounds = 3\n".encode("utf-32"), r"text in UTF-32LE"),
        ("rounds = 3\n".encode("utf-32-be"), r"text in UTF-32BE"),
        (b"rounds = 3\nseed\0 = 1", r"a byte 0 in line 2, .* not text, or damaged"),
        (bytes(500), r"a byte 0 in line 1"),
        (
            "rounds = 3\nname = 'é'".encode("latin-1"),
            r"not text in UTF-8: line 2 has the byte 0xe9 .*iconv -f ISO-8859-1",
        ),
    ],
)
def test_a_file_in_another_encoding_is_named_with_what_to_do(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(raysim.ExperimentError, match=rf"^{re.escape(str(file))} is not valid TOML: it .*{message}"):
        raysim.load(file)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 10**30, object(), [1.0, float("nan")]])
def test_a_change_that_no_file_could_hold_names_its_key(odd: object, file: Path) -> None:
    changes: list[Callable[[], object]] = [
        lambda: raysim.load(file, {"client.optimizer.lr": odd}),
        lambda: raysim.load(file, {"client.optimizer": {"lr": odd}}),
        lambda: raysim.load(file).changed({"client.optimizer.lr": odd}),
    ]
    for change in changes:
        with pytest.raises(raysim.ExperimentError, match=r"^client\.optimizer\.lr(\[1\])? must be a "):
            change()


def test_a_name_that_reads_as_no_finite_number_needs_quotes(file: Path) -> None:
    with pytest.raises(raysim.ExperimentError, match=r'^name must be a finite number, .* a text is "nan"'):
        raysim.load(file, ["name=nan"])
    assert raysim.load(file, ['name="nan"']).name == "nan"


@pytest.mark.parametrize("written", ["nan", "inf", "-inf", "+inf", "[nan]", "99999999999999999999"])
def test_a_change_as_a_text_that_is_no_finite_number_names_its_key(written: str, file: Path) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"^client\.optimizer\.lr(\[0\])? must be a "):
        raysim.load(file, [f"client.optimizer.lr={written}"])


@pytest.mark.parametrize("key", [1, None, "", "client..lr", ("a",)])
def test_a_key_that_is_none_is_named(key: Any, file: Path) -> None:
    changes: list[Callable[[], object]] = [
        lambda: raysim.load(file, {key: 1}),
        lambda: raysim.load(file, unset=[key]),
    ]
    for change in changes:
        with pytest.raises(raysim.ExperimentError, match=r"^A key is a text such as 'client.optimizer.lr', but got "):
            change()


@pytest.mark.parametrize("placement", ["engine.workers=3", "engine.cpus_per_worker=0.5", "name=b", "rounds=9"])
def test_the_fingerprint_leaves_placement_and_names_out(file: Path, placement: str) -> None:
    assert raysim.load(file, [placement]).fingerprint("data") == raysim.load(file).fingerprint("data")


@pytest.mark.parametrize(
    "numbers",
    [
        *("seed=1", "engine.threads=2", "client.optimizer.lr=0.3", "engine.dtype=float64"),
        # Fair weights are of losses, whose last digits depend on it.
        "evaluation.batch_size=3",
    ],
)
def test_the_fingerprint_covers_what_determines_numbers(file: Path, numbers: str) -> None:
    assert raysim.load(file, [numbers]).fingerprint("data") != raysim.load(file).fingerprint("data")
    assert raysim.load(file).fingerprint("other data") != raysim.load(file).fingerprint("data")


def test_changes_by_dotted_keys_are_values_and_no_text(experiment: Callable[..., raysim.Experiment]) -> None:
    changed = experiment().changed({"client.optimizer.lr": 0.25, "server.optimizer": {"name": "adam", "lr": 0.5}})
    assert (changed.client.optimizer.lr, changed.server.optimizer.lr) == (0.25, 0.5)
    with pytest.raises(raysim.ExperimentError, match=r"unknown key 'client\.rate'"):
        experiment().changed({"client.rate": 1})


def test_a_run_takes_no_notice_of_tuning(experiment: Callable[..., raysim.Experiment]) -> None:
    tuned = experiment(tuning={"space": {"client": {"lr": {"grid": [1]}}}})
    assert tuned.fingerprint("data") == experiment().fingerprint("data")
    assert raysim.Experiment.model_validate(json.loads(tuned.to_json())) == tuned


def test_the_former_name_of_the_trainer_is_still_read() -> None:
    former, now = ({"cohort": {"size": 1}, "engine": {name: "fused"}} for name in ("form", "trainer"))
    assert raysim.Experiment.model_validate(former) == raysim.Experiment.model_validate(now)
    with pytest.raises(raysim.ExperimentError, match=r"engine\.form"):
        raysim.Experiment.model_validate({"cohort": {"size": 1}, "engine": {"form": "fused", "trainer": "fused"}})


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ({"client": {"lr": 0.1}}, "client.optimizer.lr"),
        ({"client": {"learning_rate": 0.1}}, "client.optimizer.lr"),
        ({"drop_last": True}, "client.drop_last"),
        ({"client": {"schedule": [{"round": 1, "rate": 2}]}}, None),
    ],
)
def test_a_key_that_stands_further_below_is_named_with_its_place(given: dict[str, object], there: str | None) -> None:
    with pytest.raises(raysim.ExperimentError, match="unknown key") as caught:
        raysim.Experiment.model_validate({"cohort": {"size": 2}, **given})
    assert str(caught.value).endswith(f"(there is {there})") is (there is not None)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (
            lambda exp: raysim.load({"rounds": 3}),  # type: ignore[arg-type]
            raysim.ExperimentError,
            r"path must be .*: Experiment.model_val",
        ),
        (lambda exp: raysim.load(exp), raysim.ExperimentError, "path must be that of a TOML file, but got "),
        (lambda exp: raysim.load("a.toml", rounds=3), TypeError, r"^load\(\) .*'rounds': .* such as \{\"rounds\": 5\}"),  # type: ignore[call-arg]
        (
            lambda exp: exp.changed(name="a"),
            TypeError,
            r"^changed\(\) .*: changed\(set\) takes a mapping",
        ),
        (
            lambda exp: raysim.Experiment("a.toml"),  # type: ignore[call-arg]
            TypeError,
            r"^Experiment\(\) .*: it takes tables .*; raysim.load\(path\) reads a file",
        ),
        (lambda exp: exp.changed(), TypeError, r"^changed\(\) missing .*'set': changed\(set\) takes a mapping"),
        (lambda exp: exp.changed(5), raysim.ExperimentError, "set must be a mapping of dotted keys, .*, but got 5"),
        (lambda exp: exp.changed([5]), raysim.ExperimentError, "A change has the form key.key=value, but got 5"),
    ],
)
def test_what_load_and_changed_take_is_said(call: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        call(raysim.Experiment.model_validate(MINIMAL))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"rounds": "x"}, "rounds must be .*, but got 'x'"),
        ({"cohrt": {}}, "unknown key 'cohrt'.*did you mean 'cohort'"),
        ({"client.batch_size": 3}, "unknown key 'client.batch_size'"),
        ({"client": {"batch_size": -4}}, "client.batch_size must be .*, but got -4"),
        ({"server": raysim.Experiment.model_validate(MINIMAL).client}, "server"),
    ],
)
def test_a_copy_with_an_update_is_checked_as_the_experiment_was(update: dict[str, Any], message: str) -> None:
    exp = raysim.Experiment.model_validate(MINIMAL)
    with pytest.raises(raysim.ExperimentError, match=message):
        exp.model_copy(update=update)
    with pytest.raises(raysim.ExperimentError, match=message):
        exp.copy(update=update)


def test_a_copy_with_an_update_of_a_table_is_checked() -> None:
    exp = raysim.Experiment.model_validate(MINIMAL)
    with pytest.raises(raysim.ExperimentError, match=r"batch_size must be .*, but got -4"):
        exp.client.model_copy(update={"batch_size": -4})


def test_a_copy_with_an_update_is_as_if_it_had_been_changed() -> None:
    exp = raysim.Experiment.model_validate(
        {**MINIMAL, "client": {"lr_decay": 0.5}, "server": {"lr_scaling": {"warmup": 3, "from": "base"}}}
    )
    client = exp.client.model_copy(update={"batch_size": 7})
    copy = exp.model_copy(update={"client": client, "rounds": 3})
    assert copy == exp.changed({"client.batch_size": 7, "rounds": 3})
    assert copy.said() == exp.changed({"client.batch_size": 7, "rounds": 3}).said()
    assert exp.model_copy() == exp
    # The default weighting is that of the other choices.
    private = {"clip": {}, "privacy": {"name": "gaussian", "noise_multiplier": 1.0}}
    assert exp.model_copy(update={"server": private}).server.weighting == "uniform"


def test_a_choice_that_is_made_by_its_class_is_said_by_its_name() -> None:
    exp = raysim.Experiment(**MINIMAL, client={"optimizer": ClientAdam(lr=0.5)})
    assert isinstance(exp.changed({"rounds": 3}).client.optimizer, ClientAdam)
    assert raysim.Experiment.model_validate(exp.model_dump(exclude_unset=True)) == exp
