"""Mixtures of experts: every token goes where a dense computation says, and loads come out even."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models import (
    AuxiliaryBalance,
    BiasBalance,
    BuildContext,
    CapacityFactor,
    Decoder,
    Experts,
    FeedForward,
    GatedFeedForward,
    Initial,
    Llama,
)
from modelfactory.models.grouped import taken
from modelfactory.models.modules import initialise
from modelfactory.spec import from_json, to_json

D, E, K = 16, 6, 2
SMALL = GatedFeedForward(d_ff=12, activation="silu", bias=False)
WITH_BIAS = FeedForward(d_ff=20, activation="relu_squared", bias=True)
PLAIN = Experts(
    n_experts=E, n_active=K, expert=SMALL, shared=None, score="softmax", renormalised=True, balance=None
)
AUXILIARY = AuxiliaryBalance(weight=0.01)
VARIANTS = {
    "plain": PLAIN,
    "sigmoid, bias, shared": replace(
        PLAIN, score="sigmoid", balance=BiasBalance(rate=0.1), shared=SMALL, routed_scale=2.5
    ),
    "weights as they are": replace(PLAIN, renormalised=False, expert=WITH_BIAS),
    "one of six": replace(PLAIN, renormalised=False, n_active=1),
    "shared with a gate": replace(PLAIN, shared=WITH_BIAS, shared_gate=True, balance=AUXILIARY),
}


def built(spec: Experts, seed: int = 0) -> Any:
    """Return a module whose parameters are large enough for every part to count."""
    initial = Initial(matrix_std=0.3, residual_std=0.3, vocabulary_std=0.3, position_std=0.3)
    module: Any = spec.build(BuildContext(d_model=D, max_seq_len=32, initial=initial))
    initialise(module, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith(("bias", "bias_E")):
                tensor.normal_(std=0.3, generator=generator)
    return module


def inputs(rows: int = 3, n: int = 8, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, n, D, generator=torch.Generator().manual_seed(seed))


def one_expert(module: Any, spec: Experts, e: int, x: torch.Tensor) -> torch.Tensor:
    """Return what expert e would make of every token."""
    stacks = module.experts
    up = stacks.gate_up if isinstance(spec.expert, GatedFeedForward) else stacks.up
    biases = [None if part.bias is None else part.bias[e] for part in (up, stacks.down)]
    h = functional.linear(x, up.weight[e], biases[0])
    if isinstance(spec.expert, GatedFeedForward):
        gate, value = h.chunk(2, dim=-1)
        h = functional.silu(gate) * value
    else:
        h = functional.relu(h) ** 2
    return functional.linear(h, stacks.down.weight[e], biases[1])


def dense(module: Any, spec: Experts, x: torch.Tensor) -> Any:
    """Run all experts on all tokens and mask."""
    logits = x @ module.router.weight.T
    score = logits.softmax(-1) if spec.score == "softmax" else logits.sigmoid()
    wanted = score + (module.router.bias_E if isinstance(spec.balance, BiasBalance) else 0.0)
    lowest_chosen = wanted.sort(dim=-1, descending=True).values[..., spec.n_active - 1, None]
    weight = torch.where(wanted >= lowest_chosen, score, 0.0)
    if spec.renormalised:
        weight = weight / weight.sum(-1, keepdim=True)
    weight = weight * spec.routed_scale
    y = torch.stack([weight[..., e, None] * one_expert(module, spec, e, x) for e in range(E)]).sum(0)
    if spec.shared is None:
        return y
    shared = module.shared(x)
    return y + (shared * torch.sigmoid(module.shared_gate(x)) if spec.shared_gate else shared)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_token_and_gradient_as_in_a_dense_computation(name: str) -> None:
    spec, x = VARIANTS[name], inputs().requires_grad_()
    module = built(spec)
    direction = torch.randn(3, 8, D, generator=torch.Generator().manual_seed(2))
    wanted = [x, *module.parameters()]
    ours, theirs = module(x).y_BTD, dense(module, spec, x)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    found = torch.autograd.grad((ours * direction).sum(), wanted)
    expected = torch.autograd.grad((theirs * direction).sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_counts(name: str) -> None:
    spec = VARIANTS[name]
    assert sum(p.numel() for p in built(spec).parameters()) == spec.n_parameters(D)
    idle = (E - spec.n_active) * spec.expert.n_parameters(D)
    assert spec.n_active_parameters(D) == spec.n_parameters(D) - idle
    assert spec.flops_per_token(D, 99) == 6 * spec.n_active_parameters(D)


def test_flops_and_parameters_by_hand() -> None:
    spec = replace(PLAIN, shared=WITH_BIAS, shared_gate=True)
    beside = D * E + D + (2 * D * 20 + 20 + D)
    assert spec.n_parameters(D) == beside + 6 * 3 * D * 12
    assert spec.flops_per_token(D, 1) == 6 * (beside + 2 * 3 * D * 12)


def test_active_parameters_of_mixtral_8x7b() -> None:
    expert = GatedFeedForward(d_ff=14_336, activation="silu", bias=False)
    dense_model = Llama(n_layers=32, d_model=4096, n_heads=32, n_kv_heads=8, max_seq_len=32_768, d_ff=14_336)
    block = replace(dense_model.blocks[0], feed_forward=replace(PLAIN, n_experts=8, expert=expert))
    mixtral = replace(dense_model, blocks=(block,))
    assert mixtral.n_parameters(32_000) == 46_702_792_704  # of the published checkpoint
    assert mixtral.n_active_parameters(32_000) == 12_879_925_248
    assert dense_model.n_active_parameters(32_000) == dense_model.n_parameters(32_000)


def test_an_expert_without_tokens_gets_no_gradient() -> None:
    module = built(replace(PLAIN, score="sigmoid", balance=BiasBalance(rate=0.1)))
    module.router.bias_E.copy_(torch.tensor([9.0, 9.0, 0.0, 0.0, 0.0, 0.0]))
    routed = module(inputs())
    routed.y_BTD.sum().backward()
    assert routed.load_BE.tolist() == [[8.0, 8.0, 0.0, 0.0, 0.0, 0.0]] * 3
    gradient = module.experts.down.weight.grad
    assert bool((gradient[2:] == 0).all())
    assert bool((gradient[:2] != 0).any())


def test_experts_that_no_row_reaches_pass_an_empty_gradient_on() -> None:
    """So it is on a process all of whose experts were chosen by no token."""
    x_ND = torch.zeros(0, D, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    taken(x_ND, none, none[:, None]).sum().backward()  # type: ignore[no-untyped-call]
    assert x_ND.grad is not None
    assert x_ND.grad.shape == (0, D)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    module = built(replace(PLAIN, score="sigmoid", balance=BiasBalance(rate=0.1)))
    free = module.router(inputs())
    module.router.bias_E.add_(7.0)  # of all alike: nothing changes
    same = module.router(inputs())
    assert torch.equal(free.chosen_BTK, same.chosen_BTK)
    assert torch.equal(free.weight_BTK, same.weight_BTK)


def test_bias_follows_the_load() -> None:
    module = built(replace(PLAIN, balance=BiasBalance(rate=0.25)))
    module.router.bias_E.zero_()
    module.after_step(torch.tensor([5.0, 1.0, 3.0, 3.0, 4.0, 2.0]))
    assert module.router.bias_E.tolist() == [-0.25, 0.25, 0.0, 0.0, -0.25, 0.25]
    assert "router.bias_E" in module.state_dict()
    assert "router.bias_E" not in dict(module.named_parameters())
    before = built(PLAIN)
    before.after_step(torch.arange(6.0))
    assert "router.bias_E" not in before.state_dict()


def test_biases_make_a_skewed_load_even() -> None:
    module = built(replace(PLAIN, score="sigmoid", balance=BiasBalance(rate=0.01)))
    module.router.bias_E.zero_()
    x = inputs(8, 64) + 0.5 * module.router.weight[0] / module.router.weight[0].norm() ** 2
    first = module(x).load_BE.sum(0)
    for _ in range(300):
        module.after_step(module(x).load_BE.sum(0))
    last = module(x).load_BE.sum(0)
    even = 8 * 64 * K / E
    assert first.max() > 1.3 * even
    assert (last - even).abs().max() < 0.15 * even


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_auxiliary_loss_by_hand(score: Any) -> None:
    spec = replace(PLAIN, score=score, balance=AuxiliaryBalance(weight=0.3))
    module, x = built(spec).double(), inputs().double()
    logits = (x @ module.router.weight.T).detach()
    s = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    for b, found in enumerate(module(x).balance_B.tolist()):
        total = 0.0
        for e in range(E):
            picked = [e in s[b, t].topk(K).indices.tolist() for t in range(8)]
            f = E / (K * 8) * sum(picked)
            p = sum(float(s[b, t, e] / s[b, t].sum()) for t in range(8)) / 8
            total += f * p
        assert found == pytest.approx(0.3 * total, rel=1e-12)


def test_auxiliary_loads_beside_a_bias_are_those_of_the_scores() -> None:
    both = BiasBalance(rate=0.1, auxiliary=AUXILIARY)
    biased, free = built(replace(PLAIN, balance=both)), built(replace(PLAIN, balance=AUXILIARY))
    biased.load_state_dict(free.state_dict(), strict=False)
    torch.testing.assert_close(biased(inputs()).balance_B, free(inputs()).balance_B)
    assert not torch.equal(biased(inputs()).load_BE, free(inputs()).load_BE)


def in_row_order(module: Any, spec: Experts, x: torch.Tensor, room: int) -> tuple[torch.Tensor, int]:
    """Fill experts position by position, up to `room`; return y and how many choices were dropped."""
    choice = module.router(x[None])
    taken, dropped, y = [0] * E, 0, torch.zeros_like(x)
    for t, k in product(range(len(x)), range(spec.n_active)):
        e = int(choice.chosen_BTK[0, t, k])
        if taken[e] == room:
            dropped += 1
            continue
        taken[e] += 1
        y[t] += choice.weight_BTK[0, t, k] * one_expert(module, spec, e, x[t])
    return y, dropped


@pytest.mark.parametrize("expert", [SMALL, WITH_BIAS])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25])
def test_capacity_drops_what_comes_last_in_the_row(expert: Any, factor: float) -> None:
    spec = replace(PLAIN, expert=expert, capacity=CapacityFactor(factor=factor))
    module, x = built(spec), inputs(3, 9)
    routed = module(x)
    room = math.ceil(factor * 9 * K / E)
    for b in range(3):
        y, dropped = in_row_order(module, spec, x[b], room)
        torch.testing.assert_close(routed.y_BTD[b], y, atol=1e-6, rtol=1e-6)
        assert int(routed.dropped_B[b]) == dropped
        alone = module(x[b : b + 1])
        torch.testing.assert_close(alone.y_BTD[0], routed.y_BTD[b], atol=1e-6, rtol=1e-6)
    assert routed.dropped_B.sum() > 0
    assert routed.load_BE.sum() == 3 * 9 * K, "the load is what was asked for, dropped or not"


def test_gradients_with_capacity() -> None:
    spec = replace(PLAIN, expert=WITH_BIAS, capacity=CapacityFactor(factor=1.0))
    module, x = built(spec), inputs(1, 9).requires_grad_()
    y, _ = in_row_order(module, spec, x[0], 3)
    wanted = [x, *module.parameters()]
    found = torch.autograd.grad(module(x).y_BTD.square().sum(), wanted)
    for one, other in zip(found, torch.autograd.grad(y.square().sum(), wanted), strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-5)


def test_later_tokens_drop_no_earlier_ones() -> None:
    module, x = built(replace(PLAIN, capacity=CapacityFactor(factor=0.75))), inputs(1, 9)
    changed = x.clone()
    changed[:, 5:] = inputs(1, 4, seed=9)
    torch.testing.assert_close(module(x).y_BTD[:, :5], module(changed).y_BTD[:, :5])


def test_evaluation_drops_nothing() -> None:
    bounded, free = built(replace(PLAIN, capacity=CapacityFactor(factor=0.5))), built(PLAIN)
    assert not torch.allclose(bounded(inputs()).y_BTD, free(inputs()).y_BTD)
    routed = bounded.eval()(inputs())
    torch.testing.assert_close(routed.y_BTD, free(inputs()).y_BTD)
    assert routed.dropped_B.tolist() == [0.0, 0.0, 0.0]
    assert free(inputs()).dropped_B is None


def test_under_autocast_the_router_stays_in_float32() -> None:
    module, x = built(VARIANTS["sigmoid, bias, shared"]), inputs(4, 32)
    exact = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = module(x)
    assert torch.equal(exact.load_BE, rough.load_BE)
    assert rough.y_BTD.dtype == torch.float32
    error = (exact.y_BTD - rough.y_BTD).norm() / exact.y_BTD.norm()
    assert 0 < error < 0.02


def test_every_tensor_starts_as_its_formula_says() -> None:
    initial = Initial(matrix_std=0.02, residual_std=0.004, vocabulary_std=1.0, position_std=1.0)
    wide = FeedForward(d_ff=96, activation="gelu", bias=True)
    spec = replace(PLAIN, n_experts=8, expert=wide, shared=SMALL, balance=BiasBalance(rate=0.1))
    module: Any = spec.build(BuildContext(d_model=256, max_seq_len=32, initial=initial))
    initialise(module, 0)
    for name, tensor in module.state_dict().items():
        if name.endswith(("bias", "bias_E")):
            assert bool((tensor == 0).all()), name
        else:
            wanted = 0.004 if name.endswith("down.weight") else 0.02
            assert tensor.std().item() == pytest.approx(wanted, rel=0.05), name
    assert not torch.equal(module.experts.up.weight[0], module.experts.up.weight[1])


def decoder(feed_forward: Any, **fields: Any) -> Decoder:
    base = Llama(n_layers=2, d_model=D, n_heads=2, max_seq_len=16)
    return replace(base, blocks=(replace(base.blocks[0], feed_forward=feed_forward),), **fields)


BOTH = BiasBalance(rate=0.1, auxiliary=AuxiliaryBalance(weight=0.5))


@pytest.mark.parametrize("capacity", [None, CapacityFactor(factor=1.0)])
@pytest.mark.parametrize("split", [(4,), (1, 3), (2, 2), (1, 1, 1, 1)])
def test_no_split_of_the_batch_changes_gradient_or_load(capacity: Any, split: tuple[int, ...]) -> None:
    spec = replace(PLAIN, balance=BOTH, capacity=capacity)
    module: Any = decoder(spec).build(61, seed=3)
    tokens = torch.randint(61, (4, 11), generator=torch.Generator().manual_seed(0))
    valid = torch.zeros(4, 10, dtype=torch.bool)
    valid[0], valid[1, :3], valid[2, 7:] = True, True, True  # and row 3 lies past the end of the run

    def gradient(parts: tuple[int, ...]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        module.zero_grad()
        observed: dict[str, torch.Tensor] = {}
        for rows, counts in zip(
            torch.split(tokens, list(parts)), torch.split(valid, list(parts)), strict=True
        ):
            if not counts.any():
                continue  # as the trainer does
            sums = module.training_sums(rows[:, :-1], rows[:, 1:], counts)
            ((sums.loss + sums.extra) / 16).backward()
            observed = {name: observed.get(name, 0) + value for name, value in sums.observed.items()}
        return [p.grad.clone() for p in module.parameters()], observed

    whole, loads = gradient((4,))
    found, found_loads = gradient(split)
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert {name: value.tolist() for name, value in found_loads.items()} == {
        name: value.tolist() for name, value in loads.items()
    }
    assert loads["blocks.0.feed_forward.load"].sum() == 3 * 10 * K, "row 3 counts nothing"
    assert ("blocks.1.feed_forward.dropped" in loads) == (capacity is not None)


def test_a_step_moves_the_biases_of_each_layer() -> None:
    module: Any = decoder(replace(PLAIN, balance=BOTH)).build(61, seed=3)
    names = [f"blocks.{n}.feed_forward.load" for n in range(2)]
    module.after_step({names[0]: torch.arange(6.0), names[1]: torch.arange(6.0).flip(0)})
    biases = [block.feed_forward.router.bias_E for block in module.blocks]
    assert biases[0].tolist() == pytest.approx([0.1] * 3 + [-0.1] * 3)
    assert torch.equal(biases[1], biases[0].flip(0))


@torch.no_grad()
def test_a_cache_changes_no_logits() -> None:
    spec = replace(PLAIN, capacity=CapacityFactor(factor=1.0))
    module: Any = decoder(spec).build(61, seed=0).eval()
    tokens = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))
    cache = module.new_cache(2, 12)
    pieces = [module(piece, cache) for piece in torch.split(tokens, [5, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), module(tokens), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("capacity", [None, CapacityFactor(factor=1.0)])
def test_compiles_as_one_graph(capacity: Any) -> None:
    """Without code generation, which takes a minute."""
    module, x = built(replace(PLAIN, shared=SMALL, balance=BOTH, capacity=capacity)), inputs()

    def outputs_and_gradient(function: Any) -> list[torch.Tensor]:
        module.zero_grad()
        routed = function(x)
        (routed.y_BTD.square().sum() + routed.balance_B.sum()).backward()
        told = [part for part in routed if part is not None]
        return [*told, *(p.grad.clone() for p in module.parameters())]

    compiled = torch.compile(module, dynamic=False, fullgraph=True, backend="aot_eager")
    found = outputs_and_gradient(compiled)
    for one, other in zip(found, outputs_and_gradient(module), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(
    "ignore:.*(torch.jit|should not be instantiated):DeprecationWarning"
)  # torch's own
def test_a_compiled_decoder_is_the_same_function() -> None:
    spec = replace(PLAIN, shared=SMALL, balance=BOTH)
    module: Any = decoder(spec, n_layers=1).build(61, seed=0)
    tokens = torch.randint(61, (3, 11), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(3, 10, dtype=torch.bool)

    def sums_and_gradient(function: Any) -> list[torch.Tensor]:
        module.zero_grad()
        sums = function(tokens[:, :-1], tokens[:, 1:], valid)
        (sums.loss + sums.extra).backward()
        gradients = [p.grad.clone() for p in module.parameters()]
        return [sums.loss, sums.extra, *sums.observed.values(), *gradients]

    compiled = torch.compile(module.training_sums, dynamic=False, fullgraph=True)
    found = sums_and_gradient(compiled)
    for one, other in zip(found, sums_and_gradient(module.training_sums), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"n_active": 6}, "Experts.n_active: found 6, wanted below n_experts 6"),
    ({"n_active": 0}, "Experts.n_active: found 0, wanted at least 1"),
    ({"n_active": 1}, "Experts.renormalised: found True, wanted False for one active expert"),
    ({"shared_gate": True}, "Experts.shared_gate: found True, wanted False without a shared expert"),
    ({"routed_scale": 0.0}, "Experts.routed_scale: found 0.0"),
    ({"capacity": CapacityFactor(factor=3.0)}, "factor: found 3.0, wanted below n_experts / n_active = 3"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_settings_without_effect_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(PLAIN, **fields)


@pytest.mark.parametrize(
    ("make", "fields"),
    [(AuxiliaryBalance, {"weight": 0.0}), (BiasBalance, {"rate": -1.0}), (CapacityFactor, {"factor": 0.0})],
)
def test_numbers_at_or_below_0_are_refused(make: Any, fields: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="wanted a number above 0"):
        make(**fields)


@pytest.mark.parametrize("name", VARIANTS)
def test_json_and_back(name: str) -> None:
    assert from_json(to_json(VARIANTS[name])) == VARIANTS[name]
