"""Lists the cases of trainers and of built-in models."""

from __future__ import annotations

from typing import Any

from .case import Case
from .own_parts import OWN
from .settings import WIDE


def of_trainers() -> dict[str, Case]:
    """Trainers, and what they can be asked for."""
    made = {}
    for trainer in ("one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"):
        for dtype, precision in (("float32", "float32"), ("float64", "float32"), ("float32", "bf16")):
            if trainer in ("compiled", "interpreted") and precision == "bf16":
                continue
            engine = {"engine.trainer": trainer, "engine.dtype": dtype, "engine.precision": precision}
            word = precision if precision == "bf16" else dtype
            made[f"trainer {trainer} {word}"] = Case({**engine, "model": WIDE, "client.epochs": 2})
    made["trainer auto float64"] = Case({"engine.trainer": "auto", "engine.dtype": "float64", "model": WIDE})
    for trainer in ("one_by_one", "recorded", "fused", "stacked", "vmap"):
        cnn: dict[str, Any] = {"engine.trainer": trainer, "rounds": 2}
        made[f"trainer {trainer} cnn"] = Case({**cnn, "model.name": "cnn_mcmahan", "cohort.size": 3}, "pixels")
        made[f"trainer {trainer} adam prox"] = Case(
            {
                **cnn,
                "client.optimizer": {"name": "adam", "lr": 0.01},
                "client.correction": {"name": "prox", "mu": 0.1},
            }
        )
    made["trainer vmap own module"] = Case({"engine.trainer": "vmap", "model": None}, own=OWN["module"])
    made["engine threads"] = Case({"engine.threads": 2, "model": WIDE})
    made["engine examples host"] = Case({"engine.examples": "host"})
    made["engine examples device"] = Case({"engine.examples": "device"})
    made["trainer one_by_one regression"] = Case({"engine.trainer": "one_by_one"}, "regression")
    made["trainer stacked regression"] = Case({"engine.trainer": "stacked", "client.optimizer.lr": 0.02}, "regression")
    return made


def of_models() -> dict[str, Case]:
    """Built-in models, and a script's own."""
    few = {"rounds": 2, "cohort.size": 3, "client.max_local_steps": 2}
    once = {"rounds": 1, "cohort.size": 2, "client.max_local_steps": 1}
    lstm = {"embedding": 4, "hidden": 6}
    transformer = {"name": "transformer_word", "embedding": 4, "width": 8, "heads": 2, "hidden": 10, "layers": 2}
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "linear": ("vectors", {"model": {"name": "linear", "seed": 5}}),
        "mlp tanh": ("vectors", {"model": {"name": "mlp", "hidden": [6], "activation": "tanh"}}),
        "cnn": ("pixels", {"model.name": "cnn", **few}),
        "cnn_mcmahan": ("pixels", {"model.name": "cnn_mcmahan", **few}),
        "cnn_tutorial": ("large", {"model.name": "cnn_tutorial", "client.augment.name": "crop_flip_contrast", **few}),
        "resnet18_gn": ("colours", {"model": {"name": "resnet18_gn", "groups": 4}, **once}),
        "resnet56 batch": ("colours", {"model": {"name": "resnet56", "norm": "batch"}, **few}),
        "resnet56 group": ("colours", {"model": {"name": "resnet56", "norm": "group", "groups": 4}, **once}),
        "mobilenet_v2_gn": ("colours", {"model": {"name": "mobilenet_v2_gn", "groups": 4, "dropout": 0.1}, **once}),
        "lstm_char": ("texts", {"model": {"name": "lstm_char", "layers": 2, **lstm}}),
        "lstm_char keras": ("texts", {"model": {"name": "lstm_char", "initial": "keras", **lstm}}),
        "lstm_word": ("texts", {"model": {"name": "lstm_word", "layers": 1, "projection": True, **lstm}}),
        "lstm_word plain": ("texts", {"model": {"name": "lstm_word", "layers": 2, "projection": False, **lstm}}),
        "bilstm": ("labelled texts", {"model": {"name": "bilstm", "vocabulary": 9, **lstm}}),
        "bilstm last": (
            "labelled texts",
            {"model": {"name": "bilstm", "vocabulary": 9, "pooling": "last", "dropout": 0.2, **lstm}},
        ),
        "transformer_word": ("texts", {"model": {**transformer, "dropout": 0.2}}),
    }
    made = {f"model {name}": Case(settings, data) for name, (data, settings) in models.items()}
    made["augment flip_crop"] = Case(
        {"client.augment": {"name": "flip_crop", "probability": 0.7, "padding": 2}, "model.name": "cnn_mcmahan", **few},
        "pixels",
    )
    window = {"name": "crop_flip_contrast", "side": 6, "brightness": 0.1, "contrast_low": 0.5, "contrast_high": 1.5}
    made["augment crop_flip_contrast"] = Case({"client.augment": window, "client.epochs": 2}, "colours")
    layers = {"targets": ["inner"], "r": 2, "alpha": 3.0}
    made["frozen"] = Case({"model": {**WIDE, "freeze": ["fc1.*"]}})
    made["adapters"] = Case({"model": {**WIDE, "lora": {"targets": ["fc*"], "dropout": 0.2}}})
    made["own module frozen"] = Case({"model": {"name": "own", "freeze": ["gate.*"]}}, own=OWN["module"])
    for trainer in ("one_by_one", "vmap"):
        lora = {**layers, "whole": ["outer"], "freeze_a": trainer == "vmap"}
        keys = {"engine.trainer": trainer, "model": {"name": "own", "lora": lora}}
        made[f"own module adapters {trainer}"] = Case(keys, own=OWN["module"])
    made["own module"] = Case({"model": None}, own=OWN["module"])
    made["own loss"] = Case({"model": WIDE}, own=OWN["loss"])
    made["own module and loss"] = Case(
        {"model": None, "client.correction.name": "scaffold"}, own=OWN["module and loss"]
    )
    made["own params"] = Case({"model": None}, own=OWN["params"])
    own = {"name": "own", "label": "heavy ball", "lr": 0.5, "constants": {"rho": 0.8}}
    made["own server optimizer"] = Case(
        {"server.optimizer": own, "server.glad": {}, "model": WIDE}, own=OWN["optimizer"]
    )
    return made
