from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Adapted, GatedDelta, Llama, LoRA, Mamba2, Matrix
from modelfactory.models.lora import matrices_of
from modelfactory.models.lora_module import AdaptedLinear, merged
from tests.models.mixers import MIXERS, decoder

VOCAB_SIZE = 60
LLAMA = Llama(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=16, d_ff=48)
GPT = GPT2(n_layers=2, d_model=32, n_heads=4, max_seq_len=16)
DELTA = GatedDelta(
    n_key_heads=2, n_value_heads=4, key_head_dim=4, value_head_dim=6, conv_width=4, norm_eps=1e-5, chunk=16
)
MAMBA = Mamba2(
    n_heads=4,
    head_dim=8,
    state_dim=6,
    n_groups=2,
    conv_width=4,
    conv_bias=True,
    bias=False,
    norm_eps=1e-5,
    chunk=16,
)
LORA = LoRA(rank=3, alpha=6.0)
SPECS = {
    "llama": Adapted(base=LLAMA, lora=LORA),
    "gpt2, some": Adapted(base=GPT, lora=LoRA(rank=2, alpha=1.0, targets=("qkv", "up"))),
    **{
        name: Adapted(base=decoder(mixer, max_seq_len=16), lora=LoRA(rank=3, alpha=6.0))
        for name, mixer in (
            ("gate", MIXERS["gate"]),
            ("latent", MIXERS["latent"]),
            ("latent of queries", MIXERS["latent of queries"]),
            ("delta", DELTA),
            ("mamba", MAMBA),
        )
    },
}


def tokens() -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(0))


def moved(spec: Adapted) -> nn.Module:
    """Return a module whose adapters have left their start."""
    module: nn.Module = spec.build(VOCAB_SIZE, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module


@pytest.mark.parametrize("name", SPECS)
def test_at_first_it_is_the_base(name: str) -> None:
    spec = SPECS[name]
    base, adapted = spec.base.build(VOCAB_SIZE, seed=5), spec.build(VOCAB_SIZE, seed=5)
    assert torch.equal(base(tokens()), adapted(tokens()))
    kept = dict(adapted.state_dict())
    assert all(torch.equal(kept[key], value) for key, value in base.state_dict().items())


@pytest.mark.parametrize("name", SPECS)
def test_formulas_count_what_is_built_and_trained(name: str) -> None:
    spec = SPECS[name]
    parameters = list(spec.build(VOCAB_SIZE, seed=0).parameters())
    assert spec.n_parameters(VOCAB_SIZE) == sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    assert 0 < spec.n_trainable(VOCAB_SIZE) == trained


def test_frozen_weights_cost_two_thirds_and_mixing_the_same() -> None:
    spec, n = SPECS["llama"], LLAMA.n_parameters(VOCAB_SIZE) - VOCAB_SIZE * 32  # one vocabulary matrix
    mixing = 2 * 12 * 32 * 16
    assert LLAMA.flops_per_token(VOCAB_SIZE, 16) == 6 * n + mixing
    assert spec.flops_per_token(VOCAB_SIZE, 16) == 4 * n + mixing + 6 * spec.n_trainable(VOCAB_SIZE)


def test_only_adapters_get_gradients() -> None:
    module = moved(SPECS["llama"])
    valid = torch.ones(2, 15, dtype=torch.bool)
    module.loss_sum(tokens()[:, :-1], tokens()[:, 1:], valid).backward()  # type: ignore[operator]
    with_gradient = {name for name, p in module.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, _ in module.named_parameters() if "lora_" in name}
    assert len(with_gradient) == 2 * 4 * 2  # two layers of four matrices


def test_a_layer_computes_the_formula_with_an_adapter_for_each_matrix_in_it() -> None:
    """As PEFT does with queries, keys and values apart: W x + alpha / r * B (A x), in float64."""
    rows, n_in, lora = (8, 4, 4), 6, LoRA(rank=2, alpha=5.0)
    generator = torch.Generator().manual_seed(3)
    layer = AdaptedLinear(nn.Linear(n_in, sum(rows)), lora, rows).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(3, n_in, generator=generator, dtype=torch.float64)
    expected, start = [], 0
    for n, n_rows in enumerate(rows):
        W, bias, B = (t[start : start + n_rows] for t in (layer.weight, layer.bias, layer.lora_B))
        A = layer.lora_A[2 * n : 2 * n + 2]
        expected.append(x @ W.T + bias + 5.0 / 2 * (x @ A.T) @ B.T)
        start += n_rows
    torch.testing.assert_close(layer(x), torch.cat(expected, -1), rtol=1e-13, atol=1e-13)
    state = merged({f"l.{k}": v for k, v in layer.state_dict().items()}, {"l": Matrix(n_in, rows)}, lora)
    assert set(state) == {"l.weight", "l.bias"}
    torch.testing.assert_close(x @ state["l.weight"].T + state["l.bias"], layer(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "dtype", "atol"),
    [("llama", torch.float32, 1e-6), ("gpt2, some", torch.float32, 1e-6)]
    + [(name, torch.float64, 1e-12) for name in SPECS],
)
def test_merged_it_says_the_same(name: str, dtype: torch.dtype, atol: float) -> None:
    spec = SPECS[name]
    adapted = moved(spec).to(dtype)
    plain = spec.base.build(VOCAB_SIZE, seed=9).to(dtype)
    plain.load_state_dict(merged(adapted.state_dict(), spec.matrices(), spec.lora))
    with torch.no_grad():
        base = spec.base.build(VOCAB_SIZE, seed=1).to(dtype)(tokens())
        found, wanted = plain(tokens()), adapted(tokens())
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)
    assert (wanted - base).abs().max() > 1e-3


def test_adapters_follow_from_the_seed_alone() -> None:
    spec = SPECS["llama"]
    torch.manual_seed(0)
    one, again, other = (spec.build(VOCAB_SIZE, seed=seed).state_dict() for seed in (1, 1, 2))
    name = "blocks.1.mixer.qkv.lora_A"
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])
    assert one[name].abs().max() <= 32**-0.5
    assert one[name].std() == pytest.approx((32 * 3) ** -0.5, rel=0.15)


def test_generation_with_a_cache_goes_through_adapters() -> None:
    module = moved(SPECS["llama"]).eval()
    cache = module.new_cache(2, 16)  # type: ignore[operator]
    with torch.no_grad():
        whole = module(tokens())
        parts = torch.cat([module(tokens()[:, :7], cache), module(tokens()[:, 7:], cache)], dim=1)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_compiled_it_is_the_same() -> None:
    module = moved(SPECS["llama"])
    valid = torch.ones(2, 15, dtype=torch.bool)
    arguments = (tokens()[:, :-1], tokens()[:, 1:], valid)
    other = copy.deepcopy(module)
    torch.compiler.reset()
    compiled = torch.compile(other.loss_sum, fullgraph=True, dynamic=False, backend="aot_eager")  # type: ignore[operator]
    compiled(*arguments).backward()
    torch.compiler.reset()
    module.loss_sum(*arguments).backward()  # type: ignore[operator]
    for (name, one), two in zip(module.named_parameters(), other.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (LLAMA, {"targets": ("q_proj",)}, "found 'q_proj', wanted one of down, gate_up, out, qkv"),
        (LLAMA, {"targets": ("qvk",)}, "Did you mean 'qkv'"),
        (GPT, {"targets": ("gate_up",)}, "wanted one of down, out, qkv, up"),
        (LLAMA, {"targets": ()}, 'wanted names, each once, or "all"'),
        (LLAMA, {"targets": ("out", "out")}, "each once"),
        (LLAMA, {"rank": 0}, "LoRA.rank: found 0, wanted at least 1"),
        (LLAMA, {"rank": 17}, "wanted at most 16, the rank of blocks.0.mixer.qkv"),
        (LLAMA, {"alpha": 0.0}, "LoRA.alpha: found 0.0, wanted a number above 0"),
        (SPECS["llama"], {}, "has no adapters yet"),
    ],
)
def test_what_cannot_be_adapted_is_refused(base: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        Adapted(base=base, lora=LoRA(**({"rank": 2, "alpha": 4.0} | changes)))


@dataclass(frozen=True, kw_only=True)
class Own:
    """An architecture that says which of its matrices can be adapted."""

    rows: int

    @property
    def max_seq_len(self) -> int:
        return 4

    def n_parameters(self, vocab_size: int) -> int:
        return 9 + 0 * vocab_size

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        return 54 + 0 * vocab_size * seq_len

    def matrices(self) -> dict[str, Matrix]:
        return {"0": Matrix(3, (self.rows,))}

    def build(self, vocab_size: int, seed: int) -> nn.Module:
        del vocab_size, seed
        return nn.Sequential(nn.Linear(3, 3, bias=False))


def test_an_architecture_of_ones_own_is_adapted_as_it_says() -> None:
    lora = LoRA(rank=1, alpha=1.0)
    spec = Adapted(base=Own(rows=3), lora=lora)
    assert (
        spec.n_trainable(0) == sum(p.numel() for p in spec.build(0, 0).parameters() if p.requires_grad) == 6
    )
    assert matrices_of(object()) == {}
    with pytest.raises(SpecError, match=r"wanted an nn.Linear of 3 inputs and 4 outputs"):
        Adapted(base=Own(rows=4), lora=lora).build(0, 0)
