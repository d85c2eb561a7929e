from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Decoder, Experts, FeedForward, GatedFeedForward, Llama, MultiToken
from modelfactory.models.mup import at_width, mup
from modelfactory.models.mup_base import base_of
from tests.models.own_parts import Faulty

if TYPE_CHECKING:
    from collections.abc import Callable

LLAMA = Llama(n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, max_seq_len=16)
GPT = GPT2(n_layers=2, d_model=64, n_heads=4, max_seq_len=16)


@pytest.mark.parametrize("base", [LLAMA, GPT])
def test_at_the_bases_own_width_nothing_changes(base: Decoder) -> None:
    assert mup(base, base=base) == base
    assert at_width(base, 64) == base


@pytest.mark.parametrize("base", [LLAMA, GPT])
def test_it_is_table_8(base: Decoder) -> None:
    wide = mup(at_width(base, 256), base=base)
    assert wide.initial.matrix_std == pytest.approx(base.initial.matrix_std / 2)
    assert wide.initial.residual_std == pytest.approx(base.initial.residual_std / 2)
    assert wide.initial.vocabulary_std == base.initial.vocabulary_std
    assert wide.initial.position_std == base.initial.position_std
    assert (wide.logit_scale, wide.hidden_lr_scale, wide.embedding_scale) == (0.25, 0.25, 1.0)


def test_widening_in_two_steps_is_widening_once() -> None:
    half = mup(at_width(LLAMA, 128), base=LLAMA)
    assert mup(at_width(half, 512), base=half) == mup(at_width(LLAMA, 512), base=LLAMA)


def test_a_family_at_another_width_is_taken_as_it_is() -> None:
    """Its own initialisation, which follows from its width, is replaced."""
    wide = Llama(n_layers=2, d_model=1024, n_heads=64, n_kv_heads=32, max_seq_len=16, d_ff=3072)
    assert wide.initial.vocabulary_std != LLAMA.initial.vocabulary_std
    assert mup(wide, base=LLAMA) == mup(at_width(LLAMA, 1024), base=LLAMA)


def test_scores_are_divided_by_head_dim_where_heads_grow() -> None:
    wide = GPT2(n_layers=2, d_model=256, n_heads=4, max_seq_len=16)
    scale = attention(mup(wide, base=GPT)).scale
    assert scale == pytest.approx(16**-0.5 * 16 / 64)
    again = GPT2(n_layers=2, d_model=1024, n_heads=4, max_seq_len=16)
    assert attention(mup(again, base=mup(wide, base=GPT))).scale == pytest.approx(scale / 4)
    assert attention(mup(at_width(GPT, 256), base=GPT)).scale == "1/sqrt(head_dim)"


def attention(model: Decoder) -> Any:
    return model.blocks[0].mixer


def test_another_width_has_the_same_heads_and_proportions() -> None:
    wide = at_width(LLAMA, 96)
    assert wide == replace(
        LLAMA,
        d_model=96,
        blocks=(
            replace(
                LLAMA.blocks[0],
                mixer=replace(attention(LLAMA), n_heads=6, n_kv_heads=3),
                feed_forward=replace(LLAMA.blocks[0].feed_forward, d_ff=288),
            ),
        ),
    )
    one = Llama(n_layers=1, d_model=64, n_heads=4, n_kv_heads=1, max_seq_len=16)
    assert attention(at_width(one, 128)).n_kv_heads == 1


def further(base: Decoder, **changes: Any) -> Decoder:
    """Return the model with further tokens, whose block has a feed-forward of its own."""
    block = replace(base.blocks[0], feed_forward=FeedForward(d_ff=96, activation="gelu", bias=True))
    return replace(base, multi_token=replace(MultiToken(n_extra=2, weight=0.3, block=block), **changes))


def test_what_predicts_further_tokens_widens_as_the_blocks_do() -> None:
    base = further(LLAMA)
    assert at_width(base, 64) == base == mup(base, base=base)
    wide = mup(at_width(base, 256), base=base)
    assert base_of(wide) == base
    block: Any = wide.multi_token.block  # type: ignore[union-attr]
    assert (block.mixer.n_heads, block.mixer.n_kv_heads, block.feed_forward.d_ff) == (16, 8, 384)
    module: Any = wide.build(31, seed=0)
    names = {name for name in module.lr_scales() if name.startswith("multi_token.")}
    within = (
        "projection",
        "block.mixer.qkv",
        "block.mixer.out",
        "block.feed_forward.up",
        "block.feed_forward.down",
    )
    assert names == {f"multi_token.depths.{n}.{name}.weight" for n in (0, 1) for name in within}
    projection = module.multi_token.depths[0].projection.weight
    assert projection.std().item() == pytest.approx(base.initial.matrix_std / 2, rel=0.02)


def test_scores_of_further_tokens_are_divided_by_head_dim_where_heads_grow() -> None:
    plain = [GPT2(n_layers=2, d_model=d_model, n_heads=4, max_seq_len=16) for d_model in (64, 256)]
    base, wide = (further(each, block=each.blocks[0]) for each in plain)
    block: Any = mup(wide, base=base).multi_token.block  # type: ignore[union-attr]
    assert block.mixer.scale == pytest.approx(16**-0.5 * 16 / 64)


@pytest.mark.parametrize("other", [LLAMA, further(LLAMA, n_extra=1), further(LLAMA, weight=0.1)])
def test_other_further_tokens_than_the_base_has_are_refused(other: Decoder) -> None:
    with pytest.raises(
        SpecError, match=r"mup: multi_token: found .*, wanted the base's, n_extra=2, weight=0.3"
    ):
        mup(other, base=further(LLAMA))


def test_further_tokens_by_a_layer_without_a_rule_are_refused() -> None:
    experts = Experts(
        n_experts=4,
        n_active=2,
        expert=GatedFeedForward(d_ff=24, activation="silu", bias=False),
        shared=None,
        score="softmax",
        renormalised=True,
        balance=None,
    )
    model = further(LLAMA, block=replace(LLAMA.blocks[0], feed_forward=experts))
    for resize in (lambda: at_width(model, 128), lambda: mup(model, base=model)):
        with pytest.raises(SpecError, match=r"Block.feed_forward: found Experts, wanted FeedForward"):
            resize()


def test_the_module_offers_the_scales_of_hidden_matrices() -> None:
    module = mup(at_width(LLAMA, 128), base=LLAMA).build(31, seed=0)
    scales = module.lr_scales()
    assert set(scales.values()) == {0.5}
    assert scales.keys() == module.hidden_matrices()
    assert LLAMA.build(31, seed=0).lr_scales() == {}


def other(**changes: Any) -> Callable[[], Decoder]:
    fields: Any = {"n_layers": 2, "d_model": 128, "n_heads": 8, "n_kv_heads": 4, "max_seq_len": 16}
    return lambda: mup(Llama(**(fields | changes)), base=LLAMA)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other(n_layers=3), "mup: n_layers: found 3, wanted the base's, 2. Only widths may differ"),
        (other(tied=True), "mup: tied: found True"),
        (other(d_ff=192), "mup: d_ff: found '192 where the base has 192', wanted about 2 times as much"),
        (lambda: mup(GPT, base=LLAMA), "mup: learned_positions: found True"),
        (
            lambda: at_width(LLAMA, 16),
            r"Attention.n_kv_heads: found 2 at this width, so 0.5 at 0.25 times it",
        ),
        (lambda: at_width(LLAMA, 72), r"Attention.n_heads: found 4 at this width, so 4.5 at 1.125 times it"),
        (lambda: at_width(LLAMA, 0), "d_model: found 0"),
        (lambda: replace(LLAMA, hidden_lr_scale=0.0), "Decoder.hidden_lr_scale: found 0.0"),
    ],
)
def test_what_cannot_be_transferred_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_layers_without_rules_are_refused() -> None:
    block = replace(LLAMA.blocks[0], mixer=Faulty())
    strange = replace(LLAMA, blocks=(block,))
    with pytest.raises(SpecError, match=r"Block.mixer: found Faulty, wanted Attention"):
        mup(strange, base=strange)
