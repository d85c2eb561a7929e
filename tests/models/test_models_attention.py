"""What holds for attention of every kind."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from modelfactory.models import BuildContext, Packing, Rope, gpt2_initial
from modelfactory.models.flex import by_flex, fits_flex
from modelfactory.models.modules import initialise
from modelfactory.models.packing import packing_of
from modelfactory.models.rope_module import Rotation
from modelfactory.models.scoring import Scoring, seen
from modelfactory.models.softmax_attention import attend, by_formula
from modelfactory.spec import from_json, to_json
from tests.models.mixers import LATENT, MIXERS, PLAIN, VOCAB, decoder

EVERY = pytest.mark.parametrize("name", MIXERS)


def built(name: str) -> Any:
    return decoder(MIXERS[name]).build(VOCAB, seed=3)


def tokens(rows: int = 2, n: int = 40) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, n), generator=torch.Generator().manual_seed(0))


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@EVERY
def test_the_formula_counts_what_is_built(name: str) -> None:
    model = decoder(MIXERS[name])
    assert sum(each.numel() for each in model.build(VOCAB, seed=0).parameters()) == model.n_parameters(VOCAB)


@EVERY
def test_json_and_back(name: str) -> None:
    assert from_json(to_json(MIXERS[name])) == MIXERS[name]


@EVERY
@torch.no_grad()
def test_later_tokens_change_nothing_earlier(name: str) -> None:
    module = built(name)
    whole = tokens()
    for place in (1, 37):
        changed = whole.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCAB
        one, other = module(whole), module(changed)
        torch.testing.assert_close(one[:, :place], other[:, :place], rtol=0, atol=0)
        assert not torch.equal(one[:, place], other[:, place])


@EVERY
@pytest.mark.parametrize("split", [(1,) * 40, (5, 1, 1, 9, 2, 22), (35, 4, 1)])
@torch.no_grad()
def test_a_cache_changes_no_logits(name: str, split: tuple[int, ...]) -> None:
    module = built(name)
    whole = tokens()
    cache = module.new_cache(2, 40)
    pieces = [module(piece, cache) for piece in whole.split(split, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), module(whole), atol=1e-5, rtol=0)


@EVERY
@torch.no_grad()
def test_a_copied_cache_goes_its_own_way(name: str) -> None:
    module = built(name)
    whole = tokens()
    cache = module.new_cache(2, 40)
    module(whole[:, :6], cache)
    module(whole[:, 6:11] + 1, copy.deepcopy(cache))
    torch.testing.assert_close(module(whole[:, 6:], cache), module(whole)[:, 6:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["window in blocks", "all at once", "latent of queries"])
def test_it_is_compiled_whole(name: str) -> None:
    module = built(name).blocks[0].mixer
    x = drawn(2, 40, 32)
    documents = torch.arange(40).div(15, rounding_mode="floor").expand(2, 40)

    def mixed(x: torch.Tensor, documents: torch.Tensor | None) -> Any:
        return module(x, None, None if documents is None else packing_of(documents))

    torch.compiler.reset()
    compiled = torch.compile(mixed, fullgraph=True, dynamic=False, backend="eager")
    for given in (None, documents):
        torch.testing.assert_close(compiled(x, given), mixed(x, given))
    torch.compiler.reset()


@EVERY
def test_gradients_reach_every_parameter(name: str) -> None:
    module = built(name)
    whole = tokens()
    module.loss_sum(whole, whole.roll(-1, 1), torch.ones_like(whole, dtype=torch.bool)).backward()
    for parameter_name, parameter in module.named_parameters():
        if name == "window of one" and ("qkv" in parameter_name):
            continue  # of one score the softmax is 1, whatever it is
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@torch.no_grad()
def test_half_precision_stays_near() -> None:
    for name in ("all at once", "norm of the width", "latent of queries"):
        module = built(name)
        whole = tokens()
        with torch.autocast("cpu", torch.bfloat16):
            near = module(whole)
        assert near.dtype == torch.bfloat16
        torch.testing.assert_close(near.float(), module(whole), atol=0.1, rtol=0.1)


@torch.no_grad()
def test_a_window_hides_what_is_farther_away() -> None:
    layer = replace(PLAIN, window=5).build(context())
    initialise(layer, 0)
    x = drawn(1, 20, 32)
    before = layer(x)
    x[:, 4] += 1.0
    moved = (layer(x) - before).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


def written_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, packing: Packing | None = None
) -> torch.Tensor:
    mask = seen(q.shape[2], k.shape[2], scoring.window, packing, q.device)
    return by_formula(q, k, v, mask, scoring)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("packed", [False, True])
def test_windows_far_shorter_than_the_row_agree_with_the_formula(softcap: float | None, packed: bool) -> None:
    """Long rows are cut into blocks; documents lie across them."""
    documents = torch.tensor([0] * 3 + [1] * 60 + [2] * 7 + [3] * 31)[None].expand(2, -1)
    for n, window in ((101, 4), (64, 16), (65, 16), (101, 25), (40, 1), (33, 8)):
        q, k, v = (
            drawn(2, heads, n, width, seed=heads + width, dtype=torch.float64).requires_grad_()
            for heads, width in ((4, 8), (2, 8), (2, 6))
        )
        scoring = Scoring(window=window, softcap=softcap)
        packing = packing_of(documents[:, :n]) if packed else None
        ours = attend(q, k, v, scoring, packing)
        wanted = written_out(q, k, v, scoring, packing)
        torch.testing.assert_close(ours, wanted, atol=1e-9, rtol=0)
        weights = drawn(*ours.shape, seed=9, dtype=torch.float64)
        for one, other in zip(
            torch.autograd.grad((ours * weights).sum(), (q, k, v)),
            torch.autograd.grad((wanted * weights).sum(), (q, k, v)),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def test_a_window_as_long_as_the_row_is_full_attention() -> None:
    q, k, v = drawn(2, 4, 9, 8), drawn(2, 4, 9, 8, seed=1), drawn(2, 4, 9, 8, seed=2)
    assert torch.equal(attend(q, k, v, Scoring(window=9)), attend(q, k, v, Scoring()))
    assert not torch.allclose(attend(q, k, v, Scoring(window=8)), attend(q, k, v, Scoring()))


def test_softcap_by_hand() -> None:
    q, k, v = (drawn(1, 1, 2, 3, seed=seed, dtype=torch.float64) for seed in range(3))
    scores = [2.0 * torch.tanh(0.25 * (q[0, 0, 1] @ k[0, 0, s]) / 2.0) for s in range(2)]
    weight = 1 / (1 + torch.exp(scores[1] - scores[0]))
    wanted = weight * v[0, 0, 0] + (1 - weight) * v[0, 0, 1]
    y = attend(q, k, v, Scoring(scale=0.25, softcap=2.0))
    torch.testing.assert_close(y[0, 0, 1], wanted)
    torch.testing.assert_close(y[0, 0, 0], v[0, 0, 0])


def test_a_softcap_far_above_the_scores_is_none() -> None:
    q, k, v = drawn(2, 4, 9, 8), drawn(2, 2, 9, 8, seed=1), drawn(2, 2, 9, 8, seed=2)
    for window in (None, 4):
        capped = attend(q, k, v, Scoring(window=window, softcap=1e4))
        torch.testing.assert_close(capped, attend(q, k, v, Scoring(window=window)), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.8])
@torch.no_grad()
def test_flex_attention_agrees_with_the_formula(
    window: int | None, packed: bool, softcap: float | None
) -> None:
    """The kernel that a GPU uses; here in its slow form, which is defined by the same functions."""
    q, k, v = drawn(2, 4, 24, 16), drawn(2, 2, 24, 16, seed=1), drawn(2, 2, 24, 16, seed=2)
    documents = torch.tensor([[0] * 9 + [1] * 15, [0] * 17 + [1] * 3 + [2] * 4])
    packing = packing_of(documents) if packed else None
    scoring = Scoring(scale=0.4, softcap=softcap, window=window)
    y = by_flex(q, k, v, scoring, packing)
    torch.testing.assert_close(y, written_out(q, k, v, scoring, packing), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@torch.no_grad()
def test_flex_attention_is_traced_without_a_break() -> None:
    q, k, v = drawn(2, 4, 40, 16), drawn(2, 2, 40, 16, seed=1), drawn(2, 2, 40, 16, seed=2)
    documents = torch.arange(40).div(15, rounding_mode="floor").expand(2, 40)
    scoring = Scoring(softcap=0.8, window=9)

    def mixed(q: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return by_flex(q, k, v, scoring, packing_of(documents))

    torch.compiler.reset()
    y = torch.compile(mixed, fullgraph=True, dynamic=False, backend="eager")(q, documents)
    torch.compiler.reset()
    wanted = written_out(q, k, v, scoring, packing_of(documents))
    torch.testing.assert_close(y, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("is_cuda", "n_queries", "n_keys", "width", "fits"),
    [
        (True, 64, 64, 32, True),
        (False, 64, 64, 32, False),
        (True, 1, 64, 32, False),
        (True, 64, 64, 8, False),
    ],
)
def test_flex_attention_is_for_whole_rows_on_a_gpu(
    is_cuda: bool, n_queries: int, n_keys: int, width: int, fits: bool
) -> None:
    queries: Any = SimpleNamespace(is_cuda=is_cuda, shape=(1, 4, n_queries, width))
    keys: Any = SimpleNamespace(is_cuda=is_cuda, shape=(1, 4, n_keys, width))
    assert fits_flex(queries, keys) is fits


@pytest.mark.parametrize("name", ["plain", "window", "softcap", "norm of heads", "a part turns", "gate"])
@torch.no_grad()
def test_shared_keys_are_repeated_keys(name: str) -> None:
    grouped_spec = MIXERS[name]
    grouped = grouped_spec.build(context())
    full = replace(grouped_spec, n_kv_heads=4).build(context())
    initialise(grouped, 1)
    state = dict(grouped.state_dict())
    for key in ("qkv.weight", "qkv.bias"):
        if key in state:
            q, k, v, gate = state[key].split((32, 16, 16, len(state[key]) - 64))
            k, v = (each.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1) for each in (k, v))
            state[key] = torch.cat((q, k, v, gate))
    full.load_state_dict(state)
    x = drawn(2, 15, 32)
    torch.testing.assert_close(grouped(x), full(x), atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_first_dimensions_turn_and_the_others_stay() -> None:
    half = Rotation(Rope(theta=100.0, share=0.5), 8, context())
    whole = Rotation(Rope(theta=100.0), 4, context())
    x = drawn(2, 9, 3, 8)
    turned = half(x, 5, None)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.equal(turned[..., :4], whole(x[..., :4], 5, None))
    assert not torch.equal(turned[..., :4], x[..., :4])


@torch.no_grad()
def test_a_gate_multiplies_by_its_sigmoid() -> None:
    layer = replace(PLAIN, gate=True, qkv_bias=True).build(context())
    plain = replace(PLAIN, qkv_bias=True).build(context())
    initialise(layer, 2)
    plain.qkv.weight.copy_(layer.qkv.weight[:64])
    plain.qkv.bias.copy_(layer.qkv.bias[:64])
    plain.out.weight.copy_(torch.eye(32))
    layer.out.weight.copy_(torch.eye(32))
    x = drawn(1, 6, 32)
    gate = functional.linear(x, layer.qkv.weight[64:], layer.qkv.bias[64:]).sigmoid()
    torch.testing.assert_close(layer(x), gate * plain(x))


def test_the_cache_of_a_window_holds_no_more_than_the_window() -> None:
    cache = replace(PLAIN, window=5).build(context()).new_cache(3, 30)
    assert cache.keys_BKSQ.shape == (3, 2, 5, 8)
    assert replace(PLAIN, window=5).build(context()).new_cache(3, 4).keys_BKSQ.shape[2] == 4


@torch.no_grad()
def test_the_cache_of_latent_attention_holds_latent_and_shared_key_only() -> None:
    layer = LATENT.build(context())
    initialise(layer, 0)
    cache = layer.new_cache(2, 9)
    layer(drawn(2, 4, 32), cache)
    tensors = [each for each in vars(cache).values() if isinstance(each, torch.Tensor)]
    assert [each.shape for each in tensors] == [(2, 9, LATENT.kv_rank + LATENT.rope_head_dim)]


@pytest.mark.parametrize(("seq_len", "n_seen"), [(4, 4), (5, 5), (6, 5), (32, 5)])
def test_flops_of_a_window(seq_len: int, n_seen: int) -> None:
    spec = MIXERS["window"]
    assert spec.flops_per_token(32, seq_len) == 6 * spec.n_parameters(32) + 12 * 4 * 8 * n_seen


def test_flops_count_norms_and_gate_by_their_parameters() -> None:
    plain = PLAIN.flops_per_token(32, 16)
    assert MIXERS["norm of heads"].flops_per_token(32, 16) - plain == 6 * (8 + 8)
    assert MIXERS["norm of the width"].flops_per_token(32, 16) - plain == 6 * (32 + 16)
    assert MIXERS["softcap"].flops_per_token(32, 16) == plain
    assert replace(PLAIN, gate=True).flops_per_token(32, 16) - plain == 6 * 32 * 32


def test_flops_of_latent_attention() -> None:
    n = 32 * (4 * 10 + 12 + 4) + 12 * 4 * (6 + 5) + 12 + 4 * 5 * 32
    assert LATENT.n_parameters(32) == n
    assert LATENT.flops_per_token(32, 16) == 6 * n + 6 * 16 * (4 * 10 + 4 * 5)


def context(max_seq_len: int = 32) -> BuildContext:
    initial = replace(gpt2_initial(n_layers=2, d_model=32), matrix_std=0.3)
    return BuildContext(d_model=32, max_seq_len=max_seq_len, initial=initial)
