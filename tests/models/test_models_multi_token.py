"""Predicting tokens further ahead: the loss by hand, and nothing of it outside of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models import (
    GPT2,
    BiasBalance,
    CapacityFactor,
    Decoder,
    Experts,
    GatedFeedForward,
    Llama,
    LossSums,
    MultiToken,
)
from modelfactory.spec import fingerprint, from_json, to_json

VOCAB, D = 61, 16
BASE = Llama(n_layers=2, d_model=D, n_heads=2, max_seq_len=16)
BLOCK = BASE.blocks[0]
MULTI = MultiToken(n_extra=2, weight=0.6, block=BLOCK)
MODEL = replace(BASE, multi_token=MULTI)
EXPERTS = Experts(
    n_experts=4,
    n_active=2,
    expert=GatedFeedForward(d_ff=8, activation="silu", bias=False),
    shared=None,
    score="sigmoid",
    renormalised=True,
    balance=BiasBalance(rate=0.1),
)


def built(model: Decoder = MODEL) -> Any:
    return model.build(VOCAB, seed=0).double()


def batch(rows: int = 3, n: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (rows, n + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:], torch.rand(rows, n, generator=generator) < 0.7


def unit(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm with a gain of 1, as it starts."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def by_hand(module: Any, tokens: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return weight / n_extra times the losses of both depths, row by row, position by position."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(tokens)):
        x = module.embedding(tokens[row])
        for block in module.blocks:
            x = block(x[None])[0][0]
        for k, depth in enumerate(module.multi_token.depths, 1):
            if (n := tokens.shape[1] - k) == 0:
                break
            pairs = [torch.cat((unit(x[i]), unit(module.embedding(tokens[row, i + k])))) for i in range(n)]
            x = depth.block((torch.stack(pairs) @ depth.projection.weight.T)[None])[0][0]
            for i in range(n):
                if valid[row, i + k]:
                    logits = unit(x[i]) @ module.head.weight.T
                    total = total + 0.3 * functional.cross_entropy(logits, labels[row, i + k])
    return total


def test_the_loss_by_hand() -> None:
    module, (tokens, labels, valid) = built(), batch()
    found = module.training_sums(tokens, labels, valid).extra
    torch.testing.assert_close(found.double(), by_hand(module, tokens, labels, valid), atol=1e-4, rtol=1e-6)


def test_the_decoder_itself_is_not_changed() -> None:
    module, plain, (tokens, labels, valid) = built(), built(BASE), batch()
    assert torch.equal(module(tokens), plain(tokens))
    sums, alone = module.training_sums(tokens, labels, valid), plain.training_sums(tokens, labels, valid)
    assert torch.equal(sums.loss, alone.loss)
    assert alone.extra == 0.0 < sums.extra
    cache = module.new_cache(3, 10)
    pieces = [module(piece, cache) for piece in torch.split(tokens, [4, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), plain(tokens))


def test_rows_add_up() -> None:
    module, (tokens, labels, valid) = built(), batch()
    whole = module.training_sums(tokens, labels, valid)
    parts = [module.training_sums(tokens[n : n + 1], labels[n : n + 1], valid[n : n + 1]) for n in range(3)]
    torch.testing.assert_close(sum(part.extra for part in parts), whole.extra)


def documents(*lengths: int) -> torch.Tensor:
    return torch.cat([torch.full((length,), n) for n, length in enumerate(lengths)])[None]


def test_a_packed_document_counts_what_it_does_alone() -> None:
    module, (tokens, labels, _) = built(), batch(1, 16)
    lengths = (7, 1, 2, 6)
    valid = torch.ones(1, 16, dtype=torch.bool)
    ends = torch.tensor(lengths).cumsum(0) - 1
    valid[0, ends[:-1]] = False  # the label after a document's last token is the next one's first
    packed = module.training_sums(tokens, labels, valid, documents(*lengths))
    alone, start = LossSums(torch.zeros(()), torch.zeros(()), {}), 0
    for length in lengths:
        piece = slice(start, start + length)
        sums = module.training_sums(tokens[:, piece], labels[:, piece], valid[:, piece])
        alone = LossSums(alone.loss + sums.loss, alone.extra + sums.extra, {})
        start += length
    torch.testing.assert_close(packed.loss, alone.loss, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(packed.extra, alone.extra, atol=1e-4, rtol=1e-6)
    free = module.training_sums(tokens, labels, valid)
    assert (free.extra - packed.extra).abs() > 1e-2


def test_a_row_too_short_for_a_depth() -> None:
    module, (tokens, labels, _) = built(), batch(2, 10)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    assert module.training_sums(tokens[:, :1], labels[:, :1], valid[:, :1]).extra == 0.0
    two = module.training_sums(tokens[:, :2], labels[:, :2], valid[:, :2]).extra
    torch.testing.assert_close(
        two.double(), by_hand(module, tokens[:, :2], labels, valid), atol=1e-4, rtol=1e-6
    )


def test_gradient_reaches_every_parameter() -> None:
    module, (tokens, labels, valid) = built(), batch()
    module.training_sums(tokens, labels, valid).extra.backward()
    silent = {name for name, p in module.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert silent == {"final_norm.weight"}


@pytest.mark.parametrize("tied", [False, True])
def test_counts_by_hand(tied: bool) -> None:
    model, base = replace(MODEL, tied=tied), replace(BASE, tied=tied)
    depth = 2 * D * D + 3 * D + BLOCK.n_parameters(D)
    assert model.n_parameters(VOCAB) == base.n_parameters(VOCAB) + 2 * depth
    assert sum(p.numel() for p in model.build(VOCAB, seed=0).parameters()) == model.n_parameters(VOCAB)
    flops = 2 * (6 * (depth + VOCAB * D) + 12 * D * 16)
    assert model.flops_per_token(VOCAB, 16) == base.flops_per_token(VOCAB, 16) + flops


def test_experts_in_the_further_block() -> None:
    block = replace(BLOCK, feed_forward=EXPERTS)
    model = replace(BASE, multi_token=replace(MULTI, block=block))
    module: Any = model.build(VOCAB, seed=0)
    idle = 2 * 2 * EXPERTS.expert.n_parameters(D)
    assert model.n_active_parameters(VOCAB) == model.n_parameters(VOCAB) - idle
    tokens, labels, valid = batch()
    observed = module.training_sums(tokens, labels, valid).observed
    names = [f"multi_token.depths.{k}.block.feed_forward.load" for k in range(2)]
    assert list(observed) == names
    assert [int(observed[name].sum()) for name in names] == [3 * 9 * 2, 3 * 8 * 2]
    module.after_step(observed)
    assert all(bool(d.block.feed_forward.router.bias_E.any()) for d in module.multi_token.depths)


def test_hidden_matrices_and_rates_include_the_further_ones() -> None:
    module: Any = replace(MODEL, hidden_lr_scale=0.5).build(VOCAB, seed=0)
    assert "multi_token.depths.1.projection.weight" in module.hidden_matrices()
    scales = module.lr_scales()
    matrices = {name for name, p in module.named_parameters() if p.ndim == 2}
    assert set(scales) == matrices - {"embedding.weight", "head.weight"} == module.hidden_matrices()


def test_in_bfloat16_the_stream_stays_float32() -> None:
    module: Any = MODEL.build(VOCAB, seed=0)
    tokens, labels, valid = batch()
    exact = module.training_sums(tokens, labels, valid).extra
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = module.training_sums(tokens, labels, valid).extra
    assert float(rough.detach()) == pytest.approx(float(exact.detach()), rel=1e-3)


def test_learned_positions() -> None:
    model = GPT2(n_layers=1, d_model=D, n_heads=2, max_seq_len=16)
    module: Any = replace(model, multi_token=replace(MULTI, block=model.blocks[0])).build(VOCAB, seed=0)
    sums = module.training_sums(*batch())
    assert float(sums.extra.detach()) > 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_compiles_as_one_graph() -> None:
    """With experts that drop nothing in the decoder, and experts of bounded capacity further ahead.

    Without code generation, which takes minutes here: test_models_experts has that, for a smaller model.
    """
    bounded = replace(BLOCK, feed_forward=replace(EXPERTS, capacity=CapacityFactor(factor=1.0)))
    further = MultiToken(n_extra=1, weight=0.3, block=bounded)
    free = replace(BLOCK, feed_forward=EXPERTS)
    module: Any = replace(BASE, n_layers=1, blocks=(free,), multi_token=further).build(VOCAB, seed=0)
    row = documents(4, 6).expand(3, -1)

    def found(function: Any) -> list[torch.Tensor]:
        module.zero_grad()
        sums = function(*batch(), row)
        (sums.loss + sums.extra).backward()
        return [
            sums.loss,
            sums.extra,
            *sums.observed.values(),
            *(p.grad.clone() for p in module.parameters()),
        ]

    compiled = found(torch.compile(module.training_sums, dynamic=False, fullgraph=True, backend="aot_eager"))
    for one, other in zip(compiled, found(module.training_sums), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_extra": 0}, "MultiToken.n_extra: found 0"),
        ({"weight": 0.0}, "MultiToken.weight: found 0.0"),
        ({"block": BLOCK.mixer}, "MultiToken.block: found .*, wanted a Block"),
    ],
)
def test_what_has_no_effect_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(MULTI, **fields)


def test_a_depth_beyond_every_sequence_is_refused() -> None:
    with pytest.raises(SpecError, match="n_extra: found 16, wanted below max_seq_len 16"):
        replace(BASE, multi_token=replace(MULTI, n_extra=16))


def test_identity() -> None:
    assert from_json(to_json(MODEL)) == MODEL
    assert fingerprint(MODEL) != fingerprint(BASE)
    assert "multi_token" not in str(fingerprint(BASE))
