"""Multi-head latent attention as a module.

Shapes: B batch, T time (position), S positions attended to, D d_model, H heads, N dimensions of a head
without position, R those that turn, Q = N + R, V width of a head's values, C width of the latent, Z = C + R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from modelfactory.models.modules import Linear
from modelfactory.models.rope_module import Rotation
from modelfactory.models.scoring import Scoring
from modelfactory.models.softmax_attention import attend

if TYPE_CHECKING:
    from modelfactory.models import latent_attention
    from modelfactory.models.architecture import BuildContext, Packing


class LatentCache:
    """The latent and the shared rotated key of each position so far; all rows are of one length."""

    def __init__(self, latents_BSZ: torch.Tensor) -> None:
        self.latents_BSZ = latents_BSZ
        self.n_tokens = 0

    def append(self, latents_BTZ: torch.Tensor) -> torch.Tensor:
        """Return those of all positions, the new ones last."""
        end = self.n_tokens + latents_BTZ.shape[1]
        self.latents_BSZ[:, self.n_tokens : end] = latents_BTZ
        self.n_tokens = end
        return self.latents_BSZ[:, :end]


class LatentAttention(nn.Module):
    """Inward, one matrix gives queries (or their latent), latent and shared key, in this order."""

    def __init__(self, spec: latent_attention.LatentAttention, context: BuildContext) -> None:
        super().__init__()
        std, d_model, n_heads = context.initial.matrix_std, context.d_model, spec.n_heads
        self.n_heads, self.nope_head_dim, self.v_head_dim = n_heads, spec.nope_head_dim, spec.v_head_dim
        self.rope_head_dim = spec.rope_head_dim
        self.widths = (spec.q_inward, spec.kv_rank, spec.rope_head_dim)
        self.inward = Linear(d_model, sum(self.widths), bias=False, std=std)
        self.has_q_latent = spec.q_rank is not None
        if spec.q_rank is not None:
            self.q_norm = spec.norm.build(spec.q_rank)
            self.q_up = Linear(spec.q_rank, n_heads * spec.qk_head_dim, bias=False, std=std)
        self.kv_norm = spec.norm.build(spec.kv_rank)
        self.kv_up = Linear(
            spec.kv_rank, n_heads * (spec.nope_head_dim + spec.v_head_dim), bias=False, std=std
        )
        self.out = Linear(n_heads * spec.v_head_dim, d_model, bias=False, std=context.initial.residual_std)
        self.rotation = Rotation(spec.rope, spec.rope_head_dim, context)
        self.attend = attend  # a trainer whose rows lie on several processes puts its own here
        self.scoring = Scoring(scale=spec.qk_head_dim**-0.5 if isinstance(spec.scale, str) else spec.scale)

    def forward(
        self, x_BTD: torch.Tensor, cache: LatentCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTD."""
        B, T, _ = x_BTD.shape
        start = 0 if cache is None else cache.n_tokens
        q_BTE, latent_BTC, k_rope_BTR = self.inward(x_BTD).split(self.widths, dim=-1)
        if self.has_q_latent:
            q_BTE = self.q_up(self._normed(self.q_norm, q_BTE))
        q_BTHQ = q_BTE.view(B, T, self.n_heads, -1)
        q_nope_BTHN, q_rope_BTHR = q_BTHQ.split((self.nope_head_dim, self.rope_head_dim), dim=-1)
        q_rope_BTHR = self.rotation(q_rope_BTHR, start, packing)
        k_rope_BTR = self.rotation(k_rope_BTR[:, :, None], start, packing)[:, :, 0]
        latents_BTZ = torch.cat((self._normed(self.kv_norm, latent_BTC), k_rope_BTR), dim=-1)
        if cache is not None:
            cached_BSZ = cache.append(latents_BTZ).to(latents_BTZ.dtype)
        if start > 0:
            y_BHTV = self._attend_to_latents(q_nope_BTHN, q_rope_BTHR, cached_BSZ)
        else:
            q_BHTQ = torch.cat((q_nope_BTHN, q_rope_BTHR), dim=-1).transpose(1, 2)
            y_BHTV = self._attend_to_keys(q_BHTQ, latents_BTZ, packing)
        return cast("torch.Tensor", self.out(y_BHTV.transpose(1, 2).reshape(B, T, -1)))

    def new_cache(self, batch: int, max_len: int) -> LatentCache:
        """Return an empty cache."""
        return LatentCache(self.inward.weight.new_empty(batch, max_len, sum(self.widths[1:])))

    def _normed(self, norm: nn.Module, latent: torch.Tensor) -> torch.Tensor:
        """Normalise in the type of the parameters, which autocast leaves as it is."""
        return cast("torch.Tensor", norm(latent.to(self.inward.weight.dtype)).to(latent.dtype))

    def _attend_to_keys(
        self, q_BHTQ: torch.Tensor, latents_BTZ: torch.Tensor, packing: Packing | None
    ) -> torch.Tensor:
        """Project keys and values from the latent, as in training: each head's are narrower than it."""
        B, T, _ = latents_BTZ.shape
        latent_BTC, k_rope_BTR = torch.split(latents_BTZ, list(self.widths[1:]), dim=-1)
        k_nope_BHTN, v_BHTV = (
            self.kv_up(latent_BTC)
            .view(B, T, self.n_heads, -1)
            .transpose(1, 2)
            .split((self.nope_head_dim, self.v_head_dim), dim=-1)
        )
        k_rope_BHTR = k_rope_BTR[:, None].expand(-1, self.n_heads, -1, -1)
        k_BHTQ = torch.cat((k_nope_BHTN, k_rope_BHTR), dim=-1)
        return self.attend(q_BHTQ, k_BHTQ, v_BHTV, self.scoring, packing)

    def _attend_to_latents(
        self, q_nope_BTHN: torch.Tensor, q_rope_BTHR: torch.Tensor, cached_BSZ: torch.Tensor
    ) -> torch.Tensor:
        """Let the latent be key and value of all heads, and project queries and output instead.

        The same function (section 2.1.2): q (W c) = (W^T q) c. Nothing is projected for earlier positions.
        """
        up_HEC = self.kv_up.weight.view(self.n_heads, -1, self.widths[1]).to(q_nope_BTHN.dtype)
        k_up_HNC, v_up_HVC = torch.split(up_HEC, [self.nope_head_dim, self.v_head_dim], dim=1)
        q_BTHC = torch.einsum("bthn,hnc->bthc", q_nope_BTHN, k_up_HNC)
        q_BHTZ = torch.cat((q_BTHC, q_rope_BTHR), dim=-1).transpose(1, 2)
        k_B1SZ = cached_BSZ[:, None]
        mean_BHTC = attend(q_BHTZ, k_B1SZ, k_B1SZ[..., : self.widths[1]], self.scoring)
        return torch.einsum("bhtc,hvc->bhtv", mean_BHTC, v_up_HVC)
