from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from modelfactory.models import GPT2, Llama


def build(family: Any, *, n_layers: int, d_model: int, vocab_size: int, tied: bool) -> Any:
    model = family(n_layers=n_layers, d_model=d_model, n_heads=d_model // 64, max_seq_len=64, tied=tied)
    return model.build(vocab_size, seed=1)


@pytest.mark.parametrize("family", [GPT2, Llama])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("d_model", "n_layers"), [(64, 4), (256, 2), (768, 2), (1536, 1)])
@pytest.mark.parametrize("vocab_size", [257, 8_192])
def test_first_loss_is_ln_vocab_within_2_percent(
    family: Any, tied: bool, d_model: int, n_layers: int, vocab_size: int
) -> None:
    module = build(family, n_layers=n_layers, d_model=d_model, vocab_size=vocab_size, tied=tied)
    tokens = torch.randint(vocab_size, (8, 65), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        loss = module.loss_sum(tokens[:, :-1], tokens[:, 1:], torch.ones(8, 64, dtype=torch.bool)) / 512
    assert float(loss) == pytest.approx(math.log(vocab_size), rel=0.02)


@pytest.mark.parametrize("family", [GPT2, Llama])
def test_every_tensor_starts_as_its_formula_says(family: Any) -> None:
    module = build(family, n_layers=3, d_model=256, vocab_size=1_000, tied=False)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            assert bool((parameter == 0).all()), name
        elif "norm" in name:
            assert bool((parameter == 1).all()), name
        else:
            residual = name.endswith(("out.weight", "down.weight"))
            wanted = 0.02 / math.sqrt(6) if residual else 0.02
            assert parameter.std().item() == pytest.approx(wanted, rel=0.03), name
            assert abs(parameter.mean().item()) < wanted / 20, name


def test_it_is_a_function_of_the_seed_alone() -> None:
    model = GPT2(n_layers=2, d_model=32, n_heads=4, max_seq_len=16)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = model.build(97, seed=0).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    same, other = model.build(97, seed=0).state_dict(), model.build(97, seed=1).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_another_layer_moves_no_other_tensor_of_equal_scale() -> None:
    small = Llama(n_layers=1, d_model=32, n_heads=4, max_seq_len=16).build(97, seed=0).state_dict()
    large = Llama(n_layers=2, d_model=32, n_heads=4, max_seq_len=16).build(97, seed=0).state_dict()
    assert torch.equal(small["blocks.0.mixer.qkv.weight"], large["blocks.0.mixer.qkv.weight"])
