"""Where norms stand, scales, bounds, gains: each formula by hand in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Attention, Block, FeedForward, LayerNorm, Llama, RMSNorm
from modelfactory.models.modules import OffsetRMSNorm, activate
from modelfactory.models.packing import packing_of

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB, D = 61, 16
BASE = Llama(n_layers=2, d_model=D, n_heads=2, max_seq_len=16)
Tensor = torch.Tensor


def shaken(model: Any) -> Any:
    """Return a float64 module in which no gain is 1 and no bias 0."""
    module = model.build(VOCAB, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def stream(n: int = 7) -> Tensor:
    return torch.randn(2, n, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def rms(norm: Any, x: Tensor) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def mean_and_variance(norm: Any, x: Tensor) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def pre(b: Any, n: Callable[..., Tensor], x: Tensor) -> Any:
    x = x + b.mixer(n(b.mixer_norm, x))
    return x + b.feed_forward(n(b.feed_forward_norm, x))


def output(b: Any, n: Callable[..., Tensor], x: Tensor) -> Any:
    x = x + n(b.mixer_norm, b.mixer(x))
    return x + n(b.feed_forward_norm, b.feed_forward(x))


def sandwich(b: Any, n: Callable[..., Tensor], x: Tensor) -> Any:
    x = x + n(b.mixer_out_norm, b.mixer(n(b.mixer_norm, x)))
    return x + n(b.feed_forward_out_norm, b.feed_forward(n(b.feed_forward_norm, x)))


def post(b: Any, n: Callable[..., Tensor], x: Tensor) -> Any:
    x = n(b.mixer_norm, x + b.mixer(x))
    return n(b.feed_forward_norm, x + b.feed_forward(x))


@pytest.mark.parametrize("formula", [pre, output, sandwich, post])
@pytest.mark.parametrize(
    ("norm", "by_hand"), [(RMSNorm(eps=1e-5), rms), (LayerNorm(eps=1e-5, bias=True), mean_and_variance)]
)
def test_placement_by_formula(formula: Any, norm: Any, by_hand: Any) -> None:
    block = replace(BASE.blocks[0], placement=formula.__name__, norm=norm)
    model = replace(BASE, blocks=(block,))
    module = shaken(model)
    found, routed = module.blocks[0](stream())
    torch.testing.assert_close(found, formula(module.blocks[0], by_hand, stream()), atol=1e-12, rtol=0)
    assert routed is None
    n_norms = 4 if formula is sandwich else 2
    layers = block.mixer.n_parameters(D) + block.feed_forward.n_parameters(D)
    assert block.n_parameters(D) == layers + n_norms * norm.n_parameters(D)
    assert sum(p.numel() for p in module.parameters()) == model.n_parameters(VOCAB)
    extra = 12 * 2 * 8 * 16
    assert block.flops_per_token(D, 16) == 6 * block.n_parameters(D) + extra


@pytest.mark.parametrize("placement", ["pre", "output", "sandwich", "post"])
@torch.no_grad()
def test_every_placement_is_causal_and_cached(placement: Any) -> None:
    module = shaken(replace(BASE, blocks=(replace(BASE.blocks[0], placement=placement),)))
    tokens = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 8:] = 3
    assert torch.equal(module(tokens)[:, :8], module(changed)[:, :8])
    cache = module.new_cache(2, 12)
    pieces = [module(piece, cache) for piece in torch.split(tokens, [5, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), module(tokens), atol=1e-6, rtol=0)


@pytest.mark.parametrize("placement", ["pre", "output", "sandwich", "post"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_every_placement_trains_in_bfloat16(placement: Any, unit_offset: bool) -> None:
    norm = RMSNorm(eps=1e-5, unit_offset=unit_offset)
    block = replace(BASE.blocks[0], placement=placement, norm=norm)
    module: Any = replace(BASE, blocks=(block,), final_norm=norm).build(VOCAB, seed=0)
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 8, dtype=torch.bool)
    exact = module.training_sums(tokens[:, :-1], tokens[:, 1:], valid).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = module.training_sums(tokens[:, :-1], tokens[:, 1:], valid).loss
    rough.backward()
    assert float(rough.detach()) == pytest.approx(float(exact.detach()), rel=1e-3)
    assert all(p.grad.dtype == torch.float32 and bool(p.grad.isfinite().all()) for p in module.parameters())


@torch.no_grad()
def test_scales_and_bound_by_formula() -> None:
    model = replace(BASE, embedding_scale=3.5, logit_scale=4.0, logit_softcap=0.7)
    module = shaken(model)
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    x = 3.5 * module.embedding.weight[tokens]
    for block in module.blocks:
        x = pre(block, rms, x)
    wanted = 0.7 * torch.tanh(4.0 * (rms(module.final_norm, x) @ module.head.weight.T) / 0.7)
    torch.testing.assert_close(module(tokens), wanted, atol=1e-12, rtol=0)
    each = -wanted[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
    valid = torch.ones(2, 8, dtype=torch.bool)
    found = module.loss_sum(tokens[:, :-1], tokens[:, 1:], valid)
    torch.testing.assert_close(found.double(), each.sum(), atol=0, rtol=1e-6)


@torch.no_grad()
def test_learned_positions_of_packed_documents() -> None:
    model = GPT2(n_layers=1, d_model=D, n_heads=2, max_seq_len=16)
    module = shaken(replace(model, embedding_scale=2.0))
    tokens = torch.arange(7)[None]
    places = [0, 1, 2, 0, 1, 0, 1]
    packing = packing_of(torch.tensor([[0, 0, 0, 1, 1, 2, 2]]))
    assert packing.positions_BT.tolist() == [places]
    packed, _ = module.hidden(tokens, None, packing)
    x = 2.0 * module.embedding.weight[tokens] + module.positions.weight[places]
    wanted = pre_packed(module.blocks[0], x, packing)
    torch.testing.assert_close(packed, mean_and_variance(module.final_norm, wanted), atol=1e-12, rtol=0)


def pre_packed(b: Any, x: Tensor, packing: Any) -> Any:
    x = x + b.mixer(mean_and_variance(b.mixer_norm, x), None, packing)
    return x + b.feed_forward(mean_and_variance(b.feed_forward_norm, x))


def test_gain_of_one_plus_weight() -> None:
    norm: Any = RMSNorm(eps=1e-6, unit_offset=True).build(D)
    norm.initialise(torch.Generator())
    assert bool((norm.weight == 0).all())
    x = stream().float()
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 1, D))
    torch.testing.assert_close(norm(x)[..., 0], torch.zeros(2, 7))
    assert RMSNorm(eps=1e-6, unit_offset=True).n_parameters(D) == D


def test_gain_of_one_plus_weight_is_computed_in_float32() -> None:
    norm = OffsetRMSNorm(D, eps=1e-6).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(torch.full((D,), 0.001))  # 1.001 is no bfloat16
    x = torch.full((1, D), 3.0, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    wide = OffsetRMSNorm(D, eps=1e-6)
    wide.load_state_dict({"weight": norm.weight.float()})
    assert torch.equal(norm(x), wide(x.float()).bfloat16())


def test_activations_by_formula() -> None:
    x = torch.linspace(-3, 3, 25, dtype=torch.float64)
    torch.testing.assert_close(activate("relu_squared", x), torch.where(x > 0, x * x, 0.0))
    torch.testing.assert_close(activate("silu", x), x / (1 + torch.exp(-x)))
    normal = 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(activate("gelu", x), x * normal)
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(activate("gelu_tanh", x), tanh)
    layer = FeedForward(d_ff=24, activation="relu_squared", bias=False)
    module = shaken(replace(BASE, blocks=(replace(BASE.blocks[0], feed_forward=layer),)))
    part = module.blocks[0].feed_forward
    wanted = (stream() @ part.up.weight.T).clamp(min=0) ** 2 @ part.down.weight.T
    torch.testing.assert_close(part(stream()), wanted)


@dataclass(frozen=True, kw_only=True)
class Local(Attention):
    """A mixer of one's own that does not fit every decoder."""

    def check(self, d_model: int, max_seq_len: int) -> None:
        """Refuse by width and context."""
        if (d_model, max_seq_len) == (D, 16):
            raise SpecError(place="Local", found=f"{d_model}, {max_seq_len}", wanted="another", remedy="")


def test_a_layer_is_asked_whether_it_fits() -> None:
    local = Local(n_heads=2, n_kv_heads=2, head_dim=8, qkv_bias=False, out_bias=False, rope=None)
    block = replace(BASE.blocks[0], mixer=local)
    assert isinstance(block, Block)
    replace(BASE, max_seq_len=17, blocks=(block,))
    with pytest.raises(SpecError, match="Local: found 16, 16, wanted another"):
        replace(BASE, blocks=(BASE.blocks[0], block))
