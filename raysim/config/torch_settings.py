"""Leaves out the settings of torch that a script has made in its process; one thread at a time trains there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext


class _Setting(NamedTuple):
    """A setting of torch that holds for the whole process: how it is read and written, and a new process's value."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    new: Any


def _attribute(module: Any, name: str, new: bool) -> _Setting:
    return _Setting(partial(getattr, module, name), partial(setattr, module, name), new)


_SETTINGS = (
    _Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    _attribute(torch.backends.mkldnn, "enabled", True),
    _attribute(torch.backends.cudnn, "enabled", True),
    # It chooses kernels by their times, so bits would follow from those.
    _attribute(torch.backends.cudnn, "benchmark", False),
    _attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", True),
    _attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True),
    _Setting(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, True),
    _Setting(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, True),
    _Setting(torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp, True),
    _Setting(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, True),
    _Setting(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, True),
    _Setting(
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
        False,
    ),
    # torch does not say it, but numbers of Python are flushed too.
    _Setting(lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal, False),
)

_LOCK = threading.RLock()


def one_at_a_time() -> AbstractContextManager[object]:
    """Let one thread into the block, and others wait: global generators and torch's settings are the whole process's.

    Two runs at once would draw from one generator, and take back each other's settings.
    """
    return _LOCK


@contextmanager
def as_on_workers() -> Iterator[None]:
    """Leave out, inside the block, what a script has set in its process alone, and a new process does not have.

    That is torch.autocast, products of float32 in a shorter precision, the default dtype and device, which kernels
    torch may take, and whether tiny numbers are taken for zero. One thread is inside at a time.
    """
    with (
        one_at_a_time(),
        _without_default_device(),
        _new_settings(),
        _whole_products(),
        _without_autocast("cpu"),
        _without_autocast("cuda"),
    ):
        yield


def renew() -> None:
    """Give this process, one of raysim's own, what a new process has, for good.

    A module of the script may have set something else as it was imported. In the script's process, where it has set it
    too, that is left out by `as_on_workers`.
    """
    with one_at_a_time():
        before = _get_current_function_mode_stack()
        if len(others := _without_devices(before)) < len(before):
            _set_modes(others)
        for each in _SETTINGS:
            if each.read() != each.new:
                each.write(each.new)
        if _precision_of_products() != "highest":
            torch.set_float32_matmul_precision("highest")
        for kind in _short_products_on_cpus():
            kind.fp32_precision = "ieee"
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)


def _without_devices(modes: Sequence[TorchFunctionMode]) -> list[TorchFunctionMode]:
    return [each for each in modes if not isinstance(each, DeviceContext)]


@contextmanager
def _without_default_device() -> Iterator[None]:
    # Tensors would be made elsewhere, and torch's transformer layers take other kernels, even if the device is the CPU.
    before = _get_current_function_mode_stack()
    others = _without_devices(before)
    if len(others) == len(before):
        yield
        return
    _set_modes(others)
    try:
        yield
    finally:
        _set_modes(before)


def _set_modes(modes: Sequence[TorchFunctionMode]) -> None:
    """Make these torch's active modes, the innermost last."""
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for each in modes:
        _push_mode(each)


@contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    # torch.autocast keeps its copies of weights until the outermost block ends, which this one would be.
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before)


@contextmanager
def _new_settings() -> Iterator[None]:
    before = [(each, value) for each in _SETTINGS if (value := each.read()) != each.new]
    for each, _ in before:
        each.write(each.new)
    try:
        yield
    finally:
        for each, value in before:
            each.write(value)


@contextmanager
def _whole_products() -> Iterator[None]:
    before, short = _precision_of_products(), _short_products_on_cpus()
    settings = [each.fp32_precision for each in short]
    if before == "highest":
        for each in short:
            each.fp32_precision = "ieee"
    else:
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before == "highest":
            for each, setting in zip(short, settings, strict=True):
                each.fp32_precision = setting
        else:
            torch.set_float32_matmul_precision(before)


def _precision_of_products() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # Each kind of product has a setting of its own.
        return "highest"


def _short_products_on_cpus() -> list[Any]:
    return [each for each in _products_on_cpus() if each.fp32_precision not in ("none", "ieee")]


def _products_on_cpus() -> list[Any]:
    """torch's settings of products on a CPU, by kind; older versions have none."""
    kinds = (getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn"))
    return [each for each in kinds if hasattr(each, "fp32_precision")]
