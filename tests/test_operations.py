"""Operation counts against the tables of Varno et al. (2022), appendix C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import raysim
from raysim.algorithm.operations import Operations, OperatorCount, operations
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import ClientHalf, Correction, LocalGradient, ServerHalf, ServerResult
from raysim.client.optimizers import choice as optimizers
from raysim.client.section import ClientSection
from raysim.engine.plan.resolve import resolve
from raysim.models.layout import Layout
from raysim.report import preview

Make = Callable[..., raysim.Experiment]
LAYOUT = Layout.of([("weight", torch.zeros(4, 3)), ("bias", torch.zeros(4))])

CORRECTIONS: dict[str, dict[str, Any] | None] = {
    "FedAvg": None,
    "SCAFFOLD/m": {"name": "scaffold_m"},
    "FedDyn": {"name": "feddyn", "mu": 0.02},
    "AdaBest": {"name": "adabest", "beta": 0.8},
}
STEP = {"FedAvg": (1, 1), "SCAFFOLD/m": (3, 1), "FedDyn": (4, 2), "AdaBest": (2, 1)}
"""Table 4: sums and products of each of K local steps, beside a gradient: ns + nm of SGD, and the correction's."""
ONCE = {"FedAvg": (0, 0), "SCAFFOLD/m": (2, 2), "FedDyn": (1, 1), "AdaBest": (1, 1)}
"""Table 4: sums and products of a client once a round."""
DEPARTURES = {"SCAFFOLD/m": (2, 1), "AdaBest": (1, 2)}
"""What the equations of docs/algorithms.md take instead. AdaBest divides h_i by t - t'_i, which the table does not
count. In the table SCAFFOLD/m's client has the server's update of h, which multiplies once more."""
SERVER = {"FedAvg": (0, 0), "SCAFFOLD/m": (2, 2), "FedDyn": (3, 1), "AdaBest": (2, 1)}
"""Table 5: sums and products beside |P| ns, as algorithm 2 has them."""


def of(correction: dict[str, Any] | Correction | None, **keys: Any) -> Operations:
    given = None if isinstance(correction, Correction) else correction
    section = ClientSection.model_validate({"correction": given, **keys})
    record = correction if isinstance(correction, Correction) else corrections.make(section.correction)
    optimizer = optimizers.make(section.optimizer)
    return operations(record, optimizer, section.is_plain_sgd, LAYOUT, torch.zeros(LAYOUT.size))


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_counts_are_those_of_the_paper_s_tables(name: str) -> None:
    found = of(CORRECTIONS[name])
    assert found.step == OperatorCount(1, *STEP[name])
    assert found.client == OperatorCount(0, *DEPARTURES.get(name, ONCE[name]))
    assert (found.vectors, found.server) == (1, OperatorCount(0, *SERVER[name]))
    assert found.passes == 0


def test_counts_are_written_in_the_paper_s_letters() -> None:
    assert [of(CORRECTIONS[name]).of_client for name in ("FedAvg", "FedDyn")] == [
        "K (g + ns + nm)",
        "K (g + 4 ns + 2 nm) + ns + nm",
    ]
    assert [of(CORRECTIONS[name]).of_server for name in ("FedAvg", "FedDyn")] == ["|P| ns", "|P| ns + 3 ns + nm"]


def test_gradients_and_vectors_beside_the_update_are_counted() -> None:
    mime = of({"name": "mime", "base": "adam"})
    # grad(y; B) and grad(x; B); m and v are of a full gradient, whose sum the server makes; a root.
    assert (mime.step.gradients, mime.step.others, mime.passes, mime.vectors) == (2, 1, 1, 2)
    assert of({"name": "feddane", "mu": 0.1}).passes == 2
    # The update, and the change of c_i.
    assert of({"name": "scaffold"}).vectors == 2


def test_a_client_s_optimizer_is_counted() -> None:
    momentum = of(None, optimizer={"name": "sgd", "momentum": 0.9})
    assert momentum.step == OperatorCount(1, 2, 2)
    # Gradients are summed where the update does not tell their mean.
    scaffold = of({"name": "scaffold"}, optimizer={"name": "sgd", "momentum": 0.9})
    assert (scaffold.step, scaffold.client) == (OperatorCount(1, 5, 2), OperatorCount(0, 1, 1))


def test_what_a_correction_s_functions_do_is_counted() -> None:
    def bend(local: LocalGradient) -> torch.Tensor:
        return torch.add(local.gradient, local.params - local.start, alpha=0.5).clamp(max=1.0)

    def settle(stepped: Any) -> ServerResult:
        return ServerResult(stepped.params + stepped.state["v"] / 2, {"v": -stepped.state["v"]})

    server = ServerHalf(lambda params: {"v": torch.ones_like(params)}, settle)
    found = of(Correction(ClientHalf(bend=bend), server))
    assert (found.step, found.client, found.server) == (
        OperatorCount(1, 3, 2, 1),
        OperatorCount(),
        OperatorCount(0, 1, 1),
    )
    assert found.of_client == "K (g + 3 ns + 2 nm + no)"


@pytest.mark.parametrize(
    ("name", "stores", "sends"),
    [
        ("FedAvg", "a client nothing, the server nothing beside the model", "n to a client, n back"),
        # C.3: 1.5 n on average over both directions.
        ("SCAFFOLD/m", "a client n, the server n beside the model", "2 n to a client, n back"),
        # h, and the clients' mean, which is evaluated.
        ("FedDyn", "a client n, the server 2 n beside the model", "n to a client, n back"),
        ("AdaBest", "a client n, the server 2 n beside the model", "n to a client, n back"),
    ],
)
def test_check_says_what_is_computed_stored_and_sent(
    name: str, stores: str, sends: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    client = {"correction": CORRECTIONS[name], "local_steps": 2}
    text = preview.text(resolve(experiment(client=client), dataset=dataset), experiment().default_folder)
    said = {name: rest.strip() for name, _, rest in (line.partition("  ") for line in text.splitlines())}
    found = of(CORRECTIONS[name])
    assert said["computes"] == f"a client {found.of_client}, the server {found.of_server} a round"
    assert (said["stores"], said["sends"]) == (stores, sends)
