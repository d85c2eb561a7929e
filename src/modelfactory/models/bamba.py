"""Bamba, a hybrid of Mamba-2 and attention (IBM et al. 2024, "Inference-efficient hybrid Mamba2 model")."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models.llama import Llama
from modelfactory.models.mamba2 import Mamba2
from modelfactory.spec import require

if TYPE_CHECKING:
    from modelfactory.models.attention import Attention, Rope
    from modelfactory.models.decoder import Decoder


def Bamba(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    attention_layers: tuple[int, ...],
    mamba_heads: int,
    mamba_head_dim: int = 64,
    state_dim: int = 128,
    n_groups: int = 1,
    conv_width: int = 4,
    conv_bias: bool = True,
    mamba_bias: bool = False,
    rope_theta: float = 10_000.0,
    norm_eps: float = 1e-5,
    **options: Any,
) -> Decoder:
    """Return a Bamba-like decoder: Mamba-2 in most layers, attention in the `attention_layers`, from 0.

    Half of each head's dimensions turn. The published 9B has attention in layers 9, 18 and 27 of 32. Further
    options are those of `Llama`: n_kv_heads, d_ff, rope_scaling, tied.
    """
    inside = all(0 <= n < n_layers for n in attention_layers)
    require(
        inside and len(set(attention_layers)) == len(attention_layers),
        place="Bamba.attention_layers",
        found=attention_layers,
        wanted=f"each between 0 and {n_layers - 1}, and once",
    )
    own: dict[str, Any] = {"rope_theta": rope_theta, "norm_eps": norm_eps}
    decoder = Llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, **own, **options
    )
    (block,) = decoder.blocks
    attention = cast("Attention", block.mixer)
    half = replace(attention, rope=replace(cast("Rope", attention.rope), share=0.5))
    mamba = Mamba2(
        n_heads=mamba_heads,
        head_dim=mamba_head_dim,
        state_dim=state_dim,
        n_groups=n_groups,
        conv_width=conv_width,
        conv_bias=conv_bias,
        bias=mamba_bias,
        norm_eps=norm_eps,
    )
    mixers = (half if n in attention_layers else mamba for n in range(n_layers))
    return replace(decoder, blocks=tuple(replace(block, mixer=mixer) for mixer in mixers))
