"""What holds for every mixer with a recurrent state, and for decoders made of them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from modelfactory.models import Attention, Block, Decoder, GatedDelta, Llama, Mamba2, Rope
from modelfactory.models.architecture import BuildContext
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.modules import initialise
from modelfactory.models.packing import packing_of
from modelfactory.spec import fingerprint

VOCAB, D_MODEL, CHUNK = 37, 32, 16
DELTA = GatedDelta(
    n_key_heads=2,
    n_value_heads=4,
    key_head_dim=8,
    value_head_dim=8,
    conv_width=4,
    norm_eps=1e-5,
    chunk=CHUNK,
)
MAMBA = Mamba2(
    n_heads=4,
    head_dim=16,
    state_dim=8,
    n_groups=2,
    conv_width=4,
    conv_bias=True,
    bias=False,
    norm_eps=1e-5,
    chunk=CHUNK,
)
MIXERS: dict[str, Any] = {
    "gated delta": DELTA,
    "gated delta, no neighbours": replace(DELTA, conv_width=1, n_key_heads=4),
    "mamba2": MAMBA,
    "mamba2, biases": replace(MAMBA, bias=True, conv_bias=False, conv_width=2, n_groups=1),
}
BASE = Llama(n_layers=4, d_model=D_MODEL, n_heads=4, max_seq_len=64)
ATTENTION = Attention(
    n_heads=4, n_kv_heads=2, head_dim=8, qkv_bias=False, out_bias=False, rope=Rope(theta=1e4)
)


def block(mixer: Any) -> Block:
    return replace(BASE.blocks[0], mixer=mixer)


def hybrid(mixer: Any) -> Decoder:
    return replace(BASE, blocks=(block(mixer), block(mixer), block(mixer), block(ATTENTION)))


def mixer_module(mixer: Any, seed: int = 0) -> Any:
    initial = gpt2_initial(n_layers=1, d_model=D_MODEL)
    module = mixer.build(BuildContext(d_model=D_MODEL, max_seq_len=64, initial=initial))
    initialise(module, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("step", [1, 3, CHUNK, CHUNK + 1])
def test_continued_from_a_cache_it_is_what_it_is_at_once(name: str, step: int) -> None:
    module, x = mixer_module(MIXERS[name]), normal(2, 43, D_MODEL)
    with torch.no_grad():
        cache = module.new_cache(2, 43)
        parts = [module(part, cache) for part in x.split(step, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), module(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MIXERS)
def test_a_copied_cache_goes_its_own_way(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(1, 20, D_MODEL)
    cache = module.new_cache(1, 20)
    module(x[:, :9], cache)  # with gradients on: they do not enter the cache
    other = copy.deepcopy(cache)
    module(normal(1, 11, D_MODEL, seed=5), other)
    torch.testing.assert_close(module(x[:, 9:], cache), module(x)[:, 9:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MIXERS)
def test_the_cache_does_not_grow(name: str) -> None:
    module = mixer_module(MIXERS[name])
    cache = module.new_cache(1, 20)
    sizes = [(cache.state.shape, cache.tail_BSC.shape)]
    for length in (1, 5, 9):
        module(normal(1, length, D_MODEL), cache)
        sizes.append((cache.state.shape, cache.tail_BSC.shape))
        assert cache.tail_BSC.untyped_storage().nbytes() == cache.tail_BSC.nbytes, "it holds no larger tensor"
    assert len(set(sizes)) == 1


LENGTHS = (1, 9, 2, 1, 20, 5)
"""Documents within a chunk, over a boundary of chunks, and longer than a chunk."""


@pytest.mark.parametrize("name", MIXERS)
def test_a_packed_document_is_what_it_is_alone(name: str) -> None:
    module, x = mixer_module(MIXERS[name]).double(), normal(1, sum(LENGTHS), D_MODEL).double()
    packing = packing_of(torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])[None])
    packed = module(x, None, packing)
    parts = [module(part) for part in x.split(LENGTHS, dim=1)]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1), rtol=0, atol=1e-12)
    assert not torch.allclose(packed, module(x), atol=1e-3), "else the test would see nothing"


@pytest.mark.parametrize("name", MIXERS)
def test_no_gradient_crosses_documents(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(1, sum(LENGTHS), D_MODEL).requires_grad_()
    packing = packing_of(torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])[None])
    ends = torch.tensor(LENGTHS).cumsum(0).tolist()
    y = module(x, None, packing)
    for n, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        (gradient,) = torch.autograd.grad(y[:, start:end].square().sum(), x, retain_graph=True)
        own = torch.zeros(sum(LENGTHS), dtype=torch.bool)
        own[start:end] = True
        largest = gradient[0, own].abs().max()
        assert largest > 0.01, n
        assert gradient[0, ~own].abs().max() < 1e-14 * largest, n  # sums of decays cancel in float64


@pytest.mark.parametrize("name", MIXERS)
def test_rows_of_a_batch_do_not_touch(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(3, 19, D_MODEL)
    packing = packing_of(torch.tensor([[0] * 19, [0] * 8 + [1] * 11, [0] * 3 + [1] * 16]))
    y = module(x, None, packing)
    torch.testing.assert_close(y[:1], module(x[:1]), rtol=0, atol=1e-6)
    torch.testing.assert_close(y[1:2, 8:], module(x[1:2, 8:]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MIXERS)
def test_nothing_comes_from_later_positions(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(1, 20, D_MODEL)
    changed = x.clone()
    changed[:, 11] += 1
    before, after = module(x), module(changed)
    assert torch.equal(before[:, :11], after[:, :11])
    assert (before[:, 11:] - after[:, 11:]).abs().amax(dim=(0, 2)).min() > 0


@pytest.mark.parametrize("name", MIXERS)
def test_parameters_and_start_follow_the_formulas(name: str) -> None:
    mixer = MIXERS[name]
    initial = replace(gpt2_initial(n_layers=3, d_model=D_MODEL), matrix_std=0.05, residual_std=0.01)
    module = mixer.build(BuildContext(d_model=D_MODEL, max_seq_len=64, initial=initial))
    torch_state = torch.get_rng_state()
    initialise(module, 0)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert sum(p.numel() for p in module.parameters()) == mixer.n_parameters(D_MODEL)
    for parameter_name, parameter in module.named_parameters():
        kind = parameter_name.rpartition(".")[0].partition("_")[0]
        if parameter_name.endswith("bias") and parameter_name != "dt_bias":
            assert (parameter == 0).all(), parameter_name
        elif parameter_name in {"D", "norm.weight"}:
            assert (parameter == 1).all(), parameter_name
        elif kind == "conv":
            bound = mixer.conv_width**-0.5
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        elif kind in {"in", "out"}:
            wanted = 0.05 if kind == "in" else 0.01
            assert parameter.std().item() == pytest.approx(wanted, rel=0.1), parameter_name


@pytest.mark.parametrize("mixer", [replace(DELTA, n_value_heads=2_000), replace(MAMBA, n_heads=2_000)])
def test_decays_start_as_drawn_from_their_ranges(mixer: Any) -> None:
    initial = gpt2_initial(n_layers=1, d_model=1)
    module = mixer.build(BuildContext(d_model=1, max_seq_len=8, initial=initial))
    initialise(module, 4)
    rates, steps = module.A_log.exp(), torch.nn.functional.softplus(module.dt_bias)
    assert 1 <= rates.min() < 1.1
    assert 15.9 < rates.max() <= 16.001
    assert rates.mean().item() == pytest.approx(8.5, rel=0.03)
    assert steps.min() * 1.001 >= 1e-3
    assert steps.max() <= 1e-1 * 1.001
    assert steps.log().mean().item() == pytest.approx(math.log(1e-2), rel=0.02)
    assert steps.log().std().item() == pytest.approx(math.log(100) / math.sqrt(12), rel=0.03)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("seq_len", [CHUNK // 2, CHUNK, 3 * CHUNK])
def test_flops_are_those_of_the_products_that_run(name: str, seq_len: int) -> None:
    """Torch counts forward products of matrices; convolution, triangular system and vectors it does not."""
    mixer, x = MIXERS[name], normal(1, seq_len, D_MODEL)
    module, length = mixer_module(mixer), min(CHUNK, seq_len)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    matrices = sum(p.numel() for p in module.parameters() if p.ndim == 2)
    rest = 6 * (mixer.n_parameters(D_MODEL) - matrices)
    if isinstance(mixer, GatedDelta):
        rest += 3 * length * (mixer.key_head_dim + mixer.value_head_dim) * mixer.n_value_heads
    assert counter.get_total_flops() * 3 == (mixer.flops_per_token(D_MODEL, seq_len) - rest) * seq_len


@pytest.mark.parametrize("name", MIXERS)
def test_under_autocast_states_stay_in_float32(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(2, 20, D_MODEL)
    cache, exact = module.new_cache(2, 20), module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, continued = module(x), torch.cat([module(x[:, :9], cache), module(x[:, 9:], cache)], dim=1)
    assert y.dtype == torch.bfloat16
    assert cache.state.dtype == torch.float32
    scale = exact.std().item()
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.06 * scale)
    torch.testing.assert_close(continued.float(), exact, rtol=0, atol=0.06 * scale)


@pytest.mark.parametrize("name", MIXERS)
def test_in_bfloat16_weights_states_stay_in_float32(name: str) -> None:
    module, x = mixer_module(MIXERS[name]), normal(2, 20, D_MODEL)
    exact = module(x)
    module.bfloat16()
    cache = module.new_cache(2, 20)
    y = module(x.bfloat16(), cache)
    assert y.dtype == torch.bfloat16
    assert cache.state.dtype == torch.float32
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.15 * exact.std().item())


def test_the_chunk_is_no_part_of_the_identity() -> None:
    for mixer in (DELTA, MAMBA):
        assert fingerprint(hybrid(mixer)) == fingerprint(hybrid(replace(mixer, chunk=2 * CHUNK)))
        other = replace(mixer, conv_width=3)
        assert fingerprint(hybrid(mixer)) != fingerprint(hybrid(other))


def repeats(seed: int) -> torch.Tensor:
    """A half that is drawn, then the same half once more: only memory tells what comes."""
    half = torch.randint(VOCAB, (16, 8), generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, half], dim=1)


@pytest.mark.parametrize("mixer", [DELTA, MAMBA])
def test_a_hybrid_learns_and_generates_alike_with_and_without_cache(mixer: Any) -> None:
    model = hybrid(mixer)
    module = model.build(VOCAB, seed=0)
    assert sum(p.numel() for p in module.parameters()) == model.n_parameters(VOCAB)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for step in range(30):
        tokens = repeats(step % 2)
        valid = torch.ones(16, 15, dtype=torch.bool)
        loss = module.loss_sum(tokens[:, :-1], tokens[:, 1:], valid) / valid.sum()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.02)
    assert losses[-1] < 0.5 * losses[0]
    assert_generates_alike(module)


@torch.no_grad()
def assert_generates_alike(module: Any) -> None:
    start = repeats(9)[:2, :11]
    cache, tokens = module.new_cache(2, 40), start
    logits = module(start, cache)[:, -1]
    for _ in range(29):
        torch.testing.assert_close(logits, module(tokens)[:, -1], rtol=0, atol=1e-4)
        newest = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, newest], dim=1)
        logits = module(newest, cache)[:, -1]


@pytest.mark.parametrize("mixer", [DELTA, MAMBA])
def test_documents_of_a_row_are_apart_in_a_hybrid(mixer: Any) -> None:
    module = hybrid(mixer).build(VOCAB, seed=0).double()
    tokens = torch.randint(VOCAB, (1, 30), generator=torch.Generator().manual_seed(2))
    packing = packing_of(torch.tensor([[0] * 13 + [1] * 17]))
    packed, _ = module.hidden(tokens, None, packing)
    alone, _ = module.hidden(tokens[:, 13:])
    torch.testing.assert_close(packed[:, 13:], alone, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch warns of itself
@pytest.mark.parametrize("mixer", [DELTA, MAMBA])
@pytest.mark.parametrize("is_packed", [False, True])
def test_it_compiles_as_one_graph(mixer: Any, is_packed: bool) -> None:
    module, x = mixer_module(mixer), normal(2, 19, D_MODEL)
    packing = packing_of(torch.tensor([[0] * 7 + [1] * 12, [0] * 19])) if is_packed else None
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    parameters = list(module.parameters())
    y, plain = compiled(x, None, packing), module(x, None, packing)
    torch.testing.assert_close(y, plain, rtol=0, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(y.square().sum(), parameters),
        torch.autograd.grad(plain.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mixer", [DELTA, MAMBA])
def test_under_autocast_it_traces_as_one_graph(mixer: Any) -> None:
    module, x = mixer_module(mixer), normal(2, 19, D_MODEL)
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x))
