"""The decoder as a module.

Shapes: B batch, T time (position), D d_model, V vocabulary, N = B * T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models.architecture import BuildContext, LossSums, Packing, Routed
from modelfactory.models.cross_entropy import UNCOUNTED, cross_entropy_sum, scaled
from modelfactory.models.modules import Embedding, Linear
from modelfactory.models.packing import packing_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.models.decoder import Block, Decoder


class DecoderCache:
    """What generation keeps of the positions so far; all rows are of one length."""

    def __init__(self, layers: list[Any], max_len: int) -> None:
        self.layers = layers
        self.max_len = max_len
        self.n_tokens = 0


class BlockModule(nn.Module):
    """Two residual steps, with norms placed as `decoder.Placement` has it."""

    def __init__(self, spec: Block, context: BuildContext) -> None:
        super().__init__()
        self.placement = spec.placement
        self.mixer_norm = spec.norm.build(context.d_model)
        self.mixer = spec.mixer.build(context)
        self.feed_forward_norm = spec.norm.build(context.d_model)
        self.feed_forward = spec.feed_forward.build(context)
        if spec.placement == "sandwich":
            self.mixer_out_norm = spec.norm.build(context.d_model)
            self.feed_forward_out_norm = spec.norm.build(context.d_model)

    def forward(
        self, x_BTD: torch.Tensor, cache: Any = None, packing: Packing | None = None
    ) -> tuple[torch.Tensor, Routed | None]:
        """Return the residual stream after the block, and what its experts tell, if it has any."""
        is_first = self.placement in ("pre", "sandwich")
        y_BTD = self.mixer(self.mixer_norm(x_BTD) if is_first else x_BTD, cache, packing)
        x_BTD = self._added(x_BTD, y_BTD, "mixer")
        fed = self.feed_forward(self.feed_forward_norm(x_BTD) if is_first else x_BTD)
        routed = fed if isinstance(fed, Routed) else None
        return self._added(x_BTD, fed if routed is None else routed.y_BTD, "feed_forward"), routed

    def _added(self, x_BTD: torch.Tensor, y_BTD: torch.Tensor, name: str) -> torch.Tensor:
        """Add what a layer gave to the stream."""
        if self.placement == "pre":
            return x_BTD + y_BTD
        norm = getattr(self, f"{name}_out_norm" if self.placement == "sandwich" else f"{name}_norm")
        if self.placement == "post":
            return cast("torch.Tensor", norm(x_BTD + y_BTD))
        return cast("torch.Tensor", x_BTD + norm(y_BTD))


class DecoderModule(nn.Module):
    """Follows `LanguageModel` and `Trained`; a tied head is the embedding, used twice."""

    def __init__(self, spec: Decoder, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.max_seq_len = vocab_size, spec.max_seq_len
        self.embedding_scale = spec.embedding_scale
        self.logits: Any = {"scale": spec.logit_scale, "softcap": spec.logit_softcap}
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
        x_BTD, _ = self.hidden(tokens_BT, cache)
        return scaled(functional.linear(x_BTD, self.head_VD), **self.logits)

    def hidden(
        self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None, packing: Packing | None = None
    ) -> tuple[torch.Tensor, dict[str, Routed]]:
        """Return the hidden state before the head, x_BTD, and what experts tell, by the name of the layer."""
        start = 0 if cache is None else cache.n_tokens
        end = start + tokens_BT.shape[1]
        self._refuse_too_long(end, cache)
        x_BTD = self._embedded(tokens_BT, start, packing)
        told: dict[str, Routed] = {}
        for n, block in enumerate(self.blocks):
            x_BTD, routed = block(x_BTD, None if cache is None else cache.layers[n], packing)
            if routed is not None:
                told[f"blocks.{n}.feed_forward"] = routed
        if cache is not None:
            cache.n_tokens = end
        return cast("torch.Tensor", self.final_norm(x_BTD)), told

    def _embedded(self, tokens_BT: torch.Tensor, start: int, packing: Packing | None) -> torch.Tensor:
        x_BTD = self.embedding(tokens_BT)
        if self.embedding_scale != 1.0:
            x_BTD = x_BTD * self.embedding_scale
        if self.has_positions and packing is not None:
            x_BTD = x_BTD + self.positions(packing.positions_BT)
        elif self.has_positions:
            x_BTD = x_BTD + self.positions.weight[start : start + tokens_BT.shape[1]]
        return cast("torch.Tensor", x_BTD)

    def loss_sum(
        self, tokens_BT: torch.Tensor, labels_BT: torch.Tensor, valid_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the losses in nats, float32, over positions where `valid_BT` is true."""
        return self.training_sums(tokens_BT, labels_BT, valid_BT).loss

    def training_sums(
        self,
        tokens_BT: torch.Tensor,
        labels_BT: torch.Tensor,
        valid_BT: torch.Tensor,
        documents_BT: torch.Tensor | None = None,
    ) -> LossSums:
        """Return the sum of the losses, what is minimised besides, and the load of experts."""
        packing = None if documents_BT is None else packing_of(documents_BT)
        x_BTD, told = self.hidden(tokens_BT, None, packing)
        labels_N = torch.where(valid_BT, labels_BT, UNCOUNTED).flatten()
        loss = cross_entropy_sum(x_BTD.flatten(0, 1), self.head_VD, labels_N, **self.logits)
        balances = [routed.balance for routed in told.values()]
        extra = torch.stack(balances).sum() if balances else torch.zeros_like(loss)
        loads = {f"{name}.load": routed.load_E.detach() for name, routed in told.items()}
        return LossSums(loss, extra, loads)

    def after_step(self, observed: Mapping[str, torch.Tensor]) -> None:
        """Hand each layer of experts its load, by which it may balance itself."""
        for name, load_E in observed.items():
            layer: Any = self.get_submodule(name.removesuffix(".load"))
            layer.after_step(load_E)

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
