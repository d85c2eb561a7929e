"""How large the model of each variant is, and what a token costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.models.lora import unadapted
from modelfactory.plan.cost import Prices, flops_per_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.experiment import Experiment
    from modelfactory.models import Architecture
    from modelfactory.plan import Plan
    from modelfactory.store import Store


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The model of a variant; with the vocabulary asked for until its tokenizer is stored."""

    variant: str
    vocab_size: int
    n_parameters: int
    """Embeddings and adapters included; a tied head counts once."""
    n_trainable: int
    """Those that training changes: of a model with adapters, the adapters'."""
    n_active: int
    """Those that one token meets: all but those of experts it is not sent to."""
    flops_per_token: int
    """Of a forward and a backward pass."""


def model_sizes(plan: Plan, store: Store | None) -> dict[str, ModelSize]:
    """Return the model of each variant by name, in the order of the experiments."""
    prices = Prices(store, threads=1, graph={stage.id: stage for stage in plan.stages}, pins=plan.pins)
    return {size.variant: size for size in _sizes(plan, prices)}


def _sizes(plan: Plan, prices: Prices) -> Iterator[ModelSize]:
    first: dict[str, Experiment] = {}
    for experiment in plan.experiments:
        first.setdefault(experiment.variant, experiment)
    for variant, experiment in first.items():
        model: Any = experiment.model
        vocab_size = prices.vocab_size(plan.roles[experiment.name]["tokenizer"])
        n_parameters = int(model.n_parameters(vocab_size))
        trainable = getattr(model, "n_trainable", model.n_parameters)
        yield ModelSize(
            variant=variant,
            vocab_size=vocab_size,
            n_parameters=n_parameters,
            n_trainable=int(trainable(vocab_size)),
            n_active=n_parameters - _n_idle(unadapted(model), vocab_size),
            flops_per_token=flops_per_token(model, vocab_size),
        )


def _n_idle(model: Architecture, vocab_size: int) -> int:
    """Return how many parameters one token does not meet."""
    active = getattr(model, "n_active_parameters", model.n_parameters)
    return int(model.n_parameters(vocab_size)) - int(active(vocab_size))
