"""Runs a round of a paper's experiment on small files in the form of the published ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysim
from raysim.cohort.bernoulli import Bernoulli
from raysim.cohort.cyclic import Cyclic
from raysim.cohort.replay import Replay
from raysim.models.causal_lm import CausalLm
from raysim.server.clipping import AdaptiveClip
from raysim.server.privacy.banded import Banded
from raysim.server.privacy.gaussian import Gaussian
from tests.support import language, tiny

COHORT = 3

# Few clients, few of them in a round, and a local step each: what a file says of model, data and method stays.
SMALL = ("rounds=1", "engine.workers=0", "client.max_local_steps=1")


def _private(exp: raysim.Experiment) -> list[str]:
    """Every client, by samplers that draw clients one by one; and the noise of no larger cohort."""
    few, privacy = [f"data.clients={COHORT}"], exp.server.privacy
    drawn = isinstance(exp.cohort.sampler, Bernoulli | Cyclic)
    few += ["cohort.sampler.probability=1.0"] if drawn else [f"cohort.size={COHORT}"]
    few += ["cohort.sampler.groups=1"] if isinstance(exp.cohort.sampler, Cyclic) else []
    few += ["server.privacy.bands=1"] if isinstance(privacy, Banded) else []
    if isinstance(privacy, Gaussian):
        few += [f"server.privacy.noise_cohort_size={COHORT}"]
        few += ["server.privacy.count_std=100.0"] if isinstance(exp.server.clip, AdaptiveClip) else []
    return few


def run(exp: raysim.Experiment, root: Path, monkeypatch: pytest.MonkeyPatch) -> raysim.Result:
    """Write the experiment's files below `root`, and run one round of it there."""
    assert exp.data is not None
    tiny.write(root, exp.data.name)
    monkeypatch.setenv("RAYSIM_DATA", str(root))
    # Replayed cohorts name clients, which must be there.
    replays = isinstance(exp.cohort.sampler, Replay)
    # As many that a client is left for validation, if some are held out.
    divided = getattr(exp.data, "clients", None) is not None and not replays
    takes_all = divided and exp.cohort.size == getattr(exp.data, "clients", None)
    few = [f"data.clients={COHORT if takes_all else 12 if exp.data.holdout else 4}"] if divided else []
    few += ["cohort.sampler.candidates=4"] if exp.cohort.rule.asks is not None else []
    few += ["data.size=32"] if exp.data.name == "gld" else []
    few += _private(exp) if exp.server.privacy is not None else [f"cohort.size={COHORT}"]
    # Some methods are defined with every client in every round.
    few += [f"data.clients={COHORT}"] if divided and exp.cohort.size == getattr(exp.data, "clients", None) else []
    if getattr(exp.model, "vectors", None) is not None:
        few += [f"model.vectors={json.dumps(str(tiny.glove(root / 'glove' / 'glove.6B.300d.txt')))}"]
    if isinstance(exp.model, CausalLm):
        folder = json.dumps(str(language.write_model(root / "language", places=512)))
        few += [f"model.path={folder}", f"data.tokenizer={folder}"]
    return raysim.run(exp.changed([*SMALL, *few]), path=root / "run")
