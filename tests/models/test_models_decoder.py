from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Attention, Initial, LayerNorm, Llama, RMSNorm, Rope
from modelfactory.spec import collecting, from_json, to_json

MODELS = {
    "gpt2": GPT2(n_layers=2, d_model=32, n_heads=4, max_seq_len=16),
    "llama": Llama(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=16),
}


def tokens(rows: int = 2, n: int = 12) -> torch.Tensor:
    return torch.randint(97, (rows, n), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_later_tokens_change_no_earlier_logits(name: str) -> None:
    module = MODELS[name].build(97, seed=0)
    whole = tokens()
    changed = whole.clone()
    changed[:, 7:] = 3
    one, other = module(whole), module(changed)
    assert torch.equal(one[:, :7], other[:, :7])
    assert not torch.equal(one[:, 7:], other[:, 7:])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("split", [(5, 1, 1, 3, 2), (1,) * 12, (12,)])
@torch.no_grad()
def test_a_cache_changes_no_logits(name: str, split: tuple[int, ...]) -> None:
    module = MODELS[name].build(97, seed=0)
    whole = tokens()
    cache = module.new_cache(2, 12)
    pieces = [module(piece, cache) for piece in whole.split(split, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), module(whole), atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_copied_cache_goes_its_own_way() -> None:
    module = MODELS["llama"].build(97, seed=0)
    whole = tokens()
    cache = module.new_cache(2, 12)
    module(whole[:, :6], cache)
    module(whole[:, 6:7] + 1, copy.deepcopy(cache))
    torch.testing.assert_close(module(whole[:, 6:], cache), module(whole)[:, 6:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_loss_sum_counts_valid_labels_only(name: str) -> None:
    module = MODELS[name].build(97, seed=0)
    whole = tokens(3, 13)
    inputs, labels = whole[:, :-1], whole[:, 1:]
    valid = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) < 0.5
    logits = module(inputs)
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    torch.testing.assert_close(module.loss_sum(inputs, labels, valid), each[valid].sum())
    assert module.loss_sum(inputs, labels, torch.zeros_like(valid)).item() == 0.0


def test_a_tied_head_is_stored_once() -> None:
    names = MODELS["gpt2"].build(97, seed=0).state_dict().keys()
    assert not any("head" in name for name in names)
    assert "head.weight" in MODELS["llama"].build(97, seed=0).state_dict()


def test_rotations_are_no_state() -> None:
    names = MODELS["llama"].build(97, seed=0).state_dict().keys()
    assert not any("cos" in name or "sin" in name for name in names)


@pytest.mark.parametrize("name", MODELS)
def test_a_context_beyond_the_positions_is_refused(name: str) -> None:
    module = MODELS[name].build(97, seed=0)
    with pytest.raises(SpecError, match="found 17 positions, wanted at most 16"):
        module(tokens(1, 17))
    with pytest.raises(SpecError, match="at most 16"):
        module.new_cache(1, 17)
    cache = module.new_cache(1, 4)
    module(tokens(1, 4), cache)
    with pytest.raises(SpecError, match="at most 4"):
        module(tokens(1, 1), cache)


@pytest.mark.parametrize("name", MODELS)
def test_json_and_back(name: str) -> None:
    assert from_json(to_json(MODELS[name])) == MODELS[name]


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (GPT2, {"n_layers": 1, "d_model": 30, "n_heads": 4, "max_seq_len": 8}, "GPT2.n_heads: found 4, wanted a"),
    (GPT2, {"n_layers": 0, "d_model": 32, "n_heads": 4, "max_seq_len": 8}, "n_layers: found 0, wanted at"),
    (GPT2, {"n_layers": 1, "d_model": 32, "n_heads": 0, "max_seq_len": 8}, "GPT2.n_heads: found 0"),
    (Llama, {"n_layers": 1, "d_model": 0, "n_heads": 4, "max_seq_len": 8}, "Llama.d_model: found 0"),
    (Llama, {"n_layers": 1, "d_model": 32, "n_heads": 4, "max_seq_len": 0}, "Decoder.max_seq_len: found 0"),
    (
        Llama,
        {"n_layers": 1, "d_model": 32, "n_heads": 4, "n_kv_heads": 3, "max_seq_len": 8},
        "Attention.n_kv_heads: found 3, wanted a divisor of n_heads 4",
    ),
    (
        Llama,
        {"n_layers": 1, "d_model": 12, "n_heads": 4, "max_seq_len": 8},
        "head_dim: found 3, wanted an even",
    ),
    (Llama, {"n_layers": 1, "d_model": 32, "n_heads": 4, "max_seq_len": 8, "d_ff": 0}, "d_ff: found 0"),
    (
        Llama,
        {"n_layers": 1, "d_model": 32, "n_heads": 4, "max_seq_len": 8, "rope_theta": 0.5},
        "Rope.theta: found 0.5",
    ),
    (LayerNorm, {"eps": 0.0, "bias": True}, "LayerNorm.eps: found 0.0"),
    (RMSNorm, {"eps": -1.0}, "RMSNorm.eps: found -1.0"),
    (
        Initial,
        {"matrix_std": 0.0, "residual_std": 1.0, "vocabulary_std": 1.0, "position_std": 1.0},
        "Initial.matrix_std: found 0.0",
    ),
    (
        Attention,
        {
            "n_heads": 0,
            "n_kv_heads": 0,
            "head_dim": 4,
            "qkv_bias": False,
            "out_bias": False,
            "rope": Rope(theta=1e4),
        },
        "Attention.n_heads: found 0",
    ),
]


@pytest.mark.parametrize(("make", "fields", "message"), BAD)
def test_what_cannot_be_built_is_refused_at_declaration(
    make: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        make(**fields)


@pytest.mark.parametrize(("make", "fields", "message"), BAD)
def test_faults_can_be_collected(make: Any, fields: dict[str, Any], message: str) -> None:
    with collecting() as faults:
        make(**fields)
    assert any(message.partition(":")[0] in str(fault) for fault in faults)


def test_the_nearest_number_of_heads_is_named() -> None:
    with pytest.raises(SpecError, match=r"The nearest is 3\."):
        GPT2(n_layers=1, d_model=30, n_heads=4, max_seq_len=8)


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="vocab_size"):
        MODELS["gpt2"].build(0, seed=0)
