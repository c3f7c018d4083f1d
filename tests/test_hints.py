"""Errors name what was meant, and what to do; a traceback is in them once."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import Tensor, nn

import raysim
import tuning
from raysim.data import DatasetWriter, Field
from raysim.errors import ClientError, ExperimentError, ModelError
from raysim.testing import ContractError, check_part
from tests.support.run_folders import experiment

NO_EXPERIMENT = r"^experiment must be a raysim\.Experiment, but got 'a\.toml': raysim\.load\(path\) reads one"

CLIENTS = {i: (np.full((6, 4), i, np.float32), np.arange(6) % 2) for i in range(2)}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"engine": {"device": "cuda"}}, r"unknown key 'engine.device': .*\(did you mean 'gpus_per_worker'\?\)"),
        ({"engine": {"devise": "cuda"}}, r"unknown key 'engine.devise': .*\(did you mean 'gpus_per_worker'\?\)"),
        ({"device": "cuda"}, r"unknown key 'device': .*\(there is engine.gpus_per_worker\)"),
        ({"client": {"device": "cuda"}}, r"unknown key 'client.device': .*\(there is engine.gpus_per_worker\)"),
        (
            {"cohort": {"size": 5, "drop_last": True}},
            r"unknown key 'cohort.drop_last': .*\(there is client.drop_last\)",
        ),
        ({"client": {"lr": 0.1}}, r"unknown key 'client.lr': .*\(there is client.optimizer.lr\)"),
    ],
)
def test_a_key_in_another_place_or_by_another_word_is_found(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        experiment(**keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"server": {"optimizer": {"name": "own", "lr": 0.1, "beta": 0.9}}},
            r"\(a constant of a script's part stands in constants = \{ beta = \.\.\. \}\)$",
        ),
        (
            {"model": {"name": "mlp", "lora": True}},
            r"model\.lora must be a table, but got True \(\[model\.lora\] takes r,",
        ),
    ],
)
def test_a_constant_and_a_table_are_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        experiment(**keys)


class Stops(nn.Linear):
    def forward(self, x: Any) -> Any:
        raise AssertionError


class Pair(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x), x


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"loss": nn.CrossEntropyLoss()}, r"but got \(\)\. A loss of torch\.nn does so by reduction='none'\.$"),
        (
            {"loss": nn.CrossEntropyLoss},
            r"but got the class CrossEntropyLoss: pass what it makes, such as CrossEntropyL",
        ),
        ({"model": lambda: Stops(4, 2)}, r"dtype torch\.float32: AssertionError\.$"),
        ({"model": lambda: Pair(4, 2)}, r"it returned tuple\. Wrap it in a module whose forward returns the one"),
    ],
)
def test_what_beginners_pass_is_answered_by_what_to_pass(parts: dict[str, Any], said: str) -> None:
    given = {"model": lambda: nn.Linear(4, 2), **parts}
    data = raysim.FederatedDataset.from_clients(CLIENTS)
    with pytest.raises(ModelError, match=said):
        raysim.rounds(experiment(data=None, model=None, cohort={"size": 2}), dataset=data, executor="local", **given)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("client.correction.name=none", "client.correction"),
        ("client.correction=off", "client.correction"),
        ("client.transform=none", "client.transform"),
        ("server.privacy.name=none", "server.privacy"),
        ("server.privacy=none", "server.privacy"),
    ],
)
def test_a_word_for_nothing_is_answered_by_leaving_the_table_out(change: str, key: str) -> None:
    with pytest.raises(ExperimentError, match=rf"; there is none where {key} is left out \(--unset {key}\)$"):
        experiment().changed([change])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.hidden=64", r"model\.hidden must be a list, but got 64 \(as a list: \[64\]\)$"),
        ("model.freeze=fc1.*", r"must be a list, but got 'fc1\.\*' \(as a list: \[\"fc1\.\*\"\]\)$"),
        ("model.hidden=wide", r"model\.hidden must be a list, but got 'wide'$"),
        ("checkpoint.best=eval/test/acc", r"because its name does not \(did you mean 'eval/test/accuracy'\?\)$"),
        ("checkpoint.best=eval/test/f1", r"because its name does not$"),
    ],
)
def test_a_value_that_is_nearly_right_is_answered_by_the_right_one(change: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        experiment(model={"name": "mlp", "hidden": [4]}).changed([change])


def test_a_key_cannot_be_assigned() -> None:
    exp = experiment()
    with pytest.raises(ExperimentError, match=r"experiment\.changed\(\{'rounds': 5\}\) returns another\.$"):
        exp.rounds = 5  # type: ignore[misc]
    with pytest.raises(
        ExperimentError,
        match=r"experiment\.changed\(\{'TABLE\.epochs': 5\}\) returns another, with the table's name for TABLE\.$",
    ):
        exp.client.epochs = 5  # type: ignore[misc]
    assert exp == experiment()


@pytest.mark.parametrize("change", ["cohort.sampler=none", "client.optimizer.name=none", "client.correction.name=nova"])
def test_a_word_for_nothing_is_no_way_to_leave_out_what_must_be_there(change: str) -> None:
    with pytest.raises(ExperimentError, match="but got") as refused:
        experiment().changed([change])
    assert "left out" not in str(refused.value)


def test_a_name_chooses_a_transform_as_it_does_other_parts() -> None:
    assert experiment().changed(["client.transform=own"]) == experiment().changed(["client.transform.name=own"])
    with pytest.raises(ExperimentError, match=r"^client.transform.name must be 'own', .* but got 'clip'"):
        experiment().changed(["client.transform=clip"])


def trained(module: type[nn.Module] | Any, **client: Any) -> None:
    exp = experiment(
        data=None, model=None, cohort={"size": 2}, client={"optimizer": {"name": "sgd", "lr": 0.1}, **client}
    )
    data = raysim.FederatedDataset.from_clients(CLIENTS)
    list(raysim.rounds(exp, dataset=data, model=module, executor="local"))


def norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_a_batch_of_one_is_answered_by_the_keys_that_avoid_it() -> None:
    with pytest.raises(ClientError, match=r"client\.fill_last_batch = true .* client\.drop_last = true"):
        trained(norm, batch_size=5)
    trained(norm, batch_size=5, fill_last_batch=True)
    trained(norm, batch_size=5, drop_last=True)


def test_a_client_of_one_example_is_answered_where_drop_last_is_set() -> None:
    alone = {"a": (np.zeros((1, 4), np.float32), np.zeros(1, np.int64))}
    exp = experiment(data=None, model=None, cohort={"size": 2}, client={"batch_size": 5, "drop_last": True})
    data = raysim.FederatedDataset.from_clients({**alone, "b": (np.zeros((6, 4), np.float32), np.arange(6) % 2)})
    with pytest.raises(ClientError, match=r"keeps the only batch of a client with one example: leave it out\n"):
        list(raysim.rounds(exp, dataset=data, model=norm, executor="local"))


def test_batches_of_one_example_are_answered_by_their_size() -> None:
    with pytest.raises(ClientError, match=r"batch of one: client\.batch_size must be 2 or more\n"):
        trained(norm, batch_size=1)


@pytest.mark.parametrize(
    ("data", "parts", "said"),
    [
        (np.nan, {}, "The examples of these clients have values that are not finite: mend the data"),
        # Finite as float64, and not as float32.
        (1e300, {}, "The examples of these clients have values that are not finite: mend the data"),
        (1.0, {"loss": lambda outputs, y: outputs.sum(1) * np.inf}, "The loss of the first model is not finite"),
        (1e30, {}, "The run diverges: lower the learning rates"),
    ],
)
def test_rates_are_lowered_only_where_the_first_step_was_finite(
    data: float, parts: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = {i: (np.full((6, 4), data, np.float64), np.arange(6) % 2) for i in range(2)}
    client = {"batch_size": 1, "optimizer": {"name": "sgd", "lr": 1e6}}
    exp = experiment(data=None, model=None, rounds=2, cohort={"size": 2}, client=client)
    federated = raysim.FederatedDataset.from_clients(clients)
    list(raysim.rounds(exp, dataset=federated, model=lambda: nn.Linear(4, 2), executor="local", **parts))
    assert f"every update was rejected, so the model is left as it is. {said}" in caplog.text
    # In the first of these rounds only.
    assert caplog.text.count("every update was rejected") == 2
    assert "rejected 2 updates" not in caplog.text
    assert caplog.text.count(said) == 1


@pytest.mark.parametrize(
    ("evaluation", "test", "warned"),
    [
        ({"every": 2}, None, True),
        ({}, None, False),
        ({"every": 2}, CLIENTS, False),
        ({"every": 2, "split": "train"}, None, False),
    ],
)
def test_an_evaluation_of_no_split_is_said(
    evaluation: dict[str, Any], test: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment(data=None, model={"name": "linear"}, cohort={"size": 2}, rounds=1, evaluation=evaluation)
    data = raysim.FederatedDataset.from_clients(CLIENTS, test)
    list(raysim.rounds(exp, dataset=data, executor="local"))
    said = "evaluation.every = 2, but the data have no test split, so no split is scored: they have train;"
    assert (said in caplog.text) == warned


class Failing(nn.Linear):
    """It fails by its own mistake."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: Any) -> Any:
        if self.training:
            raise KeyError("my own mistake")
        return super().forward(x)


def test_the_traceback_of_a_script_is_printed_once() -> None:
    with pytest.raises(ClientError) as raised:
        trained(Failing, batch_size=5)
    printed = "".join(traceback.format_exception(raised.value))
    assert printed.count('raise KeyError("my own mistake")') == 1
    assert "fill_last_batch" not in printed


@pytest.mark.parametrize(
    ("y", "keys", "warned"),
    [
        ([0.0, 1.0, 2.0], {}, True),
        ([0, 1, 2], {}, False),
        ([0.0, 0.5, 2.0], {}, False),
        ([0.0, 1.0, -2.0], {}, False),
        ([1.0, 1.0, 1.0], {}, False),
        ([0.0, 1.0, 1.0], {"loss": lambda outputs, y: (outputs.flatten() - y) ** 2}, False),
    ],
)
def test_labels_as_real_numbers_are_said_to_make_a_regression(
    y: list[Any], keys: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = raysim.FederatedDataset.from_clients({k: (np.eye(3), np.array(y)) for k in range(4)})
    list(raysim.rounds(experiment(data=None, cohort={"size": 2}), dataset=data, executor="local", **keys))
    said = "y holds whole numbers, but is of float64, which makes this a regression: class labels are integers"
    assert ([record.getMessage() for record in caplog.records] == [said]) == warned


def test_a_function_of_other_arguments_is_told_what_it_is_called_with() -> None:
    data = raysim.FederatedDataset.from_clients(CLIENTS)
    exp = experiment(data=None, model=None, cohort={"size": 2})
    rule = raysim.Coordinatewise(lambda updates: updates.mean(0))  # type: ignore[arg-type, misc]
    with pytest.raises(
        ExperimentError, match=r"^aggregator= .* is called with 2 arguments, which do not fit: "
    ) as said:
        list(raysim.rounds(exp, dataset=data, model=norm, aggregator=rule, executor="local"))
    assert "Traceback" not in str(said.value)


def test_the_layer_that_does_not_fit_is_named() -> None:
    def wrong() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2))

    layer = r"in its layer '1', Linear\(in_features=5, .*\), which was given shape \(2, 3\): mat1 and mat2"
    with pytest.raises(raysim.ModelError, match=layer):
        trained(wrong)


class SumsToOne(nn.Module):
    """Some of its outputs are negative."""

    def forward(self, x: Tensor) -> Tensor:
        return 9 * (x - x.mean(-1, keepdim=True)) + 1 / x.shape[-1]


@pytest.mark.parametrize(
    ("last", "keys", "warned"),
    [
        (lambda: nn.Softmax(-1), {}, True),
        (lambda: nn.LogSoftmax(-1), {}, False),
        (lambda: nn.Identity(), {}, False),
        (lambda: nn.Sigmoid(), {}, False),
        (lambda: SumsToOne(), {}, False),
        (lambda: nn.Softmax(-1), {"loss": lambda shares, y: -shares.log()[range(len(y)), y]}, False),
    ],
)
def test_a_softmax_before_the_cross_entropy_is_said(
    last: Any, keys: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = raysim.FederatedDataset.from_clients({k: (np.eye(3), np.arange(3)) for k in range(4)})
    exp = experiment(data=None, model=None, cohort={"size": 2})
    network = lambda: nn.Sequential(nn.Linear(3, 3), last())  # noqa: E731
    list(raysim.rounds(exp, dataset=data, model=network, executor="local", **keys))
    assert any("shares that sum to 1, as after a softmax" in text for text in caplog.messages) == warned


@pytest.mark.parametrize(("x", "warned"), [(3000.0, True), (-3000.0, True), (16.0, False), (math.nan, False)])
def test_numbers_far_from_one_are_said(x: float, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    data = raysim.FederatedDataset.from_clients({k: (np.full((3, 2), x, np.float32), np.arange(3)) for k in range(4)})
    exp = experiment(data=None, model={"name": "linear"}, cohort={"size": 2})
    next(raysim.rounds(exp, dataset=data, executor="local"))
    assert any("goes up to 3e+03: most models learn little" in text for text in caplog.messages) == warned


@pytest.mark.parametrize(("x", "warned"), [(1e-60, True), (1e-30, False), (0.0, False)])
def test_numbers_that_are_nothing_in_the_models_dtype_are_said(
    x: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The model saw zeros, and nothing told so."""
    clients = {k: (np.array([[x, 1.0], [0.0, 2.0]]), np.array([x, 2 * x])) for k in range(4)}
    data = raysim.FederatedDataset.from_clients(clients)
    exp = experiment(data=None, model={"name": "linear"}, cohort={"size": 2})
    next(raysim.rounds(exp, dataset=data, executor="local"))
    for name, largest in (("x", x), ("y", 2 * x)):
        said = f"{name} of the first training clients has a place in which no number is larger than {largest:.3g}"
        assert any(said in text and "as float32 these are 0" in text for text in caplog.messages) == warned


@pytest.mark.parametrize(("scale", "warned"), [(0.0, True), (1e-60, True), (-0.5, False)])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_scale_that_leaves_nothing_of_the_numbers_is_said(
    dtype: str, scale: float, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DatasetWriter(tmp_path / "data", x=Field((2,), dtype, scale=scale), y=Field((), "int64"), num_classes=2) as to:
        for number in range(4):
            to.write("train", str(number), np.array([[0, 3], [0, 1]], dtype), np.array([0, 1]))
    data = raysim.FederatedDataset.open(tmp_path / "data")
    exp = experiment(data=None, model={"name": "linear"}, cohort={"size": 2})
    next(raysim.rounds(exp, dataset=data, executor="local"))
    said = f"no number is larger than 3, and as float32 and times the scale {scale:g} these are 0"
    assert any(said in text for text in caplog.messages) == warned


@pytest.mark.parametrize(("stray", "warned"), [(9_999, True), (2, False)])
def test_a_stray_label_is_said(stray: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    raysim.FederatedDataset.from_clients({k: (np.eye(3), np.array([0, 1, stray])) for k in range(4)})
    text = "labels go up to 9,999, so the model has 10,000 outputs, but only 3 different labels occur"
    assert any(text in each for each in caplog.messages) == warned


def test_a_text_that_is_a_number_is_to_stand_in_quotes() -> None:
    with pytest.raises(raysim.ExperimentError, match='name must be a string, but got 5: write it in quotes, as "5"'):
        experiment(name=5)


def test_data_that_are_not_used_are_said(caplog: pytest.LogCaptureFixture) -> None:
    exp = experiment(data={"name": "digits", "clients": 4}, model={"name": "linear"}, cohort={"size": 2})
    next(raysim.rounds(exp, dataset=raysim.FederatedDataset.from_clients(CLIENTS), executor="local"))
    assert "dataset= is used, and the 'digits' of [data] is not: leave [data] out" in caplog.messages


def test_what_is_no_part_is_not_checked() -> None:
    with pytest.raises(ContractError, match=r"check_part takes a raysim\.Part, such as .*, but got <function"):
        check_part(lambda: None)  # type: ignore[arg-type]


def test_the_client_of_a_wrong_label_is_named() -> None:
    given = {f"c{k}": (np.eye(3), np.array([0, 1, 9 if k == 2 else 2])) for k in range(4)}
    data = raysim.FederatedDataset.from_clients(given)
    exp = experiment(data=None, model=None, cohort={"size": 2})
    with pytest.raises(
        raysim.ModelError, match=r"labels 0 to 9, .* Labels from 3 on are of client 'c2' of train only\.$"
    ):
        list(raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(3, 3), executor="local"))


@pytest.mark.parametrize(
    "call", [raysim.run, raysim.run_trials, lambda *a, **k: raysim.run_sweep(a[0], {"seed": [1]}, **k)]
)
def test_a_folder_cannot_both_go_on_and_start_afresh(call: Any, tmp_path: Path) -> None:
    exp = experiment(cohort={"size": 2}, trials=2 if call is raysim.run_trials else 1)
    with pytest.raises(
        raysim.RunFolderError, match=r"resume=True continues .* overwrite=True starts it afresh: choose"
    ):
        call(exp, path=tmp_path / "run", resume=True, overwrite=True, executor="local")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"weighting": lambda facts: facts.n},
            r"'n'\"\); ClientFacts has client, constants, examples, loss, .*steps\n",
        ),
        (
            {"correction": lambda section: raysim.Correction(raysim.ClientHalf(bend=lambda at: at.grad))},  # type: ignore[attr-defined]
            r"'grad'.*; LocalGradient has gradient, layout, params, received, start",
        ),
        (
            {"transform": lambda section: raysim.Transform(lambda at: at.update)},  # type: ignore[attr-defined]
            r"'update'.*; TransformAt has .*delta, ",
        ),
        ({"objective": lambda module, x, y, at: at.theta}, r"'theta'; ObjectiveAt has broadcast, client, .*round$"),
        (
            {"aggregator": raysim.Coordinatewise(lambda updates, w: updates.median(0))},  # type: ignore[arg-type, return-value]
            r"returned median, values and indices: return its \.values\.$",
        ),
    ],
)
def test_a_missing_attribute_is_answered_by_those_that_are_there(parts: dict[str, Any], said: str) -> None:
    exp = experiment(data=None, model=None, cohort={"size": 2})
    data = raysim.FederatedDataset.from_clients(CLIENTS)
    with pytest.raises(raysim.RaysimError, match=said) as raised:
        list(raysim.rounds(exp, dataset=data, model=norm, executor="local", **parts))
    # A traceback begins in the script.
    assert "user_call" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (raysim.centralized, NO_EXPERIMENT),
        (raysim.trials_of, NO_EXPERIMENT),
        (raysim.dataset_of, NO_EXPERIMENT),
        (raysim.run, NO_EXPERIMENT),
        (tuning.tune, NO_EXPERIMENT),
        (
            lambda path: raysim.interpolate(path, "b"),  # type: ignore[call-arg]
            r"^interpolate\(\) missing .*: it takes experiment, a, b, thetas by",
        ),
        (
            lambda path: raysim.resume(path, changes={}),  # type: ignore[call-arg]
            r"'changes': beside the parts it takes path, rounds, executor, ",
        ),
        (
            lambda path: raysim.run(path, optimizer=None),  # type: ignore[call-arg]
            r"\(did you mean client_optimizer= or server_optimizer=\?\)$",
        ),
        (raysim.FederatedDataset, r"^FederatedDataset\(\) missing .*: FederatedDataset.from_clients\(\{id: \(x, y\), "),
    ],
)
def test_a_call_that_does_not_fit_is_answered_by_one_that_does(call: Any, said: str) -> None:
    with pytest.raises((TypeError, ExperimentError), match=said):
        call("a.toml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client.optimizer": {"name": "sgd", "beta1": 0.5}}, r"\[client.optimizer\] with name = 'adam' has it"),
        ({"server.optimizer": {"name": "momentum", "momentum": 0.5}}, "did you mean 'beta1'"),
    ],
)
def test_a_key_of_another_choice_is_said_to_be_one(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        experiment().changed(change)


def test_a_file_of_parallel_modules_or_a_moved_one_is_answered_by_what_to_do(tmp_path: Path) -> None:
    module = nn.Linear(4, 2)
    file = tmp_path / "a.safetensors"
    save_file({f"module.fc.{name}": value for name, value in module.state_dict().items()}, file)
    exp = experiment(data=None, model={"name": "linear", "init": str(file)}, cohort={"size": 2})
    data = raysim.FederatedDataset.from_clients(CLIENTS)
    with pytest.raises(raysim.ModelError, match=r"begin with 'module\.', as .*: save module\.module\.state_dict\(\)"):
        list(raysim.rounds(exp, dataset=data, executor="local"))
    save_file({f"module.other.{name}": value for name, value in module.state_dict().items()}, file)
    with pytest.raises(raysim.ModelError, match=r"'module\.other\.weight' are unknown\.$"):
        list(raysim.rounds(exp, dataset=data, executor="local"))
    file.unlink()
    moved = r"is missing\. A run whose file was moved .*--set model\.init=PLACE --resume"
    with pytest.raises(raysim.ModelError, match=moved):
        list(raysim.rounds(exp, dataset=data, executor="local"))


def test_a_misspelt_file_of_weights_is_answered_by_the_nearest(
    tmp_path: Path, experiment: Callable[..., raysim.Experiment]
) -> None:
    (tmp_path / "base.safetensors").write_bytes(b"")
    exp = experiment(data=None, model={"name": "linear", "init": str(tmp_path / "bse.safetensors")}, cohort={"size": 2})
    with pytest.raises(raysim.ModelError, match=r"\(did you mean 'base\.safetensors'\?\)$"):
        list(raysim.rounds(exp, dataset=raysim.FederatedDataset.from_clients(CLIENTS), executor="local"))


def test_a_space_s_list_is_answered_by_the_table_that_lists_it() -> None:
    with pytest.raises(ExperimentError, match=r"but got \[0\.1, 0\.2\] \(\{'grid': \[0\.1, 0\.2\]\} lists them\)"):
        tuning.tune(experiment(), {"client.optimizer.lr": [0.1, 0.2]})


class Reversed(nn.Linear):
    """Gives each example the outputs of another one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(0)


class Centred(nn.Linear):
    """Takes the mean of the batch away."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Divided(nn.Linear):
    """Divides by the number of examples in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x)


class AcrossTheBatch(nn.Module):
    """A recurrent layer that takes the batch for the sequence, as one without batch_first does."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(1, 4), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.recurrent(x[:, :, None])[0].flatten(1))
        return outputs


@pytest.mark.parametrize(
    ("network", "warned"),
    [
        (lambda: Reversed(3, 3), True),
        (AcrossTheBatch, True),
        (lambda: Centred(3, 3), True),
        (lambda: Divided(3, 3), True),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)), True),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), False),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5)), False),
    ],
)
def test_a_module_that_mixes_examples_is_said_to_make_scores_depend_on_batches(
    network: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = raysim.FederatedDataset.from_clients({k: (np.eye(3), np.arange(3)) for k in range(4)})
    exp = experiment(data=None, model=None, cohort={"size": 2}, client={"batch_size": "full"})
    list(raysim.rounds(exp, dataset=data, model=network, executor="local"))
    assert any("depend on the others of its batch" in text for text in caplog.messages) == warned


@pytest.mark.parametrize(
    ("loss", "warned"),
    [
        (lambda outputs, targets: (outputs - targets).square().mean(1), True),
        (lambda outputs, targets: (outputs[:, 0] - targets).square().mean().expand(len(targets)), True),
        (lambda outputs, targets: (outputs[:, 0] - targets).square() / len(targets), True),
        (lambda outputs, targets: (outputs[:, 0] - targets).square().cumsum(0), True),
        (lambda outputs, targets: (outputs[:, 0] - targets).square(), False),
    ],
    ids=["extended", "mean", "divided", "added up", "own"],
)
def test_a_loss_that_mixes_examples_is_said_to_make_scores_depend_on_batches(
    loss: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    data = raysim.FederatedDataset.from_clients({k: (x + 0.1 * k, x[:, 0]) for k in range(4)})
    exp = experiment(data=None, model=None, cohort={"size": 2})
    list(raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(3, 1), loss=loss, executor="local"))
    assert any("loss= of an example depends on the others" in text for text in caplog.messages) == warned


def test_a_loss_that_fails_on_a_size_of_batches_is_not_said_to_refuse_equal_examples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pairs_only(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) % 2:
            raise ValueError("examples come in pairs")
        return (outputs[:, 0] - targets).square()

    x = np.linspace(-1, 1, 12).reshape(4, 3)
    data = raysim.FederatedDataset.from_clients({k: (x + 0.1 * k, x[:, 0]) for k in range(4)})
    exp = experiment(data=None, model=None, cohort={"size": 2})
    raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(3, 1), loss=pairs_only, executor="local")
    (said,) = [text for text in caplog.messages if text.startswith("loss= ")]
    assert said == (
        "loss= fails on a batch of 3 examples (examples come in pairs), but not on one of 2: the run ends at the first "
        "batch of a size that it does not take"
    )


def test_a_loss_that_fails_on_equal_examples_is_said_to_fail_and_not_to_mix(caplog: pytest.LogCaptureFixture) -> None:
    def refuses_equal(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) > 1 and bool((targets == targets[0]).all()):
            raise ValueError("all targets are equal")
        return (outputs[:, 0] - targets).square()

    x = np.linspace(-1, 1, 12).reshape(4, 3)
    data = raysim.FederatedDataset.from_clients({k: (x + 0.1 * k, x[:, 0]) for k in range(4)})
    exp = experiment(data=None, model=None, cohort={"size": 2})
    list(raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(3, 1), loss=refuses_equal, executor="local"))
    said = [text for text in caplog.messages if text.startswith("loss= ")]
    assert len(said) == 1
    assert said[0].startswith("loss= fails on a batch of 3 equal examples (all targets are equal): the run ends at")
