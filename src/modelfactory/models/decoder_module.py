"""The decoder as a module.

Shapes: B batch, T time (position), D d_model, V vocabulary, N = B * T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models.architecture import BuildContext
from modelfactory.models.modules import Embedding, Linear

if TYPE_CHECKING:
    from modelfactory.models.decoder import Block, Decoder

UNCOUNTED = -100
"""Label of a position that gives no loss."""


class DecoderCache:
    """What generation keeps of the positions so far; all rows are of one length."""

    def __init__(self, layers: list[Any], max_len: int) -> None:
        self.layers = layers
        self.max_len = max_len
        self.n_tokens = 0


class BlockModule(nn.Module):
    """Two residual steps."""

    def __init__(self, spec: Block, context: BuildContext) -> None:
        super().__init__()
        self.mixer_norm = spec.norm.build(context.d_model)
        self.mixer = spec.mixer.build(context)
        self.feed_forward_norm = spec.norm.build(context.d_model)
        self.feed_forward = spec.feed_forward.build(context)

    def forward(self, x_BTD: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Return the residual stream after the block."""
        x_BTD = x_BTD + self.mixer(self.mixer_norm(x_BTD), cache)
        return cast("torch.Tensor", x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD)))


class DecoderModule(nn.Module):
    """Follows `LanguageModel`. A tied head is no second parameter: the embedding is used twice."""

    def __init__(self, spec: Decoder, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.max_seq_len = vocab_size, spec.max_seq_len
        initial, d_model = spec.initial, spec.d_model
        context = BuildContext(d_model=d_model, max_seq_len=spec.max_seq_len, initial=initial)
        self.embedding = Embedding(vocab_size, d_model, std=initial.vocabulary_std)
        if spec.learned_positions:
            self.positions = Embedding(spec.max_seq_len, d_model, std=initial.position_std)
        self.has_positions = spec.learned_positions
        self.blocks = nn.ModuleList(BlockModule(block, context) for block in spec.layers())
        self.final_norm = spec.final_norm.build(d_model)
        if not spec.tied:
            self.head = Linear(d_model, vocab_size, bias=False, std=initial.vocabulary_std)
        self.is_tied = spec.tied

    @property
    def head_VD(self) -> torch.Tensor:
        """The matrix that turns the last hidden state into logits."""
        return self.embedding.weight if self.is_tied else self.head.weight

    def forward(self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None) -> torch.Tensor:
        """Return logits_BTV; with a cache, `tokens_BT` continue what the cache holds."""
        return functional.linear(self.hidden(tokens_BT, cache), self.head_VD)

    def hidden(self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None) -> torch.Tensor:
        """Return the hidden state before the head, x_BTD."""
        start = 0 if cache is None else cache.n_tokens
        end = start + tokens_BT.shape[1]
        self._refuse_too_long(end, cache)
        x_BTD = self.embedding(tokens_BT)
        if self.has_positions:
            x_BTD = x_BTD + self.positions.weight[start:end]
        for n, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, None if cache is None else cache.layers[n])
        if cache is not None:
            cache.n_tokens = end
        return cast("torch.Tensor", self.final_norm(x_BTD))

    def loss_sum(
        self, tokens_BT: torch.Tensor, labels_BT: torch.Tensor, valid_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the losses in nats, float32, over positions where `valid_BT` is true."""
        logits_NV = functional.linear(self.hidden(tokens_BT), self.head_VD).flatten(0, 1).float()
        labels_N = torch.where(valid_BT, labels_BT, UNCOUNTED).flatten()
        return functional.cross_entropy(logits_NV, labels_N, ignore_index=UNCOUNTED, reduction="sum")

    def new_cache(self, batch: int, max_len: int) -> DecoderCache:
        """Return an empty cache for `batch` rows of up to `max_len` tokens."""
        self._refuse_too_long(max_len, None)
        layers = [cast("Any", block).mixer.new_cache(batch, max_len) for block in self.blocks]
        return DecoderCache(layers, max_len)

    def _refuse_too_long(self, n_tokens: int, cache: DecoderCache | None) -> None:
        limit = self.max_seq_len if cache is None else min(cache.max_len, self.max_seq_len)
        if n_tokens > limit:
            raise SpecError(
                place="tokens",
                found=f"{n_tokens} positions",
                wanted=f"at most {limit}",
                remedy="Shorten the text, or train with a larger max_seq_len.",
            )
