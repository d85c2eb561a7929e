"""Multi-token prediction: while it is trained, a decoder also predicts tokens further ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from modelfactory.models.architecture import Layer
from modelfactory.models.checks import require_positive
from modelfactory.models.part_results import counted
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from modelfactory.models.architecture import Norm
    from modelfactory.models.decoder import Block


@dataclass(frozen=True, kw_only=True)
class MultiToken:
    """DeepSeek-V3's chain of further predictions (arXiv 2412.19437, section 2.2, equations 21 to 25).

    Depth k of n_extra takes, at position i, the state of depth k - 1 (depth 0 is the decoder before its last
    norm) and the embedding of token i + k; norms both, projects them side by side to d_model, applies one
    block, a last norm and the decoder's own head, and predicts token i + k + 1. Positions count for which
    that label exists and is valid, and token i + k is of the same document as token i.

    What a position counts is weight / n_extra times its loss, and the whole is divided by the same number of
    labels as the decoder's loss. Only training sees any of this: logits and generation are the decoder's.
    """

    n_extra: int
    """Further tokens; 1 in DeepSeek-V3."""
    weight: float
    """Of the mean over the depths; 0.3, later 0.1, in DeepSeek-V3."""
    block: Layer
    """A `Block`, made anew for each depth; its norm is also that of the two inputs."""

    def __post_init__(self) -> None:
        """Refuse what has no effect."""
        from modelfactory.models import decoder  # which holds a MultiToken in turn

        check_types(self)
        require_positive("MultiToken", n_extra=self.n_extra)
        require(self.weight > 0, place="MultiToken.weight", found=self.weight, wanted="a number above 0")
        is_block = isinstance(self.block, decoder.Block)
        require(is_block, place="MultiToken.block", found=self.block, wanted="a Block")

    def check(self, d_model: int, max_seq_len: int) -> None:
        """Raise SpecError if a depth would reach beyond every sequence, or the block does not fit."""
        require(
            self.n_extra < max_seq_len,
            place="MultiToken.n_extra",
            found=self.n_extra,
            wanted=f"below max_seq_len {max_seq_len}: no position has a token that far ahead",
        )
        if (check := getattr(self.block, "check", None)) is not None:
            check(d_model, max_seq_len)

    def n_parameters(self, d_model: int, final_norm: Norm) -> int:
        """Return those of all depths; embedding and head are the decoder's."""
        return self.n_extra * (self._beside(d_model, final_norm) + self._block.n_parameters(d_model))

    def n_active_parameters(self, d_model: int, final_norm: Norm) -> int:
        """Return those that one token meets."""
        return self.n_extra * (self._beside(d_model, final_norm) + self._block.n_active_parameters(d_model))

    def flops_per_token(self, d_model: int, seq_len: int, vocab_size: int, final_norm: Norm) -> int:
        """Return those of all depths and of the head at each, as if no row had an end."""
        beside = 6 * (self._beside(d_model, final_norm) + vocab_size * d_model)
        return self.n_extra * (beside + self._block.flops_per_token(d_model, seq_len))

    @property
    def _block(self) -> Block:
        return cast("Block", self.block)

    def _beside(self, d_model: int, final_norm: Norm) -> int:
        """Count the projection, the norms of its two inputs, and the last norm, of one depth."""
        norms = 2 * counted(self._block.norm, "n_parameters", d_model)
        norms += counted(final_norm, "n_parameters", d_model)
        return 2 * d_model * d_model + norms
