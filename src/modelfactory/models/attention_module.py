"""Causal attention as a module.

Shapes: B batch, T time (position), S positions attended to, D d_model, H heads, K key/value heads,
Q head_dim, P = Q / 2 pairs of dimensions that turn together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.models.modules import Linear

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.attention import Attention, Rope


class AttentionCache:
    """Keys and values of the positions so far; all rows are of one length."""

    def __init__(self, keys_BKSQ: torch.Tensor, values_BKSQ: torch.Tensor) -> None:
        self.keys_BKSQ = keys_BKSQ
        self.values_BKSQ = values_BKSQ
        self.n_tokens = 0

    def append(self, keys_BKTQ: torch.Tensor, values_BKTQ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of all positions, the new ones last."""
        end = self.n_tokens + keys_BKTQ.shape[2]
        self.keys_BKSQ[:, :, self.n_tokens : end] = keys_BKTQ
        self.values_BKSQ[:, :, self.n_tokens : end] = values_BKTQ
        self.n_tokens = end
        return self.keys_BKSQ[:, :, :end], self.values_BKSQ[:, :, :end]


class CausalAttention(nn.Module):
    """Queries, keys and values in one matrix, in this order."""

    def __init__(self, spec: Attention, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.n_heads, self.n_kv_heads, self.head_dim = spec.n_heads, spec.n_kv_heads, spec.head_dim
        self.qkv = Linear(d_model, spec.qkv_dim, bias=spec.qkv_bias, std=initial.matrix_std)
        self.out = Linear(spec.n_heads * spec.head_dim, d_model, bias=spec.out_bias, std=initial.residual_std)
        self.scale = None if isinstance(spec.scale, str) else spec.scale  # None is 1/sqrt(head_dim) in torch
        self.is_rotary = spec.rope is not None
        if spec.rope is not None:
            cos_TP, sin_TP = _shared_rotations(spec.rope, spec.head_dim, context)
            self.register_buffer("cos_TP", cos_TP, persistent=False)
            self.register_buffer("sin_TP", sin_TP, persistent=False)

    def forward(
        self, x_BTD: torch.Tensor, cache: AttentionCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTD."""
        B, T, _ = x_BTD.shape
        n_turned = self.n_heads + self.n_kv_heads
        qk_BTHQ, v_BTKQ = (
            self.qkv(x_BTD).view(B, T, -1, self.head_dim).split((n_turned, self.n_kv_heads), dim=2)
        )
        if self.is_rotary:
            qk_BTHQ = self._rotated(qk_BTHQ, 0 if cache is None else cache.n_tokens, packing)
        q_BTHQ, k_BTKQ = qk_BTHQ.split((self.n_heads, self.n_kv_heads), dim=2)
        q_BHTQ, k_BKTQ, v_BKTQ = (part.transpose(1, 2) for part in (q_BTHQ, k_BTKQ, v_BTKQ))
        y_BHTQ = self._attend(q_BHTQ, k_BKTQ, v_BKTQ, cache, packing)
        return cast("torch.Tensor", self.out(y_BHTQ.transpose(1, 2).reshape(B, T, -1)))

    def new_cache(self, batch: int, max_len: int) -> AttentionCache:
        """Return an empty cache."""
        shape = (batch, self.n_kv_heads, max_len, self.head_dim)
        return AttentionCache(self.qkv.weight.new_empty(shape), self.qkv.weight.new_empty(shape))

    def _attend(
        self,
        q_BHTQ: torch.Tensor,
        k_BKTQ: torch.Tensor,
        v_BKTQ: torch.Tensor,
        cache: AttentionCache | None,
        packing: Packing | None,
    ) -> torch.Tensor:
        options: Any = {"enable_gqa": self.n_kv_heads != self.n_heads, "scale": self.scale}
        if packing is not None:
            return functional.scaled_dot_product_attention(
                q_BHTQ, k_BKTQ, v_BKTQ, attn_mask=packing.mask_B1TT, **options
            )
        if cache is None:
            return functional.scaled_dot_product_attention(q_BHTQ, k_BKTQ, v_BKTQ, is_causal=True, **options)
        start, T = cache.n_tokens, q_BHTQ.shape[2]
        k_BKSQ, v_BKSQ = (part.to(q_BHTQ.dtype) for part in cache.append(k_BKTQ, v_BKTQ))
        if T == 1:  # the newest position sees all others
            return functional.scaled_dot_product_attention(q_BHTQ, k_BKSQ, v_BKSQ, **options)
        mask_TS = torch.ones(T, start + T, dtype=torch.bool, device=q_BHTQ.device).tril(start)
        return functional.scaled_dot_product_attention(q_BHTQ, k_BKSQ, v_BKSQ, attn_mask=mask_TS, **options)

    def _rotated(self, x_BTHQ: torch.Tensor, start: int, packing: Packing | None) -> torch.Tensor:
        """Turn each pair of dimensions by its angle, in float32 as the tables are."""
        places = slice(start, start + x_BTHQ.shape[1]) if packing is None else packing.positions_BT
        cos = cast("torch.Tensor", self.cos_TP)[places].unsqueeze(-2)
        sin = cast("torch.Tensor", self.sin_TP)[places].unsqueeze(-2)
        first, second = x_BTHQ.chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(x_BTHQ.dtype)


def _shared_rotations(rope: Rope, head_dim: int, context: BuildContext) -> tuple[torch.Tensor, torch.Tensor]:
    key = (rope, head_dim)
    if key not in context.shared:
        context.shared[key] = rotations(rope, head_dim, context.max_seq_len)
    return cast("tuple[torch.Tensor, torch.Tensor]", context.shared[key])


def rotations(rope: Rope, head_dim: int, max_seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos_TP and sin_TP in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles_TP = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), 1.0 / rope.theta**exponents)
    return angles_TP.cos(), angles_TP.sin()
