"""Documents that share a row: one changes nothing of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.models import GPT2, Decoder, Llama
from modelfactory.models.packing import packing_of
from tests.models.mixers import MIXERS, decoder

VOCAB = 61
MODELS = {
    "learned positions": GPT2(n_layers=2, d_model=32, n_heads=4, max_seq_len=32),
    "rotary": Llama(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=32),
}
BLIND = ("window of one",)
"""Mixers in which no position sees another."""


def rows(*lengths: int) -> torch.Tensor:
    return torch.cat([torch.full((length,), n) for n, length in enumerate(lengths)])[None]


def test_positions_and_mask_by_hand() -> None:
    packing = packing_of(rows(2, 3))
    assert packing.positions_BT.tolist() == [[0, 1, 0, 1, 2]]
    assert packing.mask_B1TT[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_document_is_what_it_is_alone(name: str) -> None:
    model: Decoder = replace(MODELS[name], embedding_scale=3.0)
    module: Any = model.build(VOCAB, seed=1).double()
    generator = torch.Generator().manual_seed(0)
    lengths = (9, 1, 14, 8)
    tokens = torch.randint(VOCAB, (1, sum(lengths)), generator=generator)
    packed, _ = module.hidden(tokens, None, packing_of(rows(*lengths)))
    start = 0
    for length in lengths:
        alone, _ = module.hidden(tokens[:, start : start + length])
        torch.testing.assert_close(packed[:, start : start + length], alone, rtol=0, atol=1e-6)
        start += length
    free, _ = module.hidden(tokens)
    assert not torch.allclose(packed, free, atol=1e-3), "without a mask they do see each other"


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_one_document_does_not_reach_another(name: str) -> None:
    module: Any = MODELS[name].build(VOCAB, seed=1)
    tokens = torch.arange(20)[None] % VOCAB
    valid = torch.zeros(1, 20, dtype=torch.bool)
    valid[:, 12:] = True
    embedded = module.embedding.weight
    sums = module.training_sums(tokens, tokens.roll(-1, 1), valid, rows(12, 8))
    (gradient,) = torch.autograd.grad(sums.loss, embedded)
    if name == "rotary":  # a head of its own: the embedding's gradient comes through the tokens alone
        assert gradient[:12].abs().max() == 0
        assert gradient[12:20].abs().max() > 0


@pytest.mark.parametrize("name", MIXERS)
def test_other_documents_change_nothing_for_any_mixer(name: str) -> None:
    module: Any = decoder(MIXERS[name]).build(VOCAB, seed=1).double()
    lengths = (9, 1, 21, 12)  # 43: longer than four windows, and no multiple of one
    tokens = torch.randint(VOCAB, (1, sum(lengths)), generator=torch.Generator().manual_seed(0))
    whole, _ = module.hidden(tokens, None, packing_of(rows(*lengths)))
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        alone, _ = module.hidden(tokens[:, own])
        torch.testing.assert_close(whole[:, own], alone, rtol=0, atol=1e-6)
        others = (tokens + 7) % VOCAB
        others[:, own] = tokens[:, own]
        changed, _ = module.hidden(others, None, packing_of(rows(*lengths)))
        torch.testing.assert_close(whole[:, own], changed[:, own], rtol=0, atol=1e-6)
        start += length
    free, _ = module.hidden(tokens)
    assert name in BLIND or not torch.allclose(whole, free, atol=1e-3), "without a mask they see each other"


@pytest.mark.parametrize("name", MIXERS)
def test_no_gradient_crosses_for_any_mixer(name: str) -> None:
    module: Any = decoder(MIXERS[name]).build(VOCAB, seed=1).double()
    mixer = module.blocks[0].mixer
    x = torch.randn(1, 43, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x.requires_grad_()
    y = mixer(x, None, packing_of(rows(9, 22, 12)))
    (gradient,) = torch.autograd.grad(y[:, 9:31].square().sum(), x)
    assert gradient[:, :9].abs().max() == 0
    assert gradient[:, 31:].abs().max() == 0
    assert gradient[:, 9:31].abs().amin(dim=(0, 2)).max() > 0
