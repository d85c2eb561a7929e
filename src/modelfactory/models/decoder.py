"""The decoder: token embedding, blocks on a residual stream, final norm, head."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Literal, cast

from modelfactory.models.architecture import Layer, Norm
from modelfactory.models.checks import require_positive, require_scale
from modelfactory.models.initial import Initial
from modelfactory.models.multi_token import MultiToken
from modelfactory.models.part_results import counted, n_active_parameters
from modelfactory.models.roles import require_role
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.models.architecture import BuildContext
    from modelfactory.models.block_module import BlockModule
    from modelfactory.models.decoder_module import DecoderModule


Placement = Literal["pre", "output", "sandwich", "post"]
"""Where the norms of a block stand, f being the mixer or the feed-forward.

pre: x + f(norm(x)) (Xiong et al. 2020, arXiv 2002.04745). output: x + norm(f(x)), as in OLMo 2 (arXiv
2501.00656). sandwich: x + norm(f(norm(x))), as in Gemma 2 (arXiv 2408.00118). post: norm(x + f(x)), as in the
first transformer (Vaswani et al. 2017, arXiv 1706.03762).
"""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The mixer, then the feed-forward, each added to the residual stream x."""

    mixer: Layer
    """What moves information along the sequence, such as Attention."""
    feed_forward: Layer
    norm: Norm
    """Applied to each of the two, with parameters of its own each time."""
    placement: Placement = "pre"

    def __post_init__(self) -> None:
        """Check the types, and that no part has the role of another."""
        check_types(self)
        require_role(self.mixer, "mixer", "Block.mixer")
        require_role(self.feed_forward, "feed-forward", "Block.feed_forward")
        require_role(self.norm, "norm", "Block.norm")

    def check(self, d_model: int, max_seq_len: int) -> None:
        """Raise SpecError if a layer cannot be part of a decoder of this width and context, or adds nothing.

        Layers say so themselves, by an optional method of this name and these arguments (see `Layer`).
        """
        for layer in (self.mixer, self.feed_forward):
            if (check := getattr(layer, "check", None)) is not None:
                check(d_model, max_seq_len)

    @property
    def n_norms(self) -> int:
        """Norms of the block."""
        return 4 if self.placement == "sandwich" else 2

    def n_parameters(self, d_model: int) -> int:
        """Return those of both layers and all norms."""
        layers = sum(counted(layer, "n_parameters", d_model) for layer in (self.mixer, self.feed_forward))
        return layers + self.n_norms * counted(self.norm, "n_parameters", d_model)

    def n_active_parameters(self, d_model: int) -> int:
        """Return those that one token meets: all but those of experts it is not sent to."""
        layers = sum(n_active_parameters(layer, d_model) for layer in (self.mixer, self.feed_forward))
        return layers + self.n_norms * counted(self.norm, "n_parameters", d_model)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return those of both layers and 6 for each parameter of the norms."""
        both = (self.mixer, self.feed_forward)
        layers = sum(counted(layer, "flops_per_token", d_model, seq_len) for layer in both)
        return layers + 6 * self.n_norms * counted(self.norm, "n_parameters", d_model)

    def build(self, context: BuildContext) -> BlockModule:
        """Return the module, its parameters not yet initialised."""
        from modelfactory.models.block_module import BlockModule

        return BlockModule(self, context)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A causal language model over one residual stream; follows `Architecture`."""

    n_layers: int
    d_model: int
    max_seq_len: int
    """Tokens of a training sequence, and the longest context."""
    blocks: tuple[Block, ...]
    """Layer i is made like blocks[i % len(blocks)]: one block for all layers, or a pattern that repeats."""
    learned_positions: bool
    """Whether a learned vector for each position is added to the token embedding."""
    final_norm: Norm
    tied: bool
    """Whether the head is the token embedding."""
    initial: Initial
    embedding_scale: float = 1.0
    """Multiplies the token embedding where it enters the stream; Gemma's is sqrt(d_model)."""
    logit_scale: float = 1.0
    """Multiplies the logits, as muP does (Yang et al. 2022, arXiv 2203.03466)."""
    logit_softcap: float | None = None
    """Bounds the logits smoothly by c * tanh(logits / c) (Gemma 2, arXiv 2408.00118); None for no bound."""
    hidden_lr_scale: float = 1.0
    """Multiplies Adam's learning rate of the matrices in the blocks, as muP does; see `mup`."""
    multi_token: MultiToken | None = None
    """Predicts tokens further ahead while training; None for the next one only."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and a pattern longer than the depth, whose end would never be used."""
        check_types(self)
        require_role(self.final_norm, "norm", "Decoder.final_norm")
        require_positive(
            "Decoder", n_layers=self.n_layers, d_model=self.d_model, max_seq_len=self.max_seq_len
        )
        require(
            1 <= len(self.blocks) <= max(self.n_layers, 1),
            place="Decoder.blocks",
            found=len(self.blocks),
            wanted=f"between 1 and n_layers {self.n_layers} blocks",
        )
        for name in ("embedding_scale", "logit_scale", "hidden_lr_scale"):
            require_scale(f"Decoder.{name}", getattr(self, name))
        if self.logit_softcap is not None:
            require_scale("Decoder.logit_softcap", self.logit_softcap)
        for part in (*self.blocks, self.multi_token):
            if part is not None:
                part.check(self.d_model, self.max_seq_len)

    def layers(self) -> Iterator[Block]:
        """Yield the block of each layer, the first one first."""
        return (self.blocks[n % len(self.blocks)] for n in range(self.n_layers))

    def depths(self) -> Iterator[Block]:
        """Yield the block of each depth that predicts further tokens."""
        further = self.multi_token
        return repeat(cast("Block", further.block), further.n_extra) if further is not None else iter(())

    def n_parameters(self, vocab_size: int) -> int:
        """Return how many numbers are trained; a tied head counts once."""
        layers = sum(block.n_parameters(self.d_model) for block in self.layers())
        further = self.multi_token
        layers += 0 if further is None else further.n_parameters(self.d_model, self.final_norm)
        return layers + self._n_beside(vocab_size)

    def n_active_parameters(self, vocab_size: int) -> int:
        """Return how many of them one token meets: all but those of experts it is not sent to."""
        layers = sum(block.n_active_parameters(self.d_model) for block in self.layers())
        further = self.multi_token
        layers += 0 if further is None else further.n_active_parameters(self.d_model, self.final_norm)
        return layers + self._n_beside(vocab_size)

    def _n_beside(self, vocab_size: int) -> int:
        """Count embedding, head, learned positions and the last norm."""
        vocabulary = vocab_size * self.d_model * (1 if self.tied else 2)
        positions = self.max_seq_len * self.d_model if self.learned_positions else 0
        return vocabulary + positions + counted(self.final_norm, "n_parameters", self.d_model)

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        """Return 6N + 12LHQT for full attention, N without position table and with one vocabulary matrix.

        Of experts, N counts those that a token meets. Each depth of `multi_token` adds the head once more.
        """
        layers = sum(block.flops_per_token(self.d_model, seq_len) for block in self.layers())
        if (further := self.multi_token) is not None:
            layers += further.flops_per_token(self.d_model, seq_len, vocab_size, self.final_norm)
        norm = counted(self.final_norm, "n_parameters", self.d_model)
        return layers + 6 * (norm + vocab_size * self.d_model)

    def build(self, vocab_size: int, seed: int) -> DecoderModule:
        """Return the module in float32 on the CPU, initialised by `seed` alone."""
        from modelfactory.models.decoder_module import DecoderModule
        from modelfactory.models.modules import initialise

        require(vocab_size >= 1, place="Decoder.build.vocab_size", found=vocab_size, wanted="at least 1")
        module = DecoderModule(self, vocab_size)
        initialise(module, seed)
        return module
