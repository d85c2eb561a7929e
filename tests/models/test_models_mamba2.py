"""The state space of Mamba-2 against its recurrence, one position after the other in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import Mamba2, gpu_kernels
from modelfactory.models.architecture import BuildContext
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.modules import initialise
from modelfactory.models.packing import packing_of
from modelfactory.models.state_space import SpaceInputs, state_space

if TYPE_CHECKING:
    from pathlib import Path

MIXER = Mamba2(
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


def drawn(T: int, *, n_groups: int = 2, step: float = 0.0) -> tuple[SpaceInputs, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(2, T, *shape, generator=generator)

    dt = torch.nn.functional.softplus(2 * normal(4) + step - 2)
    inputs = SpaceInputs(normal(4, 8), dt, normal(n_groups, 6) / 2, normal(n_groups, 6) / 2)
    return inputs, -torch.tensor([0.5, 1.0, 4.0, 16.0])


def recurrence(inputs: SpaceInputs, rate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of arXiv 2405.21060, section 2.1, with dt as in section 7; all heads at once."""
    x, dt, b, c = (part.double() for part in inputs)
    b, c = (part.repeat_interleave(x.shape[2] // part.shape[2], dim=2) for part in (b, c))
    state, outputs = torch.zeros(2, 4, 8, 6, dtype=torch.float64), []
    for t in range(x.shape[1]):
        decay = (rate.double() * dt[:, t]).exp()[..., None, None]
        state = decay * state + dt[:, t, :, None, None] * x[:, t, :, :, None] * b[:, t, :, None, :]
        outputs.append((state * c[:, t, :, None, :]).sum(dim=-1))
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("T", [1, 7, 8, 9, 31])
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_chunks_are_the_recurrence(T: int, chunk: int, n_groups: int) -> None:
    inputs, rate = drawn(T, n_groups=n_groups)
    y, state = state_space(inputs, rate, chunk=chunk)
    wanted_y, wanted_state = recurrence(inputs, rate)
    torch.testing.assert_close(y.double(), wanted_y, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("step", [-6.0, 0.0, 4.0])
def test_it_holds_for_decays_of_all_strengths_in_long_chunks(step: float) -> None:
    """In float32 sums of decays the last two are off by 1e-4."""
    inputs, rate = drawn(150, step=step)
    y, _ = state_space(inputs, rate, chunk=64)
    torch.testing.assert_close(y.double(), recurrence(inputs, rate)[0], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_recurrence() -> None:
    inputs, rate = drawn(11)
    leaves = [part.double().requires_grad_() for part in (*inputs, rate)]
    weights = torch.randn(2, 11, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    both = [
        torch.autograd.grad((y * weights).sum(), leaves)
        for y, _ in (
            state_space(SpaceInputs(*leaves[:4]), leaves[4], chunk=4),
            recurrence(SpaceInputs(*leaves[:4]), leaves[4]),
        )
    ]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def build(spec: Mamba2) -> Any:
    context = BuildContext(d_model=32, max_seq_len=64, initial=gpt2_initial(n_layers=1, d_model=32))
    module = spec.build(context)
    initialise(module, 0)
    return module


FAKE = """
calls = []

def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, **options):
    from modelfactory.models.state_space import SpaceInputs, state_space
    calls.append({"x": x, "dt": dt, "A": A, "B": B, "C": C, "chunk_size": chunk_size, **options})
    y, state = state_space(
        SpaceInputs(x, dt, B, C),
        A,
        chunk=chunk_size,
        state_BHPS=options["initial_states"],
        first_BT=options["seq_idx"],
    )
    return y.to(x.dtype), state
"""


@pytest.fixture
def mamba_ssm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of that name that records what it is asked, and a GPU that is none."""
    package = tmp_path / "mamba_ssm" / "ops" / "triton"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "ssd_combined.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: sys.modules["mamba_ssm.ops.triton.ssd_combined"].calls
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


def test_the_kernel_is_never_taken_on_a_cpu_nor_imported(mamba_ssm: Any) -> None:
    module = build(MIXER).bfloat16()
    assert module.kernel == gpu_kernels.MAMBA2
    module(torch.ones(2, 9, 32, dtype=torch.bfloat16))
    assert not any(name.startswith("mamba_ssm") for name in sys.modules)


def test_what_the_kernel_is_given(mamba_ssm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = build(MIXER).bfloat16()
    x = torch.randn(2, 9, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    packing = packing_of(torch.tensor([[0] * 5 + [1] * 4, [0] * 9]))
    plain, plain_packed = module(x), module(x, None, packing)
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    torch.testing.assert_close(module(x), plain, rtol=2e-2, atol=1e-4)
    torch.testing.assert_close(module(x, None, packing), plain_packed, rtol=2e-2, atol=1e-4)
    call, packed = mamba_ssm()
    assert call["x"].shape == (2, 9, 4, 8)
    assert call["B"].shape == call["C"].shape == (2, 9, 2, 6)
    assert call["dt"].shape == (2, 9, 4)
    assert call["A"].shape == (4,)
    assert (call["A"] < 0).all()
    assert call["x"].dtype == call["B"].dtype == torch.bfloat16
    assert call["dt"].dtype == call["A"].dtype == torch.float32
    assert call["chunk_size"] == 16
    assert call["return_final_states"]
    assert call["initial_states"] is None
    assert call["seq_idx"] is None
    assert packed["seq_idx"].tolist() == [[0] * 5 + [5] * 4, [0] * 9]
    assert packed["seq_idx"].dtype == torch.int32


def test_the_kernel_continues_caches(mamba_ssm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    module = build(MIXER).bfloat16()
    x = torch.randn(1, 12, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    cache = module.new_cache(1, 12)
    both = torch.cat([module(x[:, :5], cache), module(x[:, 5:], cache)], dim=1)
    assert mamba_ssm()[-1]["initial_states"].shape == (1, 4, 8, 6)
    torch.testing.assert_close(both, module(x), rtol=2e-2, atol=1e-4)


def test_float32_stays_with_the_plain_form(mamba_ssm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "is_on_gpu", lambda x: True)
    build(MIXER)(torch.ones(1, 9, 32))
    assert "mamba_ssm.ops.triton.ssd_combined" not in sys.modules


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("n_groups", 3, "a divisor of n_heads 4"),
        ("n_groups", 0, "at least 1"),
        ("n_heads", 0, "at least 1"),
        ("head_dim", 0, "at least 1"),
        ("state_dim", -1, "at least 1"),
        ("conv_width", 0, "at least 1"),
        ("chunk", 0, "a multiple of 16"),
        ("chunk", 24, "a multiple of 16"),
        ("norm_eps", 0.0, "above 0"),
    ],
)
def test_bad_values_are_refused(name: str, value: float, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        replace(MIXER, **{name: value})
    assert f"Mamba2.{name}" in str(caught.value)


def test_flops_by_hand() -> None:
    d_model, L = 32, 16
    counted = 6 * MIXER.n_parameters(d_model) + 6 * L * 6 * 2 + (6 * L * 8 + 12 * 48) * 4
    assert MIXER.flops_per_token(d_model, 16) == MIXER.flops_per_token(d_model, 10_000) == counted
    assert MIXER.flops_per_token(d_model, 4) < counted


def test_parameters_of_the_published_mixer() -> None:
    """state-spaces/mamba2-130m: width 768, 24 heads of 64, state 128, one group; counted from its shapes."""
    mixer = Mamba2(
        n_heads=24,
        head_dim=64,
        state_dim=128,
        n_groups=1,
        conv_width=4,
        conv_bias=True,
        bias=False,
        norm_eps=1e-5,
    )
    by_shape = 3352 * 768 + 1792 * 4 + 1792 + 3 * 24 + 1536 + 768 * 1536
    assert mixer.n_parameters(768) == by_shape
