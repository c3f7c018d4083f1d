"""Adversaries: what they send, and who they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.client import adversary
from tests.support.chosen_updates import SIZES, UPDATES, Make, moved, run

P = SIZES / SIZES.sum()


def sent(**changed: Any) -> Any:
    vectors = UPDATES.copy()
    for position, vector in changed.items():
        vectors[int(position[1:])] = vector
    return P @ vectors


def test_scale_and_sign_flip_change_the_update_of_the_named(experiment: Make) -> None:
    scale = {"name": "scale", "clients": ["c2", "c5"], "factor": 10}
    np.testing.assert_allclose(moved(experiment, adversary=scale), sent(c2=10 * UPDATES[2], c5=10 * UPDATES[5]))
    flip = {"name": "sign_flip", "clients": ["c1"]}
    np.testing.assert_allclose(moved(experiment, adversary=flip), sent(c1=-UPDATES[1]))


def test_clipping_sees_what_was_sent(experiment: Make) -> None:
    scale = {"name": "scale", "clients": ["c2"], "factor": 1e6}
    (done,) = run(experiment, adversary=scale, server={"clip": {"fixed": 1e5}})
    assert done.metrics["clipped_fraction"] == pytest.approx(1 / 9)


def test_an_attack_that_is_not_finite_is_rejected(experiment: Make) -> None:
    (done,) = run(experiment, adversary={"name": "scale", "clients": ["c2"], "factor": 1e300})
    assert done.rejected == ("c2",)


def test_noise_is_addressed_and_of_the_given_size(experiment: Make) -> None:
    noise = {"name": "noise", "clients": 1.0, "std": 0.5}
    first, again = (run(experiment, rounds=2, adversary=noise) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.params["weight"], other.params["weight"])
    steps = [first[0].params["weight"], first[1].params["weight"] - first[0].params["weight"]]
    assert not torch.allclose(*steps)
    # The mean of nine independent draws: no coordinate beyond six of its deviations, and some noise in each.
    off = np.abs(steps[0].numpy()[0] - P @ UPDATES)
    assert (off > 0).all()
    assert (off < 6 * 0.5 * np.sqrt((P**2).sum())).all()


def test_a_label_flipper_learns_from_the_other_end(experiment: Make) -> None:
    x, y = np.ones((4, 2)), np.array([0, 1, 2, 2])
    exp = {"rounds": 1, "model": {"name": "linear"}, "cohort": {"size": 1}, "client": {"batch_size": "full"}}
    flipping = experiment(**exp, adversary={"name": "label_flip", "clients": ["a"]})
    results = []
    for made, labels in ((flipping, y), (experiment(**exp), 2 - y)):
        (done,) = raysim.rounds(made, dataset=raysim.FederatedDataset.from_clients(train={"a": (x, labels)}))
        results.append(done)
    for name, tensor in results[0].params.items():
        assert torch.equal(tensor, results[1].params[name])


def test_a_label_flipper_leaves_padding() -> None:
    assert adversary.flip(torch.tensor([0, 2, -1]), 4, padding=-1).tolist() == [3, 1, -1]
    assert adversary.flip(torch.tensor([0, 2]), 4, padding=None).tolist() == [3, 1]


def test_a_fraction_is_of_the_training_clients(dataset: raysim.FederatedDataset) -> None:
    chosen = adversary.positions(adversary.SignFlip(clients=0.25), 3, dataset.train)
    assert len(chosen) == 5
    assert chosen == adversary.positions(adversary.SignFlip(clients=0.25), 3, dataset.train)
    assert chosen != adversary.positions(adversary.SignFlip(clients=0.25), 4, dataset.train)


def test_a_fraction_that_is_a_whole_number_of_clients_is_that_number() -> None:
    clients = {f"c{i:02}": (np.zeros((1, 1)), np.zeros(1)) for i in range(50)}
    train = raysim.FederatedDataset.from_clients(train=clients).train
    # 0.58 times 50 is 28.999999999999996.
    assert len(adversary.positions(adversary.SignFlip(clients=0.58), 3, train)) == 29
    assert len(adversary.positions(adversary.SignFlip(clients=0.59), 3, train)) == 29


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "scale", "clients": ["c99"], "factor": 2}, "c99"),
        ({"name": "scale", "clients": 1.5, "factor": 2}, "adversary.clients must be less than or equal to 1"),
        ({"name": "scale", "clients": ["c1"]}, "adversary.factor must be given"),
        ({"name": "sign_flip", "clients": ["c1"], "factor": 2}, "unknown key 'adversary.factor'"),
        ({"name": "sign_flip", "clients": 0.1}, "0.1 of 9 training clients is less, so none would attack"),
        ({"name": "label_flip", "clients": ["c1"]}, "targets of these data are real numbers"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.RaysimError, match=message):
        run(experiment, adversary=wrong)


def test_a_client_keeps_what_it_computed_and_not_what_it_sends(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def states(**sections: Any) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []

        def after(end: raysim.ClientEnd) -> torch.Tensor:
            seen.append(end.delta.clone())
            return end.delta

        half = raysim.ClientHalf(offset=lambda start: start.state, after=after)
        one_round = experiment(rounds=1, evaluation={"every": 1}, **sections)
        list(raysim.rounds(one_round, dataset=dataset, correction=lambda section: raysim.Correction(half)))
        # Two calls try the correction before the first round.
        return seen[2:]

    honest, flipped = states(), states(adversary={"name": "sign_flip", "clients": 1.0})
    assert len(honest) == 7
    assert all(torch.equal(left, right) for left, right in zip(honest, flipped, strict=True))
