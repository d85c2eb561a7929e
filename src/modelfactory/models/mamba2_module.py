"""Mamba-2 as a module.

Shapes: B batch, T time (position), D d_model, G groups, H heads, P head_dim, S state_dim, C channels of the
convolution, E = H * P inner width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.models.gpu_kernels import MAMBA2, chosen, if_installed
from modelfactory.models.modules import Linear
from modelfactory.models.recurrent import (
    GatedRMSNorm,
    RecurrentCache,
    exact_dtype,
    first_positions,
    initialise_decays,
)
from modelfactory.models.short_convolution import ShortConvolution
from modelfactory.models.state_space import SpaceInputs, state_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.mamba2 import Mamba2


class Mamba2Mixer(nn.Module):
    """What transformers' BambaMixer and Mamba2Mixer compute, without limits on dt.

    Every tensor is equal to theirs, shape and order of rows included: `in_zxbcdt` is their in_proj, `conv`
    conv1d, `out` out_proj; `A_log`, `D`, `dt_bias` and `norm.weight` have the same names. Rows of `in_zxbcdt`
    are the gate z, then x, B, C, which go through the convolution in this order, then dt.
    """

    def __init__(self, spec: Mamba2, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.spec = spec
        self.in_zxbcdt = Linear(d_model, spec.in_dim, bias=spec.bias, std=initial.matrix_std)
        self.conv = ShortConvolution(spec.conv_dim, width=spec.conv_width, bias=spec.conv_bias)
        self.A_log = nn.Parameter(torch.empty(spec.n_heads))
        self.D = nn.Parameter(torch.empty(spec.n_heads))
        self.dt_bias = nn.Parameter(torch.empty(spec.n_heads))
        self.norm = GatedRMSNorm(spec.inner_dim, eps=spec.norm_eps, gate_first=True, n_groups=spec.n_groups)
        self.out = Linear(spec.inner_dim, d_model, bias=spec.bias, std=initial.residual_std)
        self.kernel = if_installed(MAMBA2)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw decays, see `initialise_decays`; D starts at 1."""
        initialise_decays(self.A_log, self.dt_bias, generator)
        nn.init.ones_(self.D)

    def forward(
        self, x_BTD: torch.Tensor, cache: RecurrentCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTD."""
        spec, written = self.spec, self.spec.n_groups * self.spec.state_dim
        z_BTE, xbc_BTC, dt_BTH = self.in_zxbcdt(x_BTD).split(
            (spec.inner_dim, spec.conv_dim, spec.n_heads), dim=-1
        )
        x_BTE, b, c = self.conv(xbc_BTC, cache, packing).split((spec.inner_dim, written, written), dim=-1)
        b_BTGS, c_BTGS = (part.unflatten(-1, (-1, spec.state_dim)) for part in (b, c))
        dtype = exact_dtype(self.A_log)
        x_BTHP = x_BTE.unflatten(-1, (-1, spec.head_dim))
        dt_BTH = functional.softplus(dt_BTH.to(dtype) + self.dt_bias.to(dtype))
        inputs = SpaceInputs(x_BTHP, dt_BTH, b_BTGS, c_BTGS)
        y_BTHP = self._mixed(inputs, cache, packing) + self.D[:, None] * x_BTHP
        return cast("torch.Tensor", self.out(self.norm(y_BTHP.flatten(2), z_BTE)))

    def new_cache(self, batch: int, max_len: int) -> RecurrentCache:
        """Return an empty cache, whose size does not depend on `max_len`."""
        del max_len
        spec = self.spec
        shape = (batch, spec.n_heads, spec.head_dim, spec.state_dim)
        state_BHPS = self.A_log.new_zeros(shape, dtype=exact_dtype(self.A_log))
        return RecurrentCache(state_BHPS, self.A_log.new_zeros(batch, spec.conv_width - 1, spec.conv_dim))

    def _mixed(
        self, inputs: SpaceInputs, cache: RecurrentCache | None, packing: Packing | None
    ) -> torch.Tensor:
        """Write x and read it again, by the kernel where there is one."""
        assert cache is None or packing is None, "a cached row holds one document"
        rate_H, chunk = -self.A_log.to(inputs.dt_BTH.dtype).exp(), self.spec.chunk
        state_BHPS = None if cache is None else cache.state
        first_BT = None if packing is None else first_positions(packing.positions_BT)
        function = chosen(self.kernel, inputs.x_BTHP)
        if function is not None:
            y_BTHP, state_BHPS = _by_kernel(
                function, inputs, rate_H, chunk=chunk, state_BHPS=state_BHPS, first_BT=first_BT
            )
        else:
            y_BTHP, state_BHPS = state_space(
                inputs, rate_H, chunk=chunk, state_BHPS=state_BHPS, first_BT=first_BT
            )
        if cache is not None:
            cache.keep(state_BHPS)
        return y_BTHP


def _by_kernel(
    function: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    inputs: SpaceInputs,
    rate_H: torch.Tensor,
    *,
    chunk: int,
    state_BHPS: torch.Tensor | None,
    first_BT: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call mamba_ssm, which tells documents apart by any number that differs."""
    return function(
        inputs.x_BTHP,
        inputs.dt_BTH,
        rate_H,
        inputs.b_BTGS,
        inputs.c_BTGS,
        chunk,
        initial_states=state_BHPS,
        seq_idx=None if first_BT is None else first_BT.to(torch.int32),
        return_final_states=True,
    )
