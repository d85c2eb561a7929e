"""The gated delta rule against its recurrence, one position after the other in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import GatedDelta, gpu_kernels
from modelfactory.models.architecture import BuildContext
from modelfactory.models.gated_delta_rule import DeltaInputs, gated_delta
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.modules import initialise
from modelfactory.models.packing import packing_of

if TYPE_CHECKING:
    from pathlib import Path

MIXER = GatedDelta(
    n_key_heads=2, n_value_heads=4, key_head_dim=6, value_head_dim=5, conv_width=4, norm_eps=1e-5, chunk=16
)


def drawn(
    T: int, *, rate: float = 2.0, n_key_heads: int = 2, n_value_heads: int = 4, seed: int = 0
) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(2, T, *shape, generator=generator)

    log_decay = -rate * torch.nn.functional.softplus(2 * normal(n_value_heads) - 2)
    beta = torch.sigmoid(2 * normal(n_value_heads))
    return DeltaInputs(
        normal(n_key_heads, 16), normal(n_key_heads, 16), normal(n_value_heads, 12), log_decay, beta
    )


def doubled(inputs: DeltaInputs) -> DeltaInputs:
    return DeltaInputs(*(part.double() for part in inputs))


def recurrence(inputs: DeltaInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Equation 10 of arXiv 2412.06464, a head and a position at a time; the state here is keys x values."""
    q, k, v, log_decay, beta = doubled(inputs)
    B, T, H, V = v.shape
    shared, Q = H // k.shape[2], k.shape[3]
    y, states = torch.zeros_like(v), torch.zeros(B, H, Q, V, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            state = states[b, h]
            for t in range(T):
                key, query = (
                    part[b, t, h // shared] / (part[b, t, h // shared].square().sum() + 1e-6).sqrt()
                    for part in (k, q)
                )
                state = log_decay[b, t, h].exp() * state
                state = state - beta[b, t, h] * torch.outer(key, key @ state)
                state = state + beta[b, t, h] * torch.outer(key, v[b, t, h])
                y[b, t, h] = query @ state / Q**0.5
            states[b, h] = state
    return y, states


@pytest.mark.parametrize("T", [1, 7, 8, 9, 31])
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_chunks_are_the_recurrence(T: int, chunk: int) -> None:
    inputs = drawn(T)
    y, state = gated_delta(inputs, chunk=chunk)
    wanted_y, wanted_state = recurrence(inputs)
    torch.testing.assert_close(y.double(), wanted_y, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.05, 16.0])
def test_it_holds_for_decays_of_all_strengths_in_long_chunks(rate: float) -> None:
    inputs = drawn(150, rate=rate, n_key_heads=1, n_value_heads=2)
    y, _ = gated_delta(inputs, chunk=64)
    torch.testing.assert_close(y.double(), recurrence(inputs)[0], rtol=0, atol=1e-5)


def test_a_key_seen_again_is_written_over() -> None:
    T = 40
    key = torch.ones(1, T, 1, 4)
    value = torch.arange(float(T)).reshape(1, T, 1, 1)
    nothing_fades, all_is_replaced = torch.zeros(1, T, 1), torch.ones(1, T, 1)
    y, _ = gated_delta(DeltaInputs(key, key, value, nothing_fades, all_is_replaced), chunk=16)
    torch.testing.assert_close(2 * y, value, rtol=1e-5, atol=1e-4)


def test_gradients_are_those_of_the_recurrence() -> None:
    leaves = [part.requires_grad_() for part in doubled(drawn(11, n_key_heads=1, n_value_heads=2))]
    weights = torch.randn(2, 11, 2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    chunked = torch.autograd.grad((gated_delta(DeltaInputs(*leaves), chunk=4)[0] * weights).sum(), leaves)
    for_all_inputs = torch.autograd.gradcheck(
        lambda *parts: gated_delta(DeltaInputs(*parts), chunk=4)[0], [leaf[:1, :5] for leaf in leaves]
    )
    y, _ = gated_delta(DeltaInputs(*leaves), chunk=1)  # held against the recurrence above
    stepped = torch.autograd.grad((y * weights).sum(), leaves)
    assert for_all_inputs
    for one, other in zip(chunked, stepped, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def build(spec: GatedDelta) -> Any:
    context = BuildContext(d_model=32, max_seq_len=64, initial=gpt2_initial(n_layers=1, d_model=32))
    module = spec.build(context)
    initialise(module, 0)
    return module


FAKE = """
calls = []

def chunk_gated_delta_rule(q, k, v, **options):
    from modelfactory.models.gated_delta_rule import DeltaInputs, gated_delta
    calls.append({"q": q, "k": k, "v": v, **options})
    inputs = DeltaInputs(q, k, v, options["g"], options["beta"])
    y, state = gated_delta(inputs, chunk=64, state_BHQV=options["initial_state"])
    return y.to(q.dtype), state
"""


@pytest.fixture
def fla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of that name that records what it is asked, and a GPU that is none."""
    package = tmp_path / "fla" / "ops"
    package.mkdir(parents=True)
    (tmp_path / "fla" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "gated_delta_rule.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: sys.modules["fla.ops.gated_delta_rule"].calls
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]


def test_the_kernel_is_never_taken_on_a_cpu_nor_imported(fla: Any) -> None:
    module = build(MIXER).bfloat16()
    assert module.kernel == gpu_kernels.GATED_DELTA
    module(torch.randn(2, 9, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)))
    assert not any(name.startswith("fla") for name in sys.modules)


def test_what_the_kernel_is_given(fla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    module = build(MIXER).bfloat16()
    x = torch.randn(2, 9, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    y = module(x)
    (call,) = fla()
    assert call["q"].shape == call["k"].shape == (2, 9, 4, 6), "keys are repeated for each value head"
    assert call["v"].shape == (2, 9, 4, 5)
    assert call["g"].shape == call["beta"].shape == (2, 9, 4)
    assert call["q"].dtype == call["v"].dtype == torch.bfloat16
    assert call["g"].dtype == call["beta"].dtype == torch.float32
    assert call["initial_state"] is None
    assert call["use_qk_l2norm_in_kernel"]
    assert call["output_final_state"]
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: False)
    torch.testing.assert_close(y, module(x), rtol=2e-2, atol=1e-4)


def test_float32_and_single_positions_stay_with_the_plain_form(
    fla: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    module = build(MIXER)
    module(torch.ones(1, 9, 32))
    module.bfloat16()(torch.ones(1, 1, 32, dtype=torch.bfloat16))
    assert "fla.ops.gated_delta_rule" not in sys.modules


def test_the_kernel_keeps_documents_apart_and_continues_caches(
    fla: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(MIXER).bfloat16()
    x = torch.randn(1, 12, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    packing = packing_of(torch.tensor([[0] * 5 + [1] * 7]))
    plain = module(x, None, packing)
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    torch.testing.assert_close(module(x, None, packing), plain, rtol=2e-2, atol=1e-4)
    decays = fla()[0]["g"][0, :, 0].exp()
    assert decays[[0, 5]].tolist() == [0, 0]
    assert (decays[[1, 4, 6]] > 0).all()
    cache = module.new_cache(1, 12)
    both = torch.cat([module(x[:, :5], cache), module(x[:, 5:], cache)], dim=1)
    assert fla()[-1]["initial_state"].shape == (1, 4, 6, 5)
    torch.testing.assert_close(both, module(x), rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("n_key_heads", 3, "a divisor of n_value_heads 4"),
        ("n_key_heads", 0, "at least 1"),
        ("n_value_heads", 0, "at least 1"),
        ("key_head_dim", 0, "at least 1"),
        ("value_head_dim", -1, "at least 1"),
        ("conv_width", 0, "at least 1"),
        ("chunk", 0, "a multiple of 16"),
        ("chunk", 24, "a multiple of 16"),
        ("norm_eps", 0.0, "above 0"),
    ],
)
def test_bad_values_are_refused(name: str, value: float, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        replace(MIXER, **{name: value})
    assert f"GatedDelta.{name}" in str(caught.value)


def test_flops_by_hand() -> None:
    d_model, L = 32, 16
    counted = 6 * MIXER.n_parameters(d_model) + 12 * L * 6 * 2 + (3 * L * 11 + 6 * L * 5 + 18 * 30) * 4
    assert MIXER.flops_per_token(d_model, 16) == MIXER.flops_per_token(d_model, 10_000) == counted
    assert MIXER.flops_per_token(d_model, 4) < counted
