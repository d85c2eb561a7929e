"""Our recurrent mixers against transformers', weights copied, at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modelfactory.models import GatedDelta, Mamba2
from modelfactory.models.architecture import BuildContext
from modelfactory.models.initial import gpt2_initial

transformers = pytest.importorskip("transformers")

from transformers.models.bamba.modeling_bamba import BambaMixer  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet  # noqa: E402

D_MODEL = 32
POSITIONS = 75
"""No multiple of a chunk, theirs (64) or ours."""


@pytest.fixture(autouse=True)
def _global_generator_stays() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """Move every parameter off its start, far enough that gates and decays differ between positions."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def context() -> BuildContext:
    return BuildContext(d_model=D_MODEL, max_seq_len=POSITIONS, initial=gpt2_initial(n_layers=1, d_model=32))


def assert_equal_outputs(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    x = torch.randn(2, POSITIONS, D_MODEL)
    with torch.no_grad():
        wanted = theirs(x)
        assert wanted.std() > 0.05, "the test would see nothing"
        torch.testing.assert_close(ours(x), wanted, atol=1e-5, rtol=0)


def by_kind(rows: torch.Tensor, n_key_heads: int, widths: list[int]) -> torch.Tensor:
    """Return rows that lie by key head, and within each by kind, in the order of kinds."""
    parts = rows.unflatten(0, (n_key_heads, -1)).split(widths, dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])


@pytest.mark.parametrize(("n_key_heads", "n_value_heads"), [(2, 2), (2, 6), (1, 3)])
def test_gated_delta(n_key_heads: int, n_value_heads: int) -> None:
    Q, V, shared = 8, 12, n_value_heads // n_key_heads
    config = transformers.Qwen3NextConfig(
        hidden_size=D_MODEL,
        num_hidden_layers=1,
        linear_num_key_heads=n_key_heads,
        linear_num_value_heads=n_value_heads,
        linear_key_head_dim=Q,
        linear_value_head_dim=V,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
    )
    theirs = shaken(Qwen3NextGatedDeltaNet(config, layer_idx=0))
    spec = GatedDelta(
        n_key_heads=n_key_heads,
        n_value_heads=n_value_heads,
        key_head_dim=Q,
        value_head_dim=V,
        conv_width=4,
        norm_eps=1e-6,
        chunk=16,
    )
    state = theirs.state_dict()
    widths = [Q, Q, shared * V, shared * V]
    ours: Any = spec.build(context())
    ours.load_state_dict(
        {
            "A_log": state["A_log"],
            "dt_bias": state["dt_bias"],
            "conv.weight": state["conv1d.weight"],
            "in_qkvz.weight": by_kind(state["in_proj_qkvz.weight"], n_key_heads, widths),
            "in_ba.weight": by_kind(state["in_proj_ba.weight"], n_key_heads, [shared, shared]),
            "norm.weight": state["norm.weight"],
            "out.weight": state["out_proj.weight"],
        }
    )
    assert_equal_outputs(ours, theirs)


def copied_mamba2(spec: Mamba2, theirs: torch.nn.Module) -> torch.nn.Module:
    renamed = {"in_proj": "in_zxbcdt", "conv1d": "conv", "out_proj": "out"}
    ours = spec.build(context())
    state = {}
    for name, value in theirs.state_dict().items():
        first, _, rest = name.partition(".")
        state[".".join(part for part in (renamed.get(first, first), rest) if part)] = value
    ours.load_state_dict(state)
    return ours


def mamba2(n_groups: int, *, conv_bias: bool, bias: bool) -> Mamba2:
    return Mamba2(
        n_heads=8,
        head_dim=8,
        state_dim=16,
        n_groups=n_groups,
        conv_width=4,
        conv_bias=conv_bias,
        bias=bias,
        norm_eps=1e-5,
        chunk=16,
    )


@pytest.mark.parametrize(
    ("n_groups", "conv_bias", "bias"), [(1, True, False), (2, False, True), (8, True, True)]
)
def test_mamba2_is_bambas(n_groups: int, conv_bias: bool, bias: bool) -> None:
    config = transformers.BambaConfig(
        hidden_size=D_MODEL,
        num_hidden_layers=1,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=n_groups,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=32,
        mamba_conv_bias=conv_bias,
        mamba_proj_bias=bias,
        rms_norm_eps=1e-5,
    )
    theirs = shaken(BambaMixer(config, layer_idx=0))
    ours = copied_mamba2(mamba2(n_groups, conv_bias=conv_bias, bias=bias), theirs)
    assert_equal_outputs(ours, theirs)


def test_mamba2_is_mamba2s() -> None:
    config = transformers.Mamba2Config(
        hidden_size=D_MODEL,
        num_hidden_layers=1,
        num_heads=8,
        head_dim=8,
        n_groups=1,
        state_size=16,
        conv_kernel=4,
        expand=2,
        chunk_size=32,
        use_conv_bias=True,
        use_bias=False,
        layer_norm_epsilon=1e-5,
    )
    theirs = shaken(Mamba2Mixer(config, layer_idx=0))
    assert_equal_outputs(copied_mamba2(mamba2(1, conv_bias=True, bias=False), theirs), theirs)
