"""The decoder as a module.

Shapes: B batch, T time (position), D d_model, V vocabulary, N = B * T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models.architecture import BuildContext, LossSums
from modelfactory.models.cross_entropy import UNCOUNTED, cross_entropy_sum, scaled
from modelfactory.models.modules import Embedding, Linear
from modelfactory.models.multi_token_module import FurtherTokens
from modelfactory.models.packing import packing_of
from modelfactory.models.part_results import built
from modelfactory.models.routing_sums import LOAD, routing_sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelfactory.models.architecture import Packing, Routed
    from modelfactory.models.decoder import Decoder


class DecoderCache:
    """What generation keeps of the positions so far; all rows are of one length."""

    def __init__(self, layers: list[Any], max_len: int) -> None:
        self.layers = layers
        self.max_len = max_len
        self.n_tokens = 0


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
        self.blocks = nn.ModuleList(block.build(context) for block in spec.layers())
        self.final_norm = built(spec.final_norm, d_model)
        further = spec.multi_token
        self.multi_token = None if further is None else FurtherTokens(further, spec.final_norm, context)
        if not spec.tied:
            self.head = Linear(d_model, vocab_size, bias=False, std=initial.vocabulary_std)
        self.is_tied = spec.tied
        self.hidden_lr_scale = spec.hidden_lr_scale

    @property
    def head_VD(self) -> torch.Tensor:
        """The matrix that turns the last hidden state into logits."""
        return self.embedding.weight if self.is_tied else self.head.weight

    def forward(self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None) -> torch.Tensor:
        """Return logits_BTV; with a cache, `tokens_BT` continue what the cache holds."""
        return self.to_logits(self.states(tokens_BT, cache))

    def states(self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None) -> torch.Tensor:
        """Return what `to_logits` takes, x_BTD: whoever wants few logits picks positions between the two."""
        return self.hidden(tokens_BT, cache)[0]

    def to_logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return logits_NV of states, whatever their leading dimensions."""
        return scaled(functional.linear(x_ND, self.head_VD), **self.logits)

    def hidden(
        self, tokens_BT: torch.Tensor, cache: DecoderCache | None = None, packing: Packing | None = None
    ) -> tuple[torch.Tensor, dict[str, Routed]]:
        """Return the hidden state before the head, x_BTD, and what experts tell, by the name of the layer."""
        x_BTD, told = self._stream(tokens_BT, cache, packing)
        return cast("torch.Tensor", self.final_norm(x_BTD)), told

    def _stream(
        self, tokens_BT: torch.Tensor, cache: DecoderCache | None, packing: Packing | None
    ) -> tuple[torch.Tensor, dict[str, Routed]]:
        """Return the residual stream after the last block, and what experts tell."""
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
        return x_BTD, told

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
        x_BTD, _ = self.hidden(tokens_BT)
        return self._loss(x_BTD, labels_BT.where(valid_BT, UNCOUNTED))

    def training_sums(
        self,
        tokens_BT: torch.Tensor,
        labels_BT: torch.Tensor,
        valid_BT: torch.Tensor,
        documents_BT: torch.Tensor | None = None,
    ) -> LossSums:
        """Return the sum of the losses, what is minimised besides, and the load of experts."""
        packing = None if documents_BT is None else packing_of(documents_BT)
        x_BTD, told = self._stream(tokens_BT, None, packing)
        labels_BT = labels_BT.where(valid_BT, UNCOUNTED)
        loss = self._loss(self.final_norm(x_BTD), labels_BT)
        extra = torch.zeros_like(loss)
        if (further := self.multi_token) is not None:
            depths = further(x_BTD, tokens_BT, labels_BT, documents_BT, self.embedding)
            for n, (y_BSD, labels_BS, routed) in enumerate(depths):
                extra = extra + further.weight * self._loss(y_BSD, labels_BS)
                if routed is not None:
                    told[f"multi_token.depths.{n}.block.feed_forward"] = routed
        balance, observed = routing_sums(told, valid_BT)
        return LossSums(loss, extra + balance, observed)

    def _loss(self, x_BTD: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses over labels that are not UNCOUNTED."""
        return cross_entropy_sum(x_BTD.flatten(0, 1), self.head_VD, labels_BT.flatten(), **self.logits)

    def after_step(self, observed: Mapping[str, torch.Tensor]) -> None:
        """Hand each layer of experts its load, by which it may balance itself."""
        for name, load_E in observed.items():
            layer: Any = self.get_submodule(name.removesuffix(LOAD)) if name.endswith(LOAD) else None
            if hasattr(layer, "after_step"):
                layer.after_step(load_E)

    def hidden_matrices(self) -> set[str]:
        """Return the names of matrices from hidden vectors to hidden vectors, which Muon and SOAP take."""
        return {f"{name}.weight" for name, part in self._within() if isinstance(part, nn.Linear)}

    def stacked_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix, by the name of a parameter that holds several."""
        layers = ((name, part) for name, part in self._within() if isinstance(part, Linear))
        return {f"{name}.weight": part.rows for name, part in layers if part.rows}

    def lr_scales(self) -> dict[str, float]:
        """Return what multiplies the learning rate of a parameter, where that is not 1."""
        if self.hidden_lr_scale == 1.0:
            return {}
        return {
            f"{at}.{name}": self.hidden_lr_scale
            for at, part in self._within()
            for name, parameter in part.named_parameters(recurse=False)
            if parameter.ndim >= 2
        }

    def _within(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield by name all modules in the blocks and in what predicts further tokens."""
        for name, part in self.named_modules():
            if name.startswith(("blocks.", "multi_token.")):
                yield name, part

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
