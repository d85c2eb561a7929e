"""What the trainer, the evaluations and the plan ask of a model, and what a decoder asks of its parts.

Parameters are counted and FLOPs are priced by formula: nothing is allocated and torch is not imported.
FLOPs are those of a forward and a backward pass: 6 for each parameter of a matrix product or norm, with the
vocabulary matrix counted once (a lookup costs nothing), and what mixing along the sequence adds to it:
12 * n_heads * head_dim * seq_len for full attention, which does not discount the causal half (Chowdhery et
al. 2022, arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from modelfactory.models.initial import Initial

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class LanguageModel(Protocol):
    """The module an architecture builds: an `nn.Module` with these three methods."""

    def forward(self, tokens_BT: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Return logits_BTV; with a cache, `tokens_BT` continue what the cache holds."""

    def loss_sum(
        self, tokens_BT: torch.Tensor, labels_BT: torch.Tensor, valid_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the losses, in nats and float32, over positions where `valid_BT` is true.

        A module that is trained on more than this, or that keeps the documents of a row apart, has
        `training_sums` as well (see `Trained`).
        """

    def new_cache(self, batch: int, max_len: int) -> Any:
        """Return an empty cache for `batch` rows of up to `max_len` tokens."""


class LossSums(NamedTuple):
    """What the trainer gets from one part of a batch. Every number is a sum, so that parts add up."""

    loss: torch.Tensor
    """Sum of the losses over valid labels: nats, float32."""
    extra: torch.Tensor
    """What training minimises besides, on the same scale: balance of experts, further tokens; 0 if nothing.

    A sum over rows, so that no split of a batch changes the gradient.
    """
    observed: dict[str, torch.Tensor]
    """Sums that are logged and given to `after_step`, such as the tokens that each expert got."""


class Trained(Protocol):
    """Two methods a module may have beyond `LanguageModel`, for the trainer alone."""

    def training_sums(
        self,
        tokens_BT: torch.Tensor,
        labels_BT: torch.Tensor,
        valid_BT: torch.Tensor,
        documents_BT: torch.Tensor | None = None,
    ) -> LossSums:
        """Return all that is minimised and observed.

        With `documents_BT`, which numbers the documents of each row upwards from 0, nothing of one document
        may change what another one gets.
        """

    def after_step(self, observed: Mapping[str, torch.Tensor]) -> None:
        """Take in the sums of a whole step, over all ranks, after the update of the parameters."""


class Packing(NamedTuple):
    """Where the documents lie in rows that hold several."""

    documents_BT: torch.Tensor
    """Number of the document within its row, upwards from 0; int64."""
    positions_BT: torch.Tensor
    """Place of the token within its document, or the piece of it that lies in the row, from 0; int64."""
    mask_B1TT: torch.Tensor
    """What each position may see: those before it, and itself, of its own document; bool."""


class Routed(NamedTuple):
    """What a feed-forward of experts returns in place of y_BTD."""

    y_BTD: torch.Tensor
    balance_B: torch.Tensor
    """Auxiliary loss of each row, on the scale of the loss of one token; 0 without one. It is minimised as
    often as the row has valid labels."""
    load_BE: torch.Tensor
    """Positions of each row that chose each expert, float32."""
    dropped_B: torch.Tensor | None = None
    """Choices of each row for which an expert had no room left, float32; None if there is always room."""


class Architecture(Protocol):
    """A model as a value."""

    @property
    def max_seq_len(self) -> int:
        """Tokens of a training sequence, and the longest context."""

    def n_parameters(self, vocab_size: int) -> int:
        """Return how many numbers are trained; a shared one counts once."""

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        """Return the FLOPs of a forward and backward pass over one token of a sequence of `seq_len`."""

    def build(self, vocab_size: int, seed: int) -> Any:
        """Return a LanguageModel in float32 on the CPU, initialised by `seed` alone.

        The state of torch's global generator is left as it was.
        """


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a part of a decoder is told when its module is built; not a spec."""

    d_model: int
    max_seq_len: int
    initial: Initial
    shared: dict[Any, Any] = field(default_factory=dict)
    """Constants that several layers hold in common, by the spec they follow from."""


class Layer(Protocol):
    """A mixer or a feed-forward: maps x_BTD to y_BTD, to be added to the residual stream.

    The module of a feed-forward is called with x_BTD and returns y_BTD, or `Routed` where it holds experts.
    That of a mixer is called with x_BTD, its own cache or None, and a `Packing` where documents of a row are
    kept apart, else None; it has `new_cache(batch, max_len)`. A module that holds parameters of its own,
    outside the layers of `models.modules`, has `initialise(generator)`, which fills all of them.

    Two methods are optional. `check(d_model, max_seq_len)` raises SpecError (by `require`) for what only the
    whole decoder shows, such as a window as long as the context; `Decoder` calls it at declaration.
    `n_active_parameters(d_model)` returns how many numbers one token meets, where not all of them do.
    """

    def n_parameters(self, d_model: int) -> int:
        """Return how many numbers are trained."""

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return the FLOPs of a forward and backward pass over one token."""

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module, its parameters not yet initialised."""


class Norm(Protocol):
    """A normalisation over the last dimension."""

    def n_parameters(self, d_model: int) -> int:
        """Return how many numbers are trained."""

    def build(self, d_model: int) -> torch.nn.Module:
        """Return the module, its parameters not yet initialised."""
