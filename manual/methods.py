"""Generates docs/methods.md: a row for every part that changes how a model is trained, its facts from its own records.

Nothing is listed by hand: a choice that is registered gets a row, and the kinds are those of `raysim parts`. Facts come
from the algorithm of a small experiment with that choice alone. `python -m manual.methods` writes the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from manual.choices import CLIENTS, Method, configs, methods, plan_of, refusal, shown_in
from manual.pages import ROOT
from raysim.algorithm.operations import operations
from raysim.client.corrections import choice as corrections
from raysim.client.optimizers import choice as optimizers
from raysim.client.personalisation import choice as personalisations
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.selection import transfers

PAGE = ROOT / "docs" / "methods.md"

HEAD = """# Methods

This page is generated from the parts (`python -m manual.methods` writes it): a row for every choice of a key that
changes how a model is trained. FedAvg is `client.optimizer` = `sgd`, `server.optimizer` = `sgd` and the mean.
[Algorithms](algorithms.md) has the equations; `docs/algorithms.md` and a section number as a source mean that page.

- *State*: what a client, and the server beside the model, keep from round to round; n is the size of the model, N the
  number of clients.
- *Down, up*: what a client of the cohort receives and sends in a round, the model included, and its bytes in float32;
  compressed, the bytes of a model of a hundred thousand numbers, at the keys that are given. Places grow with the
  model, and rotations fill vectors up to a power of two.
- *Passes*: of a client over its examples in a round, local training included, and the gradients of a local step.
- *FedGLAD*: whether `server.glad` goes with it; a number names the reason below the table.
- *Not with*: choices of other keys that raysim refuses beside it, whatever the data.

Names that are not choices of a key: FedSGD is FedAvg with `client.batch_size = "full"` and `client.local_steps = 1`.
Local SGD is FedAvg with all clients in every round. FedOpt is any `client.optimizer` with any `server.optimizer`.
Fine-tuning is `evaluation.fine_tuning`, and Reptile is FedAvg scored by it. Multi-task learning is `ditto`,
meta-learning (MAML) is `maml`, the interpolation of local and global models is `apfl`, and FedRecon, whose local part
is reconstructed, is `split` with `keep = false`. FedMA, PFNM, Model Fusion, MOCHA, QuPeL and Local AdaAlter are not
there.
"""


def page() -> str:
    """Return the page's Markdown."""
    found = methods()
    reasons: list[str] = []
    lines = [HEAD]
    for key in dict.fromkeys(each.key for each in found):
        lines += [f"## `{key}`", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [_row(each, found, reasons) for each in found if each.key == key]
        lines.append("")
    lines += ["## Experiments", "", "The files of `configs/field_guide`, by the first lines of each.", ""]
    lines += [f"- `configs/{file}.toml`: {said}" for file, said in _said()]
    lines.append("")
    if reasons:
        lines += ["## Why FedGLAD is refused", ""]
        lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines).rstrip() + "\n"


COLUMNS = (
    *("name", "what", "source", "state of a client", "of the server"),
    *("down", "up", "passes", "FedGLAD", "not with", "config"),
)


def _row(method: Method, others: list[Method], reasons: list[str]) -> str:
    part, config = method.part, shown_in(method)
    facts = _facts(plan_of(method), method)
    reason = refusal(method, None)
    if reason and reason not in reasons:
        reasons.append(reason)
    glad = f"no: {reasons.index(reason) + 1}" if reason else "yes"
    link = f"`{config}`" if config else ""
    cells = [f"`{part.name}`", part.summary, part.source, *facts, glad, _refused(method, others), link]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _refused(method: Method, others: list[Method]) -> str:
    """Return the choices of each other key that are refused, or those that are not, whichever are fewer."""
    found = []
    for key in dict.fromkeys(each.key for each in others if each.key != method.key):
        choices = [each for each in others if each.key == key]
        refused = [each.part.name for each in choices if refusal(method, each)]
        taken = [each.part.name for each in choices if each.part.name not in refused]
        if len(taken) < len(refused):
            found.append(f"`{key}`: all{' but ' * bool(taken)}{_listed(taken)}")
        elif refused:
            found.append(f"`{key}`: {_listed(refused)}")
    return "; ".join(found)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _facts(plan: Plan, method: Method) -> list[str]:
    algorithm = plan.algorithm()
    one = transfers(plan, algorithm.traffic, 1)
    numbers, item = plan.model.params.num_values - algorithm.traffic.unsent, plan.initial.params.element_size()
    less = ", n without its own groups" if algorithm.traffic.unsent else ""
    sent = [_sent(int(one[f"bytes_{way}"]), item, numbers, method) for way in ("down", "up")]
    kind = personalisations.make(plan.experiment.client, plan.model.params)
    # A client trains in one phase, also where each of several models has its own.
    others = [phase for phase in algorithm.phases if phase.of != "training"]
    correction = corrections.make(plan.experiment.client.correction)
    again = correction is not None and correction.client.own_gradient
    passes = len(others) + 1 + again + (kind is not None and kind.own is not None)
    return [
        _vectors(algorithm.state_vectors),
        _of_server(plan),
        *(f"{said}{less})" for said in sent),
        str(passes) + _gradients(plan),
    ]


def _sent(num_bytes: int, item: int, numbers: int, method: Method) -> str:
    """Return how many vectors of the model's size these bytes are, and the bytes; an open bracket follows them."""
    count, others = divmod(num_bytes, item * numbers)
    if not others:
        return f"{_vectors(count)} ({item * count} n bytes"
    keys = {} if isinstance(method.table, str) else method.table
    at = ", ".join(f"{key} = {value}" for key, value in keys.items() if key != "name")
    return f"compressed ({num_bytes / numbers:.2g} n bytes{' at ' * bool(at)}{at}"


def _vectors(count: int) -> str:
    return {0: "none", 1: "n"}.get(count, f"{count} n")


def _gradients(plan: Plan) -> str:
    client = plan.experiment.client
    correction, optimizer = corrections.make(client.correction), optimizers.make(client.optimizer)
    count = operations(correction, optimizer, client.is_plain_sgd, plan.model.params, plan.initial.params)
    if count.step.gradients > 1:
        return f"; {count.step.gradients} gradients a step"
    personal = client.personalisation
    return {"several": "; several gradients a step", "twice": "; a gradient and a product with the Hessian a step"}.get(
        "one" if personal is None else personal.gradients, ""
    )


def _of_server(plan: Plan) -> str:
    """What the state before the first round has beside the model, its diagnostics left out."""
    state, size, kept = plan.initial_state(), plan.model.params.size, []
    tensors = [
        each for part in (state.optimizer, state.correction, state.fairness, state.sampler) for each in part.values()
    ]
    vectors = sum(1 for each in tensors if each.numel() == size)
    clients = sum(1 for each in tensors if each.numel() == CLIENTS)
    if vectors:
        kept.append(_vectors(vectors))
    if clients:
        kept.append("N" if clients == 1 else f"{clients} N")
    return " + ".join(kept) or "none"


def _said() -> Iterator[tuple[str, str]]:
    """Yield the files of the Field Guide, and the first sentence of each."""
    for file, _ in configs():
        if file.startswith("field_guide/"):
            text = (ROOT / "configs" / f"{file}.toml").read_text(encoding="utf-8")
            comment = " ".join(line.removeprefix("#").strip() for line in text.partition("\n\n")[0].splitlines())
            yield file, re.split(r"(?<!et al)\. ", comment, maxsplit=1)[0].replace("- ", "-").rstrip(".") + "."


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
