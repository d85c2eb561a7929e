"""Mixture of experts: many feed-forwards, of which each token meets a few (Shazeer et al. 2017, 1701.06538).

A router gives every expert a score; the `n_active` best run on the token, and their outputs are added, each
times its weight. Published models as fields of `Experts`:

| model                           | score   | renormalised | shared            | balance            |
|---------------------------------|---------|--------------|-------------------|--------------------|
| Switch (arXiv 2101.03961)       | softmax | no           | None              | AuxiliaryBalance   |
| Mixtral (arXiv 2401.04088)      | softmax | yes          | None              | AuxiliaryBalance   |
| Qwen3-MoE (arXiv 2505.09388)    | softmax | yes          | None              | AuxiliaryBalance   |
| DeepSeek-V3 (arXiv 2412.19437)  | sigmoid | yes          | GatedFeedForward  | BiasBalance        |

Not here: DeepSeek-V3's restriction of a token to a few groups of experts, which saves traffic between
machines, and noise on the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.models.checks import require_positive
from modelfactory.models.feed_forward import FeedForward, GatedFeedForward
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext


@dataclass(frozen=True, kw_only=True)
class AuxiliaryBalance:
    """A loss that is least when experts get equal shares of each row (DeepSeek-V3, equations 17 to 20).

    Of row b, weight * sum_e f_e P_e: f_e is n_experts / n_active times the share of positions for which e is
    among the n_active highest scores, P_e the mean of e's score over the positions, scores being divided by
    their sum. It is `weight` when the load is even. Taken in each row and not over the batch, as Switch
    and Mixtral do, so that no split of a batch changes the gradient. A row weighs as many times as it
    has valid labels, so one without any counts nothing.
    """

    weight: float
    """On the scale of the loss of one token; 0.01 in Switch, 0.0001 in DeepSeek-V3."""

    def __post_init__(self) -> None:
        """Refuse a weight without effect."""
        check_types(self)
        _require_above_0("AuxiliaryBalance", weight=self.weight)


@dataclass(frozen=True, kw_only=True)
class BiasBalance:
    """A bias on the choice of experts, moved after each step towards equal loads (Wang et al. 2024).

    Experts are chosen by score + bias and weighted by score alone, so that no gradient disturbs the loss.
    After a step, bias_e += rate * sign(mean load - load_e) (arXiv 2408.15664, algorithm 1). The load is that
    of the whole step: all positions of rows that have a valid label. Biases are state, not parameters: they
    start at 0, are stored with the weights, and no optimizer sees them.
    """

    rate: float
    """0.001 in the paper, for scores between 0 and 1."""
    auxiliary: AuxiliaryBalance | None = None
    """Beside the bias; DeepSeek-V3 adds a small one."""

    def __post_init__(self) -> None:
        """Refuse a rate without effect."""
        check_types(self)
        _require_above_0("BiasBalance", rate=self.rate)


@dataclass(frozen=True, kw_only=True)
class CapacityFactor:
    """A bound on the positions of a row that one expert takes (Lepikhin et al. 2020, arXiv 2006.16668).

    An expert takes the first ceil(factor * seq_len * n_active / n_experts) positions of each row that choose
    it; the others go without it, which is counted and logged as `dropped`. Three differences from the paper:
    the bound is that of a row and not of a batch, so no split of a batch changes what is dropped; position
    alone gives precedence, not the rank of the choice, so later tokens change nothing of earlier ones; and it
    binds in training only: in evaluation mode nothing is dropped, so that a cache changes nothing.
    """

    factor: float
    """1 leaves room for exactly even loads; 1.25 to 2 are usual."""

    def __post_init__(self) -> None:
        """Refuse room for nothing."""
        check_types(self)
        _require_above_0("CapacityFactor", factor=self.factor)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A router and `n_experts` feed-forwards of equal shape; perhaps one more that all tokens meet."""

    n_experts: int
    n_active: int
    """Experts that each token meets."""
    expert: FeedForward | GatedFeedForward
    """What each of them is."""
    shared: FeedForward | GatedFeedForward | None
    """Runs on every token, beside the chosen ones (Dai et al. 2024, arXiv 2401.06066). Several shared experts
    are one of their joint width."""
    score: Literal["softmax", "sigmoid"]
    """Of all experts together, or of each by itself; computed in float32."""
    renormalised: bool
    """Whether the weights of the chosen are divided by their sum."""
    balance: AuxiliaryBalance | BiasBalance | None
    """What keeps a few experts from getting all tokens."""
    capacity: CapacityFactor | None = None
    """None drops nothing."""
    routed_scale: float = 1.0
    """Multiplies the weights of the chosen; 2.5 in DeepSeek-V3."""
    shared_gate: bool = False
    """Whether the shared expert's output is multiplied by the sigmoid of a projection of x to one number, as
    in Qwen2-MoE (arXiv 2407.10671)."""

    def __post_init__(self) -> None:
        """Refuse a choice that is none, and settings without effect."""
        check_types(self)
        require_positive("Experts", n_experts=self.n_experts, n_active=self.n_active)
        _require_above_0("Experts", routed_scale=self.routed_scale)
        require(
            self.n_active < self.n_experts,
            place="Experts.n_active",
            found=self.n_active,
            wanted=f"below n_experts {self.n_experts}: there is nothing to choose otherwise",
        )
        require(
            not (self.renormalised and self.n_active == 1),
            place="Experts.renormalised",
            found=True,
            wanted="False for one active expert: its weight would always be 1, and the router learn nothing",
        )
        require(
            self.shared is not None or not self.shared_gate,
            place="Experts.shared_gate",
            found=True,
            wanted="False without a shared expert",
        )
        limit = self.n_experts / max(self.n_active, 1)
        require(
            self.capacity is None or self.capacity.factor < limit,
            place="Experts.capacity.factor",
            found=None if self.capacity is None else self.capacity.factor,
            wanted=f"below n_experts / n_active = {limit:g}, from where on an expert has room for all",
            remedy="Leave the capacity out (None): nothing is dropped then.",
        )

    def n_parameters(self, d_model: int) -> int:
        """Return those of the router, of all experts, and of the shared one."""
        return self._beside(d_model) + self.n_experts * self.expert.n_parameters(d_model)

    def n_active_parameters(self, d_model: int) -> int:
        """Return those that one token meets."""
        return self._beside(d_model) + self.n_active * self.expert.n_parameters(d_model)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter that the token meets, the router's among them."""
        del seq_len
        return 6 * self.n_active_parameters(d_model)

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import experts_module

        return experts_module.Experts(self, context)

    def _beside(self, d_model: int) -> int:
        """Count what every token meets: router, shared expert, its gate."""
        shared = 0 if self.shared is None else self.shared.n_parameters(d_model)
        return d_model * (self.n_experts + (1 if self.shared_gate else 0)) + shared


def _require_above_0(place: str, **numbers: float) -> None:
    for name, value in numbers.items():
        require(value > 0, place=f"{place}.{name}", found=value, wanted="a number above 0")
