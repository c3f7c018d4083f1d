"""FedGLAD: the index from sums, the factor, and where it may not act."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.server import glad
from raysim.server.agreement import gsi
from raysim.server.glad import Glad, bounded, factors, units

Make = Callable[..., raysim.Experiment]
NAMES = ("a.weight", "a.bias", "b.weight")


def test_orthogonal_clients_of_equal_length_have_index_root_m() -> None:
    # M unit vectors at right angles: mean square 1, square of the mean 1 / M.
    assert gsi(1.0, 1 / 9) == pytest.approx(3.0)


def test_agreeing_clients_have_index_1_and_so_has_a_vanishing_mean() -> None:
    assert gsi(4.0, 4.0) == 1.0
    assert gsi(1.0, 0.0) == 1.0
    assert gsi(1.0 - 1e-16, 1.0) == 1.0


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(-9, 9), min_size=2, max_size=2)), min_size=2, max_size=6)
)
def test_both_printed_forms_are_one_number(clients: list[tuple[int, list[int]]]) -> None:
    p = torch.tensor([n for n, _ in clients], dtype=torch.float64)
    p, g = p / p.sum(), torch.tensor([v for _, v in clients], dtype=torch.float64)
    mean = (p[:, None] * g).sum(0)
    if (square := float(mean.square().sum())) < 1e-9:
        return
    spread = float((p * (g - mean).square().sum(1)).sum())
    assert gsi(float((p * g.square().sum(1)).sum()), square) == pytest.approx(math.sqrt(1 + spread / square), rel=1e-9)


def test_units_of_the_scopes() -> None:
    assert units("group", NAMES) == [0, 1, 2]
    assert units("layer", NAMES) == [0, 0, 1]
    assert units("universal", NAMES) == [0, 0, 0]


@pytest.mark.parametrize(
    ("ratio", "gamma", "t", "f"),
    [
        (5.0, 0.02, 0, 1.0),
        (5.0, 0.02, 10, 1.2),
        (0.1, 0.02, 10, 0.8),
        (1.1, 0.02, 10, 1.1),
        (5.0, 0.0, 10, 1.0),
        (5.0, "inf", 0, 5.0),
        (0.1, 1.0, 10, 0.1),
    ],
)
def test_the_ratio_is_bounded_by_a_cone_around_1(ratio: float, gamma: float | str, t: int, f: float) -> None:
    assert bounded(ratio, gamma, t) == pytest.approx(f)


def test_the_baseline_is_used_before_it_is_updated() -> None:
    # Indices 2, 4, 4 of one group; beta 1/2: baselines 2, 2, 3.
    section, seen = Glad(beta=0.5, gamma="inf"), []
    state: dict[str, torch.Tensor] = {}
    for t, index in enumerate([2.0, 4.0, 4.0]):
        made = factors(section, [0], [index**2], [1.0], state, t)
        state = dict(made.state)
        seen.append((made.groups[0], state["baselines"].item()))
    assert seen == [pytest.approx((1, 2)), pytest.approx((2, 3)), pytest.approx((4 / 3, 3.5))]


def test_a_layer_has_one_index_from_its_groups_sums() -> None:
    state = {"baselines": torch.tensor([1.0, 1.0], dtype=torch.float64)}
    made = factors(Glad(scope="layer", gamma="inf"), units("layer", NAMES), [3.0, 5.0, 9.0], [1.0, 1.0, 1.0], state, 3)
    assert made.groups == pytest.approx((2.0, 2.0, 3.0))


def test_how_often_a_bound_binds_is_counted_over_units() -> None:
    state = {"baselines": torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)}
    made = factors(Glad(gamma=0.1), [0, 1, 2], [4.0, 1.1, 1.0], [1.0, 1.0, 1.0], state, 2)
    assert made.bounded == pytest.approx(1 / 3)


def metrics(exp: raysim.Experiment, data: raysim.FederatedDataset) -> list[dict[str, Any]]:
    return [dict(done.metrics) for done in raysim.rounds(exp, dataset=data)]


def test_gamma_0_is_the_run_without_it(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    adam = {"name": "adam", "lr": 0.05}
    for off, on in zip(
        raysim.rounds(experiment(server={"optimizer": adam}), dataset=dataset),
        raysim.rounds(experiment(server={"optimizer": adam, "glad": {"gamma": 0}}), dataset=dataset),
        strict=True,
    ):
        assert all(torch.equal(off.params[name], on.params[name]) for name in off.params)


def test_a_single_client_has_factor_1_and_leaves_the_baseline(
    experiment: Make, dataset: raysim.FederatedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    cohorts = [["c1", "c2"], ["c3"], ["c4"], ["c1", "c2"]]
    lonely = experiment(
        cohort={"sampler": {"name": "replay", "cohorts": cohorts}},
        server={"glad": {"gamma": "inf", "scope": "universal"}, "optimizer": {"name": "sgd", "lr": 0.0}},
        client={"batch_size": "full"},
    )
    rows = metrics(lonely, dataset)
    # The model stands still, so the first and the last round measure the same index.
    factor = next(name for name in rows[0] if name.startswith("glad_factor/"))
    assert [row[factor] for row in rows] == [1, 1, 1, 1]
    assert [row["gsi"] for row in rows[1:3]] == [1, 1]
    assert [row["gsi_baseline"] for row in rows] == [pytest.approx(rows[0]["gsi"])] * 4
    assert [row["gsi_unbounded"] for row in rows] == [1, None, None, 1]
    assert sum("FedGLAD compares clients" in record.message for record in caplog.records) == 1


def test_sums_give_the_index_of_the_updates_themselves(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # One client a round gives its own update: the model stands still at lr 0, the mean of all is measured at last.
    ids = [f"c{i}" for i in range(5)]
    alone = experiment(
        rounds=5,
        cohort={"sampler": {"name": "replay", "cohorts": [[i] for i in ids]}},
        client={"batch_size": "full"},
        engine={"workers": 0, "dtype": "float64"},
    )
    start = {name: t.numpy() for name, t in next(raysim.rounds(alone, dataset=dataset)).params.items()}
    updates = []
    for client in ids:
        one = alone.model_copy(
            update={"rounds": 1, "cohort": type(alone.cohort)(sampler={"name": "replay", "cohorts": [[client]]})}
        )
        (done,) = raysim.rounds(one, dataset=dataset, params=start)
        updates.append(torch.cat([(done.params[n] - torch.from_numpy(start[n])).flatten() for n in start]))
    n = torch.tensor([float(dataset.train.sizes()[i]) for i in range(5)], dtype=torch.float64)
    p, g = n / n.sum(), torch.stack(updates)
    mean = (p[:, None] * g).sum(0)
    together = alone.model_copy(
        update={"rounds": 1, "cohort": type(alone.cohort)(sampler={"name": "replay", "cohorts": [ids]})}
    )
    (done,) = raysim.rounds(together, dataset=dataset, params=start)
    assert done.metrics["gsi"] == pytest.approx(
        float((p * g.square().sum(1)).sum().div(mean.square().sum()).sqrt()), rel=1e-9
    )
    unit = g / g.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    pairs = [cosines[i, j].item() for i in range(5) for j in range(i)]
    assert done.metrics["mean_cosine_similarity"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-9)
    squares = g.square().sum(1)
    assert done.metrics["update_norm_dispersion"] == pytest.approx(
        float(squares.std(correction=0) / squares.mean()), rel=1e-9
    )


def test_scopes_and_bounds_are_checked(experiment: Make) -> None:
    for wrong, message in (
        ({"gamma": -1}, "server.glad.gamma must be greater than or equal to 0 or 'inf', but got -1"),
        ({"scope": "tensor"}, "server.glad.scope must be 'group', 'layer' or 'universal', but got 'tensor'"),
        ({"beta": 1.5}, "server.glad.beta must be less than or equal to 1"),
    ):
        with pytest.raises(raysim.ExperimentError, match=message):
            experiment(server={"glad": wrong})


def test_glad_is_a_module_of_pure_functions() -> None:
    state = {"baselines": torch.tensor([2.0], dtype=torch.float64)}
    glad.factors(Glad(), [0], [4.0], [1.0], state, 5)
    assert state["baselines"].tolist() == [2.0]
