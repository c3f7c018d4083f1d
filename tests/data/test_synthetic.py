"""synthetic(alpha, beta): clients by address, and the statistics that FedProx publishes."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Synthetic
from raysim.data.sources.synthetic import examples, sizes

SEED = 3


def made(**settings: object) -> FederatedDataset:
    return prepare(Synthetic.model_validate({"clients": 200} | settings), SEED)


def means(**settings: object) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Mean features of 400 clients, from 500 examples each: (400, 60)."""
    section = Synthetic.model_validate({"clients": 400} | settings)
    return np.stack([examples(section, SEED, k, 500)[0].astype(np.float64).mean(axis=0) for k in range(400)])


def test_a_client_is_the_same_in_a_population_of_any_size() -> None:
    small, large = made(clients=50).train, made(clients=1_000_000).train
    for client_id in ("0", "17", "49"):
        for mine, theirs in zip(
            small.client(small.position_of(client_id)), large.client(large.position_of(client_id)), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


def test_held_out_clients_keep_their_data() -> None:
    whole, held = made(), made(holdout=0.25)
    assert (len(held.train), len(held.split("validation")), len(held.split("test"))) == (150, 50, 200)
    seen = set()
    for split in (held.train, held.split("validation")):
        for position in range(len(split)):
            client_id = split.id_of(position)
            seen.add(client_id)
            np.testing.assert_array_equal(split.client(position)[0], whole.train.client(int(client_id))[0])
            assert split.position_of(client_id) == position
    assert len(seen) == 200


def test_a_million_clients_cost_nothing_until_sampled() -> None:
    data = made(clients=10**12)  # anything per client would not fit in memory
    assert len(data.train) == 10**12
    assert data.train.client(10**11)[0].shape[1] == 60
    assert len(pickle.dumps(data)) < 5_000


def test_parts_are_nine_tenths_and_the_rest() -> None:
    data = made(holdout_examples=0.1)
    total = sizes(Synthetic(clients=200), SEED, np.arange(200))
    train, validation, test = (data.split(name).sizes() for name in ("train", "validation", "test"))
    np.testing.assert_array_equal(train + validation, total * 9 // 10)
    np.testing.assert_array_equal(train + validation + test, total)
    whole = np.concatenate([data.split(name).client(7)[0] for name in ("train", "validation", "test")])
    np.testing.assert_array_equal(whole, examples(Synthetic(clients=200), SEED, 7, int(total[7]))[0])


@pytest.mark.parametrize("size", [2, 3, 9, 10, 11])
def test_a_fixed_size_leaves_examples_on_both_sides(size: int) -> None:
    data = made(sizes=size)
    assert set(data.train.sizes().tolist()) == {size * 9 // 10}
    assert set(data.split("test").sizes().tolist()) == {size - size * 9 // 10}


def test_sizes_are_fifty_more_than_a_lognormal() -> None:
    drawn = sizes(Synthetic(clients=1, max_examples=10**15), SEED, np.arange(100_000))
    logs = np.log(drawn[drawn > 150] - 50 + 0.5)  # where rounding down to whole examples is small
    assert drawn.min() == 50
    assert np.median(drawn) == pytest.approx(50 + np.exp(4), rel=0.05)
    # P(lognormal(4, 2) > 100) = P(Z > (ln 100 - 4) / 2) = 0.3811, and the upper half of those is above ln = 5.756.
    assert len(logs) / 100_000 == pytest.approx(0.3811, abs=0.01)
    assert np.median(logs) == pytest.approx(4 + 2 * 0.8779, abs=0.05)
    assert sizes(Synthetic(clients=1), SEED, np.arange(100_000)).max() == 1000


def test_features_vary_by_the_published_diagonal() -> None:
    section = Synthetic(clients=1)
    x = examples(section, SEED, 0, 20_000)[0].astype(np.float64)
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.06)
    np.testing.assert_allclose(np.corrcoef(x[:, 0], x[:, 1])[0, 1], 0, atol=0.03)


@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_beta_is_the_standard_deviation_of_the_clients_means(beta: float) -> None:
    """The mean over j of v_kj is B_k plus noise of variance 1/60."""
    found = means(beta=beta).mean(axis=1).std()
    assert found == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.12)


def test_means_scatter_around_the_client_by_one() -> None:
    assert means(beta=0.0).std() == pytest.approx(1, rel=0.05)


def test_iid_clients_share_features_and_model() -> None:
    assert np.abs(means(iid=True).mean(axis=0)).max() < 0.05
    section = Synthetic(clients=10, iid=True)
    shares = np.stack([np.bincount(examples(section, SEED, k, 4000)[1], minlength=10) / 4000 for k in range(10)])
    assert shares.std(axis=0).max() < 0.02


def test_labels_are_linear_in_the_features() -> None:
    """Scores x W + b are linear, so a label that two points share holds on the segment between them."""
    section = Synthetic(clients=1, iid=True)
    x, y = examples(section, SEED, 0, 5_000)
    label = np.bincount(y).argmax()
    same = x[y == label]
    middle = (same[::2][: len(same) // 2] + same[1::2][: len(same) // 2]) / 2
    nearest = np.array([y[np.argmin(((x - point) ** 2).sum(axis=1))] for point in middle[:200]])
    assert (nearest == label).mean() > (y == label).mean() + 0.2


def test_the_seed_and_every_setting_show_in_the_fingerprint() -> None:
    prints = {made().fingerprint, made(alpha=0.5).fingerprint, made(clients=201).fingerprint, made(seed=4).fingerprint}
    assert len(prints) == 4
    assert made(seed=SEED).fingerprint == made().fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iid": True, "alpha": 0.5}, "alpha and beta have no part"),
        ({"sizes": 20, "max_examples": 10}, "leave it out where sizes is a number"),
        ({"sizes": 1}, "greater than or equal to 2"),
        ({"partition": {"name": "iid"}}, "partition"),
        ({"holdout": 0.1, "holdout_examples": 0.1}, "cannot both be set"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made(**settings)


@pytest.mark.parametrize("name", ["synthetic_0_0", "synthetic_0.5_0.5", "synthetic_1_1", "synthetic_iid"])
def test_the_published_files_look_like_ours(name: str) -> None:
    root = Path(os.environ.get("RAYSIM_DATA", "")) / "fedprox-synthetic" / name
    if "RAYSIM_DATA" not in os.environ or not root.is_dir():
        pytest.skip(f"RAYSIM_DATA does not name a folder with fedprox-synthetic/{name}/")
    theirs = json.loads((root / "data" / "test" / "mytest.json").read_text())["user_data"]
    settings: dict[str, object] = (
        {"iid": True} if name == "synthetic_iid" else dict.fromkeys(("alpha", "beta"), float(name.split("_")[1]))
    )
    ours = made(clients=1000, **settings).split("test")
    assert {np.shape(user["x"])[1] for user in theirs.values()} == {60}
    assert min(len(user["y"]) for user in theirs.values()) >= ours.sizes().min() == 5
    within = [np.var(user["x"], axis=0, ddof=1) for user in theirs.values()]
    # 30 users with 5 to 662 examples: the mean of their variances is within a tenth or two of j^-1.2.
    np.testing.assert_allclose(np.mean(within, axis=0)[:5], np.arange(1, 6) ** -1.2, rtol=0.35)
    between = np.std([np.mean(user["x"]) for user in theirs.values()])
    mine = np.std([ours.client(k)[0].mean() for k in range(300)])
    assert between == pytest.approx(mine, rel=0.4)
