from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Decoder, Llama, gpt2_initial
from modelfactory.models.mup import at_width, mup


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


BASES = {
    "gpt2": GPT2(n_layers=3, d_model=256, n_heads=4, max_seq_len=64),
    "gpt2, untied": GPT2(n_layers=3, d_model=256, n_heads=4, max_seq_len=64, tied=False),
    "llama": Llama(n_layers=3, d_model=256, n_heads=4, n_kv_heads=2, max_seq_len=64),
    "llama, tied": Llama(n_layers=3, d_model=256, n_heads=4, max_seq_len=64, tied=True),
}
MODELS = (
    BASES
    | {f"{name}, 640 by muP": mup(at_width(base, 640), base=base) for name, base in BASES.items()}
    | {"wide": Llama(n_layers=1, d_model=1024, n_heads=8, max_seq_len=64)}
)


def wanted_std(name: str, model: Decoder) -> float:
    """By the documentation: GPT-2's, a smaller vocabulary matrix at large widths, and muP's root."""
    is_mup = model.d_model == 640
    if name in ("embedding.weight", "head.weight"):
        return min(0.02, 0.4 / math.sqrt(256 if is_mup else model.d_model))
    if name == "positions.weight":
        return 0.02
    into_the_stream = name.endswith(("out.weight", "down.weight"))
    assert into_the_stream or name.endswith(("qkv.weight", "up.weight", "gate_up.weight")), name
    std = 0.02 / math.sqrt(2 * model.n_layers) if into_the_stream else 0.02
    return std / math.sqrt(640 / 256) if is_mup else std


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_starts_as_its_formula_says(name: str) -> None:
    """Gains are 1, biases 0, and all others normal: mean, deviation and tail, each to 4 standard errors."""
    model = MODELS[name]
    for tensor, parameter in model.build(1_000, seed=1).named_parameters():
        if tensor.endswith("bias"):
            assert bool((parameter == 0).all()), tensor
        elif "norm" in tensor:
            assert bool((parameter == 1).all()), tensor
        else:
            std, n = wanted_std(tensor, model), parameter.numel()
            found = parameter.detach().double()
            assert abs(found.std().item() / std - 1) < 4 / math.sqrt(2 * n), tensor
            assert abs(found.mean().item()) < 4 * std / math.sqrt(n), tensor
            beyond = (found.abs() > 2 * std).double().mean().item()
            assert abs(beyond - 0.0455) < 4 * math.sqrt(0.0455 * 0.9545 / n), tensor


@pytest.mark.parametrize("field", ["matrix_std", "residual_std", "vocabulary_std", "position_std"])
@pytest.mark.parametrize("value", [0.0, -0.02, float("nan"), float("inf"), "0.02"])
def test_deviations_that_leave_a_layer_dead_are_refused(field: str, value: Any) -> None:
    good = gpt2_initial(n_layers=2, d_model=64)
    with pytest.raises(SpecError, match=f"Initial.{field}"):
        replace(good, **{field: value})


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
