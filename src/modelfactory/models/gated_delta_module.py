"""Gated DeltaNet as a module.

Shapes: B batch, T time (position), D d_model, K key heads, H value heads, Q key_head_dim, V value_head_dim,
C channels of the convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.models.gated_delta_rule import DeltaInputs, gated_delta
from modelfactory.models.gpu_kernels import GATED_DELTA, chosen, if_installed
from modelfactory.models.modules import Linear
from modelfactory.models.recurrent import (
    GatedRMSNorm,
    RecurrentCache,
    exact_dtype,
    first_positions,
    initialise_decays,
)
from modelfactory.models.short_convolution import ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.gated_delta import GatedDelta

FORGOTTEN = -128.0
"""A log decay that leaves exactly 0 in float32, and is small enough that sums with it keep their digits."""


class GatedDeltaMixer(nn.Module):
    """What transformers' Qwen3NextGatedDeltaNet computes.

    `A_log`, `dt_bias`, `conv.weight` (theirs: conv1d), `norm.weight` and `out.weight` (out_proj) are equal to
    theirs. Rows of `in_qkvz` are all queries, keys, values, gates, each by head; those of `in_ba` all
    strengths, then all decays. Theirs (in_proj_qkvz, in_proj_ba) have the same rows grouped by key head:
    q, k, v, z of the first key head, then of the second; Qwen3.5 has ours, in four matrices.
    """

    def __init__(self, spec: GatedDelta, context: BuildContext) -> None:
        super().__init__()
        std, d_model = context.initial.matrix_std, context.d_model
        self.spec = spec
        self.in_qkvz = Linear(d_model, spec.conv_dim + spec.value_dim, bias=False, std=std)
        self.in_ba = Linear(d_model, 2 * spec.n_value_heads, bias=False, std=std)
        self.conv = ShortConvolution(spec.conv_dim, width=spec.conv_width, bias=False)
        self.A_log = nn.Parameter(torch.empty(spec.n_value_heads))
        self.dt_bias = nn.Parameter(torch.empty(spec.n_value_heads))
        self.norm = GatedRMSNorm(spec.value_head_dim, eps=spec.norm_eps, gate_first=False)
        self.out = Linear(spec.value_dim, d_model, bias=False, std=context.initial.residual_std)
        self.kernel = if_installed(GATED_DELTA)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw decays, see `initialise_decays`."""
        initialise_decays(self.A_log, self.dt_bias, generator)

    def forward(
        self, x_BTD: torch.Tensor, cache: RecurrentCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTD."""
        spec, key_dim = self.spec, self.spec.key_dim
        qkv_BTC, z = self.in_qkvz(x_BTD).split((spec.conv_dim, spec.value_dim), dim=-1)
        parts = self.conv(qkv_BTC, cache, packing).split((key_dim, key_dim, spec.value_dim), dim=-1)
        q_BTKQ, k_BTKQ = (part.unflatten(-1, (-1, spec.key_head_dim)) for part in parts[:2])
        v_BTHV, z_BTHV = (part.unflatten(-1, (-1, spec.value_head_dim)) for part in (parts[2], z))
        beta_BTH, log_decay_BTH = self._gates(x_BTD)
        inputs = DeltaInputs(q_BTKQ, k_BTKQ, v_BTHV, log_decay_BTH, beta_BTH)
        y_BTHV = self._mixed(inputs, cache, packing)
        return cast("torch.Tensor", self.out(self.norm(y_BTHV, z_BTHV).flatten(2)))

    def new_cache(self, batch: int, max_len: int) -> RecurrentCache:
        """Return an empty cache, whose size does not depend on `max_len`."""
        del max_len
        spec = self.spec
        shape = (batch, spec.n_value_heads, spec.key_head_dim, spec.value_head_dim)
        state_BHQV = self.A_log.new_zeros(shape, dtype=exact_dtype(self.A_log))
        return RecurrentCache(state_BHQV, self.A_log.new_zeros(batch, spec.conv_width - 1, spec.conv_dim))

    def _gates(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return strengths and log decays, in float32 whatever the projection gave."""
        dtype = exact_dtype(self.A_log)
        b_BTH, a_BTH = self.in_ba(x_BTD).to(dtype).chunk(2, dim=-1)
        dt_BTH = functional.softplus(a_BTH + self.dt_bias.to(dtype))
        return b_BTH.sigmoid(), -self.A_log.to(dtype).exp() * dt_BTH

    def _mixed(
        self, inputs: DeltaInputs, cache: RecurrentCache | None, packing: Packing | None
    ) -> torch.Tensor:
        """Apply the rule, by the kernel where there is one."""
        assert cache is None or packing is None, "a cached row holds one document"
        state_BHQV = None if cache is None else cache.state
        function = chosen(self.kernel, inputs.q_BTKQ)
        if function is not None:
            y_BTHV, state_BHQV = _by_kernel(function, inputs, state_BHQV, packing)
        else:
            first_BT = None if packing is None else first_positions(packing.positions_BT)
            y_BTHV, state_BHQV = gated_delta(
                inputs, chunk=self.spec.chunk, state_BHQV=state_BHQV, first_BT=first_BT
            )
        if cache is not None:
            cache.keep(state_BHQV)
        return y_BTHV


def _by_kernel(
    function: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    inputs: DeltaInputs,
    state_BHQV: torch.Tensor | None,
    packing: Packing | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call fla; it scales queries by 1 / sqrt(Q) itself.

    Documents are kept apart by a decay to nothing at their first position: fla's own way, a list of
    boundaries, has to be read by the host, which would then wait for the device in every layer.
    """
    q_BTKQ, k_BTKQ, v_BTHV, log_decay_BTH, beta_BTH = inputs
    n_shared = v_BTHV.shape[2] // k_BTKQ.shape[2]
    if n_shared > 1:  # not all versions share keys
        q_BTKQ, k_BTKQ = (part.repeat_interleave(n_shared, dim=2) for part in (q_BTKQ, k_BTKQ))
    if packing is not None:
        log_decay_BTH = torch.where(packing.positions_BT[..., None] == 0, FORGOTTEN, log_decay_BTH)
    return function(
        q_BTKQ,
        k_BTKQ,
        v_BTHV,
        g=log_decay_BTH,
        beta=beta_BTH,
        initial_state=state_BHQV,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
