"""What a device cannot do is refused, or said."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import raysim
from raysim.client.trainers.trainer_choice import Precision
from raysim.config import torch_settings
from raysim.engine import numerics
from raysim.engine.plan.resolve import resolve
from raysim.report import preview
from tests.support.executors import bits

Make = Callable[..., raysim.Experiment]


def test_a_card_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(raysim.ResourceError, match=r"engine.precision = 'bf16' needs a card"):
        numerics.fix(1, torch.device("cuda"), "bf16")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("native", [True, False])
def test_a_processor_without_bf16_is_said_before_the_run(
    native: bool, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.engine.plan.resolve.has_bf16", lambda device: native)
    text = preview.text(
        resolve(experiment(engine={"precision": "bf16", "workers": 0, "trainer": "one_by_one"}), dataset=dataset),
        Path("runs/x"),
    )
    assert ("has no bf16 products" in text) == (not native)


@pytest.mark.parametrize(("hidden", "said"), [(8, True), (2**14, False)])
def test_bf16_of_a_model_without_large_products_is_said_to_do_nothing(
    hidden: int, said: bool, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.engine.plan.resolve.has_bf16", lambda device: True)
    params = []
    for precision in ("float32", "bf16"):
        exp = experiment(
            model={"name": "mlp", "hidden": [hidden]},
            engine={"precision": precision, "workers": 0, "trainer": "fused"},
            cohort={"size": 1},
            rounds=1,
        )
        text = preview.text(resolve(exp, dataset=dataset), Path("runs/x"))
        (after,) = raysim.rounds(exp, dataset=dataset)
        params.append(torch.cat([value.flatten() for value in after.params.values()]))
        assert ("it computes in float32" in text) == (said and precision == "bf16")
    assert torch.equal(*params) is said


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("begin", ["run", "rounds"])
def test_where_a_run_begins_it_says_its_trainer_and_a_slow_precision_once(
    begin: str,
    native: bool,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("raysim.engine.plan.resolve.has_bf16", lambda device: native)
    exp = experiment(engine={"precision": "bf16", "workers": 0, "trainer": "one_by_one"}, rounds=2)
    with caplog.at_level(logging.INFO, "raysim"):
        if begin == "run":
            raysim.run(exp, dataset=dataset, path=tmp_path / "run", progress=False)
        else:
            list(raysim.rounds(exp, dataset=dataset))
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    slow = "engine.precision: this processor has no bf16 products: bf16 is slower than float32, but correct"
    assert said == [
        ("INFO", "clients are trained by the trainer one_by_one: the experiment asks for it"),
        *([] if native else [("WARNING", slow)]),
    ]


@pytest.mark.parametrize(
    ("made", "engine", "said"),
    [
        (torch.float64, {}, True),
        (torch.float64, {"dtype": "float64"}, False),
        (torch.float64, {"dtype": "float32"}, False),
        (torch.float32, {"dtype": "float64"}, False),
        (torch.bfloat16, {}, False),
    ],
    ids=str,
)
def test_a_run_says_that_it_trains_a_module_in_fewer_digits_than_it_was_made_with(
    made: torch.dtype,
    engine: dict[str, Any],
    said: bool,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exp = experiment(rounds=1, engine={"workers": 0, **engine})
    width, classes = dataset.x.shape[0], dataset.num_classes
    assert classes is not None
    list(raysim.rounds(exp, dataset=dataset, model=lambda: nn.Linear(width, classes).to(made)))
    text = (
        "the module has parameters of torch.float64, which are trained in torch.float32: set engine.dtype = 'float64' "
        "to keep them so, or engine.dtype = 'float32'"
    )
    assert (text in caplog.messages) is said


def test_a_run_that_is_whole_already_says_nothing(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run", progress=False)
    with caplog.at_level(logging.INFO, "raysim"):
        raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run", progress=False, resume=True)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("gpus", "card", "share", "capped"),
    [(0.25, True, 0.25, [0.25]), (0.25, False, 0.25, []), (0, True, 1.0, []), (1, True, 1.0, []), (2, True, 1.0, [])],
)
def test_a_process_is_kept_to_its_share_of_a_card(
    gpus: float, card: bool, share: float, capped: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    caps: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", caps.append)
    assert numerics.take_share(gpus) == share
    assert caps == capped


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("before", [True, False])
def test_on_a_card_products_are_tf32_where_it_is_asked_for(
    precision: Precision, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    # Set first, so that what `fix` sets is taken back.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    matmul, cudnn = SimpleNamespace(allow_tf32=before), SimpleNamespace(allow_tf32=before)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)

    def switches() -> list[bool]:
        return [matmul.allow_tf32, cudnn.allow_tf32]

    with numerics.fixed(1, torch.device("cuda"), precision):
        assert switches() == [precision == "tf32"] * 2
        assert torch.are_deterministic_algorithms_enabled()
    assert switches() == [before] * 2
    assert not torch.are_deterministic_algorithms_enabled()


@contextmanager
def short_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def other_defaults() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_flush_denormal(True)
    try:
        yield
        assert defaults() == (torch.float64, False, False, False, True)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
        torch.backends.mha.set_fastpath_enabled(True)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.set_flush_denormal(False)


def defaults() -> tuple[torch.dtype, bool, bool, bool, bool]:
    """What new tensors are, whether torch may take oneDNN and fused attention, and whether tiny numbers are zero."""
    fused = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    return torch.get_default_dtype(), bool(torch.backends.mkldnn.enabled), *fused, sys.float_info.min / 2 == 0


@contextmanager
def other_device() -> Iterator[None]:
    """Nothing can be computed on it."""
    with torch.device("cpu"), torch.device("meta"):
        yield
        assert torch.empty(0).device.type == "meta"
    assert not _get_current_function_mode_stack()


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "short products": short_products,
    "other defaults": other_defaults,
    "other device": other_device,
    # Steps are recorded as without it: they are not refused because it reads their gradients.
    "search for NaN": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused", "stacked"])
def test_what_a_script_has_set_in_its_process_is_left_out(
    around: str, trainer: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    """Workers have none of it."""
    model = {"name": "mlp", "hidden": [64, 64]}
    exp = experiment(model=model, engine={"workers": 0, "trainer": trainer}, rounds=1)
    usual = [bits(each) for each in raysim.rounds(exp, dataset=dataset)]
    with AROUND[around]():
        assert [bits(each) for each in raysim.rounds(exp, dataset=dataset)] == usual


@pytest.mark.parametrize("around", [nullcontext, *AROUND.values()])
@pytest.mark.parametrize("trainer", ["one_by_one", "recorded"])
def test_products_in_bf16_are_of_the_weights_after_the_last_step(
    around: Callable[[], AbstractContextManager[Any]],
    trainer: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
) -> None:
    """torch.autocast keeps copies of the weights, which it drops at the end of the outermost block only."""

    def trained(precision: str) -> list[torch.Tensor]:
        exp = experiment(engine={"workers": 0, "trainer": trainer, "precision": precision}, rounds=2)
        *_, last = raysim.rounds(exp, dataset=dataset)
        return list(last.params.values())

    whole = trained("float32")
    with around():
        for value, close in zip(trained("bf16"), whole, strict=True):
            torch.testing.assert_close(value, close, atol=0.03, rtol=0)


@pytest.mark.parametrize("around", AROUND)
def test_products_are_whole_inside_a_block(around: str) -> None:
    """On processors that have shorter ones."""
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    usual = a @ a
    with AROUND[around](), torch_settings.as_on_workers():
        assert torch.equal(a @ a, usual)


def _is_enabled(module: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


OF_CARDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "cuDNN": _is_enabled(torch.backends.cudnn, "enabled"),
    "kernels of cuDNN by their times": _is_enabled(torch.backends.cudnn, "benchmark"),
    "attention of cuDNN": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "sums of attention in bf16": (
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "sums of products in bf16": _is_enabled(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "sums of products in float16": _is_enabled(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
}
"""Settings of torch by which products on a card have other bits, or bits that follow from times."""


@pytest.mark.parametrize("name", OF_CARDS)
def test_a_card_has_the_settings_of_a_new_process_inside_a_block(name: str) -> None:
    read, write = OF_CARDS[name]
    usual = read()
    write(not usual)
    try:
        with torch_settings.as_on_workers():
            assert read() == usual
        assert read() != usual
    finally:
        write(usual)


def test_torch_has_the_settings_of_a_new_process_inside_a_block() -> None:
    usual = defaults()
    with other_defaults(), torch_settings.as_on_workers():
        assert defaults() == usual


def test_a_process_of_raysim_s_own_has_the_settings_of_a_new_one_for_good() -> None:
    usual = defaults(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_autocast_enabled("cpu", True)
    torch.set_default_device("meta")
    torch_settings.renew()
    try:
        assert (defaults(), torch.get_float32_matmul_precision()) == usual
        assert not torch.is_autocast_enabled("cpu")
        assert torch.empty(0).device.type == "cpu"
    finally:
        torch.set_default_device(None)


class OfTransformer(torch.nn.Module):
    """In evaluation its layer takes a kernel of its own, unless a mode of torch is active."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(5, 1, 16, batch_first=True)
        self.last = torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x.flatten(1).unsqueeze(1)).mean(1))


@pytest.mark.parametrize("around", [other_defaults, other_device, lambda: torch.device("cpu")])
def test_scores_are_computed_by_the_kernels_of_a_new_process(
    around: Callable[[], AbstractContextManager[Any]], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(engine={"workers": 0}, rounds=1)
    usual = [bits(each) for each in raysim.rounds(exp, dataset=dataset, model=OfTransformer)]
    with around():
        assert [bits(each) for each in raysim.rounds(exp, dataset=dataset, model=OfTransformer)] == usual


def test_a_series_has_the_same_numbers_where_a_script_has_another_default_device(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = experiment(engine={"workers": 0, "trainer": "compiled"}, rounds=1, trials=2)
    usual = raysim.run_trials(exp, path=tmp_path / "usual", dataset=dataset)
    with other_device():
        other = raysim.run_trials(exp, path=tmp_path / "other", dataset=dataset)
    for name in ("mean_update_norm", "params_norm", "eval/test/loss"):
        assert other.rounds[name].to_pylist() == usual.rounds[name].to_pylist()


@torch.inference_mode()
def test_a_run_inside_inference_mode_is_refused(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"inside torch\.inference_mode"):
        raysim.rounds(experiment(engine={"workers": 0}), dataset=dataset)


class OfDefaults(torch.nn.Module):
    """Its forward makes a tensor, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of_places = torch.linspace(0, 1, 5).sqrt().to(x.dtype)
        return self.last(torch.nn.functional.dropout(x.flatten(1) * of_places, 0.5, self.training))


def test_a_module_of_ones_own_is_made_and_trained_by_the_settings_of_a_new_process(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(engine={"workers": 0}, rounds=1)
    usual = [bits(each) for each in raysim.rounds(exp, dataset=dataset, model=OfDefaults)]
    with other_defaults():
        assert [bits(each) for each in raysim.rounds(exp, dataset=dataset, model=OfDefaults)] == usual


def test_a_run_of_another_thread_waits(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    """It would draw from the generator that this thread's clients draw from."""
    exp, others = experiment(engine={"workers": 0}, rounds=1), list[Any]()
    thread = threading.Thread(target=lambda: others.extend(raysim.rounds(exp, dataset=dataset, model=OfDefaults)))
    usual = [bits(each) for each in raysim.rounds(exp, dataset=dataset, model=OfDefaults)]
    with numerics.fixed(1, torch.device("cpu"), "float32"):
        torch.manual_seed(0)
        state = torch.get_rng_state()
        thread.start()
        thread.join(timeout=1.0)
        assert torch.equal(torch.get_rng_state(), state)
        assert not others
    thread.join()
    assert [bits(each) for each in others] == usual
