"""Steps the server: the levels that travel with the model, and the step from sums to the next state.

Order (docs/algorithms.md section 0): the workers clipped and added up; here noise of privacy -> mean -> GSI and
FedGLAD's factor -> learning rate -> optimizer. The levels of clipping and zeroing follow the updates before clipping. A
rule that needs every update hands in its `aggregate`, or sums with weights of its own (`reweigh`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.config.form import kept, kept_all
from raysim.config.own_figures import check_apart, own_figures
from raysim.config.user_call import called
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.vectors import group_norms, squared_norm
from raysim.server import diagnostics, glad, ledger, levels
from raysim.server.agreement import Agreement, agreement, similarity
from raysim.server.clipping import AdaptiveClip, Limits, follow
from raysim.server.levels import scalar
from raysim.server.optimizers import choice as optimizers
from raysim.server.optimizers import step_check
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped
from raysim.server.pseudo_gradient import pseudo_gradient
from raysim.server.release import Releasing
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.sums import Sums
from raysim.server.weighting import check_sum

Metrics = dict[str, float | None]
"""A figure is None if it is not defined for the round."""


_LARGE_UPDATE = 1e9
"""Norm of a mean update, far below those whose square is no number of float32."""


Settle = Callable[[ServerState, Sums, Tensor, Tensor], tuple[Tensor, Tensors]]
"""(state, sums, x - lr f g, f g) -> the next model to broadcast, and the server's half of a correction."""


class NotFiniteError(Exception):
    """A server step made the model non-finite; the text says which part of it, and by which optimizer."""


class Server(NamedTuple):
    """Pure functions: the state before the first round, the levels of a round, the step that closes it."""

    init: Callable[[Weights, Tensors], ServerState]
    limits: Callable[[ServerState], Limits]
    step: Callable[[ServerState, Sums, Tensor | None, Settle | None, int], tuple[ServerState, Metrics]]


def reweigh(sums: Sums, coefficients: Tensor, weighted_sum: Tensor) -> Sums:
    """The sums as they would be with w_i = c_i: the mean, its agreement and FedGLAD are then those of the survivors.

    Args:
        sums: with the facts of every update.
        coefficients: c_i, (M,), in the order of the facts.
        weighted_sum: sum_i c_i h_i, float64 (P,).
    """
    squared_norms = torch.tensor([fact.squared_norms for fact in sums.facts], dtype=torch.float64)
    weight = float(coefficients.sum())
    return replace(
        sums,
        weight=weight,
        normaliser=weight,
        delta=weighted_sum,
        buffers=sums.buffers * (weight / sums.weight),
        squared_norms=coefficients @ squared_norms,
    )


def make(
    section: ServerSection,
    layout: Layout,
    cohort_size: Callable[[int], float],
    label_population: Tensor | None = None,
    counts: bool = True,
    releasing: Releasing | None = None,
) -> Server:
    """Return the server of a run.

    Args:
        section: the experiment's `[server]`.
        layout: the parameter groups of the flat vectors.
        cohort_size: the configured size of the cohort after t finished rounds.
        label_population: label counts of all training clients, for the comparison with the cohort's; or None.
        counts: whether the task counts correct predictions.
        releasing: privacy or secure sums; None: the server learns the sums themselves.
    """
    title, optimizer = optimizers.OPTIMIZERS.title(section.optimizer), optimizers.make(section.optimizer)
    is_built_in = optimizers.OPTIMIZERS.is_built_in(section.optimizer)
    units = tuple(glad.units(section.glad.scope, layout.names)) if section.glad else ()
    of_run = _OfRun(
        section, layout, cohort_size, label_population, counts, releasing, optimizer, title, is_built_in, units
    )
    return Server(of_run.init, of_run.limits, of_run.step)


class _BeforeOptimizer(NamedTuple):
    """What the server makes of a round's sums before its optimizer.

    sums: as they were released. within: the fraction within the clip level, as privacy releases it. g: the
    pseudo-gradient, (P,). factors: FedGLAD's, of each parameter group; None: 1. baselines: FedGLAD's next. metrics: of
    the clients and their agreement.
    """

    sums: Sums
    within: float | None
    g: Tensor
    factors: tuple[float, ...] | None
    baselines: Tensors
    metrics: Metrics


@dataclass(frozen=True)
class _OfRun:
    """The functions of `Server`, closed over what does not change in a run; fields as the arguments of `make`.

    title: of the optimizer, in errors. is_built_in: what it returns has its form, and is new. units: FedGLAD's unit of
    each parameter group.
    """

    section: ServerSection
    layout: Layout
    cohort_size: Callable[[int], float]
    label_population: Tensor | None
    counts: bool
    releasing: Releasing | None
    optimizer: ServerOptimizer
    title: str
    is_built_in: bool
    units: tuple[int, ...]

    def init(self, weights: Weights, sampler: Tensors) -> ServerState:
        state = called(f"{self.title}: init", self.optimizer.init, weights.params)
        if not self.is_built_in:
            step_check.check_state(self.title, state)
            state = kept_all(state)
        return ServerState(0, weights, state, sampler, levels.first(self.section.limiting), {}, ledger.opened())

    def limits(self, state: ServerState) -> Limits:
        return Limits(**{name: float(level) for name, level in state.levels.items()})

    def step(
        self,
        state: ServerState,
        sums: Sums,
        aggregate: Tensor | None = None,
        settle: Settle | None = None,
        seen_before: int = 0,
    ) -> tuple[ServerState, Metrics]:
        """`seen_before`: examples that the round's earlier phases processed."""
        t = state.round
        lr = self.section.lr_at(self.cohort_size(t), t)
        processed = seen_before + sums.seen
        processed_so_far = state.ledger["examples"] + processed
        state = replace(state, ledger={**state.ledger, "examples": processed_so_far})
        metrics: Metrics = {
            "clients": sums.clients,
            "rejected": len(sums.rejected),
            "examples": processed,
            "examples_so_far": int(processed_so_far),
            "examples_held": sums.held,
            "server_lr": lr,
            **{f"{name}_level": float(level) for name, level in state.levels.items()},
        }
        if sums.clients == 0:
            # No update arrived, or every one was rejected: the round's row has clients = 0.
            metrics |= self._undefined(state, sums)
            if sums.seen:
                metrics |= _scores(sums, self.counts)
            if self.releasing is None or not (self.releasing.always or sums.weight):
                return replace(state, round=t + 1), metrics
        check_sum(sums.weight, t)
        after, figures = self._closed(state, sums, lr, aggregate, settle)
        if not _is_finite(after.weights.params, figures["params_norm"]):
            where = _not_finite(self.layout, after.weights.params)
            raise NotFiniteError(f"{where} not finite after the step of {self.title} with the learning rate {lr:g}")
        if self.is_built_in and not (figures["pseudo_gradient_norm"] or 0.0) < _LARGE_UPDATE:
            _check_state(self.title, after.optimizer)
        return after, metrics | figures

    def _undefined(self, state: ServerState, sums: Sums) -> Metrics:
        """Return every figure that a round with an update has, None.

        A step of an update of zeros names them: an optimizer of one's own names its figures in no other way.
        """
        nothing, correct = torch.zeros_like(sums.delta), 1.0 if self.counts else math.nan
        zeros = replace(sums, weight=1.0, normaliser=1.0, delta=nothing, clients=1, seen=1, steps=1, correct=correct)
        if self.label_population is not None:
            # Sums of a round that trained nobody count no labels.
            zeros = replace(zeros, labels=torch.zeros_like(self.label_population))
        _, figures = self._closed(state, zeros, 0.0, None, None)
        return dict.fromkeys(figures)

    def _closed(
        self, state: ServerState, sums: Sums, lr: float, aggregate: Tensor | None, settle: Settle | None
    ) -> tuple[ServerState, Metrics]:
        """Return the state after the round's sums, and its figures."""
        t, weights = state.round, state.weights
        before = self._before_optimizer(state, sums, aggregate)
        sums, metrics = before.sums, before.metrics
        descent = Descent(self.layout, before.g, lr, t + 1, before.factors)
        step = self.optimizer.step
        stepped = called(f"{self.title}: step, in round {t},", step, weights.params, descent, state.optimizer)
        if not self.is_built_in:
            step_check.check_form(self.title, stepped, weights.params, state.optimizer)
            step_check.check_gaps(self.title, stepped.params, self.layout)
            own = own_figures(f"{self.title}: step", stepped.metrics)
            stepped = Stepped(kept(stepped.params), kept_all(stepped.state), own)
        params, half = stepped.params, state.correction
        if settle is not None:
            params, half = settle(state, sums, params, descent.fg)
        metrics["params_norm"] = math.sqrt(squared_norm(params))
        book, figures = _entered(state.ledger, sums, self.label_population, metrics)
        check_apart(f"{self.title}: step", stepped.metrics, {*metrics, *figures})
        metrics |= stepped.metrics
        counters = sums.counters if sums.clients else weights.counters
        after = replace(
            state,
            round=t + 1,
            weights=Weights(params, _mean_buffers(sums, weights.buffers), counters),
            optimizer=stepped.state,
            levels=_levels(self.section, state.levels, sums, before.within),
            glad=before.baselines,
            ledger=book,
            correction=half,
        )
        return after, metrics | figures

    def _before_optimizer(self, state: ServerState, sums: Sums, aggregate: Tensor | None) -> _BeforeOptimizer:
        """Return the mean update of a round as its pseudo-gradient; `aggregate`: what a rule made in its place."""
        params, layout, within = state.weights.params, self.layout, None
        metrics: Metrics = {}
        if self.releasing is not None:
            sums, within, figures = self.releasing.release(state.round, self.limits(state).clip, sums)
            metrics |= figures
        # fednova's tau_eff; 1 elsewhere.
        effective = sums.normaliser / sums.weight
        agreed = agreement(layout, sums)
        metrics["pseudo_gradient_norm"] = math.sqrt(sum(agreed.squared_norms_of_mean))
        if sums.clients:
            metrics |= _sizes(self.section, sums, self.counts)
            metrics |= similarity(layout, agreed)
        factors, baselines, figures = _glad(self.section.glad, self.units, layout, agreed, state, sums.clients)
        metrics |= figures
        if aggregate is None and len(sums.shares):
            # local_adaptivity, jointly corrected.
            g = pseudo_gradient(sums.delta, sums.shares, params)
            metrics["pseudo_gradient_norm"] = math.hypot(*group_norms(layout, g))
        elif aggregate is None:
            g = pseudo_gradient(sums.delta, sums.weight / effective, params)
        else:
            g = pseudo_gradient(aggregate, 1.0, params)
            metrics["pseudo_gradient_norm"] = math.hypot(*group_norms(layout, aggregate))
        return _BeforeOptimizer(sums, within, g, factors, baselines, metrics)


def _sizes(section: ServerSection, sums: Sums, counts: bool) -> Metrics:
    """Loss, and how large the updates are."""
    metrics = _scores(sums, counts)
    metrics["mean_update_norm"] = sums.norm / sums.clients
    metrics["update_norm_dispersion"] = diagnostics.dispersion(sums.squared_norm, sums.fourth_power, sums.clients)
    if section.clip:
        metrics["clipped_fraction"] = 1 - sums.within_clip / sums.clients
    if section.zeroing:
        metrics["zeroed_fraction"] = sums.zeroed / sums.clients
    if section.diagnostics.sums_units(len(sums.delta)):
        metrics["mean_cosine_similarity"] = diagnostics.mean_cosine_similarity(sums.units, sums.moving, sums.clients)
    return metrics


def _scores(sums: Sums, counts: bool) -> Metrics:
    """Loss and accuracy of the examples that were met; no accuracy where nothing is counted, and None where a client
    had no outputs to count."""
    scores: Metrics = {"loss": sums.loss / sums.seen}
    if counts:
        scores["accuracy"] = None if math.isnan(sums.correct) else sums.correct / sums.seen
    return scores


def _mean_buffers(sums: Sums, before: Tensor) -> Tensor:
    """Return the clients' mean of each floating buffer, in the dtype of `before`, what they received.

    A number that was not finite, such as a mask's -inf, stays where the mean is not defined: 0 times it is not 0.
    """
    mean = sums.buffers.div(sums.weight).to(before.dtype)
    if not mean.numel() or not bool(mean.isnan().any()):
        return mean
    return torch.where(mean.isnan() & ~before.isfinite().to(mean.device), before.to(mean.device), mean)


def _is_finite(params: Tensor, norm: float | None) -> bool:
    # A finite norm has only finite numbers; a norm that overflows may have, too. A NaN is both ends.
    finite = norm is not None and math.isfinite(norm)
    return finite or all(math.isfinite(float(end)) for end in torch.aminmax(params))


def _check_state(title: str, state: Tensors) -> None:
    """Raise NotFiniteError if a sum of squares is too large for its dtype: its weights would never move again."""
    for name, tensor in state.items():
        if count := int((~torch.isfinite(tensor)).sum()):
            raise NotFiniteError(
                f"{count:,} of the numbers of {name!r}, the state of {title}, are not finite, because the mean update "
                f"is so large"
            )


def _not_finite(layout: Layout, params: Tensor) -> str:
    counts = {name: int((~torch.isfinite(tensor)).sum()) for name, tensor in layout.views(params).items()}
    counted = [f"{count:,} of the numbers of {name!r}" for name, count in counts.items() if count]
    if not counted:
        # A part of a script wrote between the tensors.
        return "numbers that belong to no tensor are"
    others = f", and of {len(counted) - 1} other tensors," if len(counted) > 1 else ""
    return f"{counted[0]}{others} are"


def _glad(
    section: glad.Glad | None,
    unit_of: Sequence[int],
    layout: Layout,
    agreed: Agreement,
    state: ServerState,
    clients: int,
) -> tuple[tuple[float, ...] | None, Tensors, Metrics]:
    """FedGLAD's factor per group (None: 1 for all, without its cost), the next baselines, and what it says."""
    if section is None:
        return None, state.glad, {}
    if clients < 2:
        new_factors = glad.unmeasured(unit_of, state.glad)
    else:
        new_factors = glad.factors(section, unit_of, *agreed, state.glad, state.round)
    metrics: Metrics = {f"glad_factor/{name}": f for name, f in zip(layout.names, new_factors.groups, strict=True)}
    metrics["glad_bounded_fraction"] = new_factors.bounded
    ends = [f"/{unit}" if unit else "" for unit in dict.fromkeys(glad.unit_names(section.scope, layout.names))]
    metrics |= {f"gsi_baseline{end}": baseline for end, baseline in zip(ends, new_factors.baselines, strict=True)}
    metrics |= {f"gsi_unbounded{end}": ratio for end, ratio in zip(ends, new_factors.ratios, strict=True)}
    return None if set(new_factors.groups) == {1.0} else new_factors.groups, new_factors.state, metrics


def _levels(section: ServerSection, before: Tensors, sums: Sums, within: float | None) -> Tensors:
    """The levels of clipping and zeroing for the next round; `within`: b as privacy releases it."""
    after = dict(before)
    if isinstance(section.clip, AdaptiveClip):
        fraction = sums.within_clip / sums.clients if within is None else within
        after["clip"] = scalar(follow(float(before["clip"]), fraction, section.clip.quantile, section.clip.lr))
    if (zeroing := section.zeroing) is not None:
        fraction = sums.within_zeroing / sums.clients
        after["zeroing"] = scalar(follow(float(before["zeroing"]), fraction, zeroing.quantile, zeroing.lr))
    return after


def _entered(book: Tensors, sums: Sums, population: Tensor | None, metrics: Metrics) -> tuple[Tensors, Metrics]:
    """The ledger with this round in it, and the figures that come from it."""
    after = dict(book)
    figures: Metrics = {}
    if "accuracy" in metrics:
        figures["catastrophic_failure"] = None
    if (accuracy := metrics.get("accuracy")) is not None:
        figures["catastrophic_failure"] = ledger.is_catastrophe(book, accuracy)
        after["accuracy"] = scalar(accuracy)
    if population is not None:
        similarity = diagnostics.label_similarity(sums.labels, population)
        index = metrics["gsi"]
        assert index is not None
        after["moments"] = ledger.paired(book["moments"], similarity, index)
        figures["label_similarity"] = similarity
        figures["label_gsi_correlation"] = ledger.correlation(after["moments"])
    return after, figures
