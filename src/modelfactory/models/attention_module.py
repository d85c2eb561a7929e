"""Causal attention as a module.

Shapes: B batch, T time (position), D d_model, H heads, K key/value heads, Q head_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from modelfactory.models.attention_cache import AttentionCache, FullCache, WindowCache
from modelfactory.models.modules import Linear
from modelfactory.models.rope_module import Rotation
from modelfactory.models.scoring import Scoring
from modelfactory.models.softmax_attention import attend

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.attention import Attention


class CausalAttention(nn.Module):
    """Queries, keys, values and the gate in one matrix, in this order."""

    def __init__(self, spec: Attention, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.n_heads, self.n_kv_heads, self.head_dim = spec.n_heads, spec.n_kv_heads, spec.head_dim
        rows = spec.qkv_rows
        self.qkv = Linear(d_model, spec.qkv_dim, bias=spec.qkv_bias, std=initial.matrix_std, rows=rows)
        self.out = Linear(spec.n_heads * spec.head_dim, d_model, bias=spec.out_bias, std=initial.residual_std)
        scale = None if isinstance(spec.scale, str) else spec.scale  # None is 1/sqrt(head_dim) in torch
        self.scoring = Scoring(scale=scale, softcap=spec.softcap, window=spec.window)
        self.attend = attend  # a trainer whose rows lie on several processes puts its own here
        self.is_gated, self.window = spec.gate, spec.window
        self.rotation = None if spec.rope is None else Rotation(spec.rope, spec.head_dim, context)
        self.norm_over = None if spec.qk_norm is None else spec.qk_norm.over
        if spec.qk_norm is not None:
            q_width, k_width = spec.norm_widths
            self.q_norm = spec.qk_norm.norm.build(q_width)
            self.k_norm = spec.qk_norm.norm.build(k_width)

    def forward(
        self, x_BTD: torch.Tensor, cache: AttentionCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTD."""
        B, T, _ = x_BTD.shape
        n_turned, n_gates = self.n_heads + self.n_kv_heads, self.n_heads if self.is_gated else 0
        qk_BTHQ, v_BTKQ, gate_BTHQ = (
            self.qkv(x_BTD).view(B, T, -1, self.head_dim).split((n_turned, self.n_kv_heads, n_gates), dim=2)
        )
        if self.norm_over is not None:
            qk_BTHQ = self._normed(qk_BTHQ)
        if self.rotation is not None:
            qk_BTHQ = self.rotation(qk_BTHQ, 0 if cache is None else cache.n_tokens, packing)
        q_BTHQ, k_BTKQ = qk_BTHQ.to(v_BTKQ.dtype).split((self.n_heads, self.n_kv_heads), dim=2)
        q_BHTQ, k_BKTQ, v_BKTQ = (part.transpose(1, 2) for part in (q_BTHQ, k_BTKQ, v_BTKQ))
        if cache is not None:
            k_BKTQ, v_BKTQ = (part.to(q_BHTQ.dtype) for part in cache.append(k_BKTQ, v_BKTQ))
        y_BTHQ = self.attend(q_BHTQ, k_BKTQ, v_BKTQ, self.scoring, packing).transpose(1, 2)
        if self.is_gated:
            y_BTHQ = y_BTHQ * gate_BTHQ.sigmoid()
        return cast("torch.Tensor", self.out(y_BTHQ.reshape(B, T, -1)))

    def new_cache(self, batch: int, max_len: int) -> AttentionCache:
        """Return an empty cache."""
        held = max_len if self.window is None else min(max_len, self.window)
        shape = (batch, self.n_kv_heads, held, self.head_dim)
        kind = FullCache if held == max_len else WindowCache
        return kind(self.qkv.weight.new_empty(shape), self.qkv.weight.new_empty(shape))

    def _normed(self, qk_BTHQ: torch.Tensor) -> torch.Tensor:
        """Normalise queries and keys in the type of the parameters, which autocast leaves as it is."""
        qk_BTHQ = qk_BTHQ.to(self.qkv.weight.dtype)
        q_BTHQ, k_BTKQ = torch.split(qk_BTHQ, [self.n_heads, self.n_kv_heads], dim=2)
        if self.norm_over == "head":
            return torch.cat((self.q_norm(q_BTHQ), self.k_norm(k_BTKQ)), dim=2)
        q_BTHQ = self.q_norm(q_BTHQ.flatten(2)).view(q_BTHQ.shape)
        return torch.cat((q_BTHQ, self.k_norm(k_BTKQ.flatten(2)).view(k_BTKQ.shape)), dim=2)
