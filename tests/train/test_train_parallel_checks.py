"""Sizes that do not divide are refused before any process starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import CommandError, SpecError
from modelfactory.models import CapacityFactor, Llama, Mamba2, MultiToken, QKNorm, RMSNorm
from modelfactory.stage import Parallel, Site
from modelfactory.train import Muon
from modelfactory.train.batches import BatchStage
from modelfactory.train.parallel import check_parallel
from modelfactory.train.stage import run
from tests.train.material import LLAMA, spec
from tests.train.own_layers import Paired, Plain
from tests.train.test_train_parallel import MODELS

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = LLAMA.blocks[0]
MAMBA = Mamba2(
    n_heads=4, head_dim=16, state_dim=8, n_groups=1, conv_width=4, conv_bias=True, bias=False, norm_eps=1e-5
)
NORMED = replace(BLOCK.mixer, qk_norm=QKNorm(norm=RMSNorm(eps=1e-5), over="width"))
ODD_FF = replace(BLOCK, feed_forward=replace(BLOCK.feed_forward, d_ff=45))
BOUNDED = replace(
    MODELS["experts"].blocks[1].feed_forward,
    capacity=CapacityFactor(factor=1.5),
)
MUON = Muon(lr=0.02, adamw_lr=1e-3, weight_decay=0.0)


def with_block(**changes: Any) -> Any:
    return replace(LLAMA, blocks=(replace(BLOCK, **changes),))


@pytest.mark.parametrize(
    ("parallel", "changes", "match"),
    [
        ("data=3", {}, "3, which does not divide the 4 rows of a batch"),
        ("data=2,shard=2,expert=2", {"model": MODELS["experts"]}, "8, which does not divide the 4 rows"),
        (
            "shard=4",
            {"batch_warmup": (BatchStage(n_steps=1, batch_tokens=64),)},
            "4, which does not divide the 2 rows",
        ),
        ("tensor=4", {}, r"Parallel.tensor: found 4, which does not divide blocks\[0\].mixer.n_kv_heads 2"),
        ("tensor=3", {}, r"3, which does not divide blocks\[0\].mixer.n_heads 4"),
        ("tensor=2", {"model": replace(LLAMA, blocks=(ODD_FF,))}, r"feed_forward.d_ff 45"),
        ("tensor=2", {"model": with_block(mixer=NORMED)}, "a norm over all heads"),
        ("tensor=2", {"model": with_block(mixer=MAMBA)}, r"blocks\[0\].mixer: found Mamba2"),
        ("tensor=2", {"model": MODELS["experts"]}, r"blocks\[1\].feed_forward: found Experts"),
        ("context=3", {}, "6, which does not divide the 32 positions of a row"),
        ("context=2", {"model": with_block(mixer=MAMBA)}, "found Mamba2, wanted softmax attention"),
        ("context=2", {"model": MODELS["experts"]}, "found Experts"),
        (
            "context=2",
            {"model": replace(LLAMA, multi_token=MultiToken(n_extra=1, weight=0.3, block=BLOCK))},
            "further tokens",
        ),
        ("expert=2", {}, "2 for a model without experts"),
        ("expert=3", {"model": MODELS["experts"], "batch_tokens": 96}, "3, which does not divide"),
        ("expert=2", {"model": with_block(feed_forward=BOUNDED)}, "a bound on what an expert takes"),
        ("shard=2", {"optimizer": MUON}, "shard=2 with Muon, wanted AdamW"),
    ],
)
def test_what_does_not_divide_is_refused(parallel: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        check_parallel(spec(**changes), Parallel.parse(parallel))


@pytest.mark.parametrize(
    ("parallel", "changes"),
    [
        ("", {"optimizer": MUON}),
        ("data=2", {"optimizer": MUON}),
        ("data=2,context=2", {"optimizer": MUON}),
        ("data=2,shard=2,tensor=2,context=2", {}),
        ("expert=4", {"model": MODELS["experts"]}),
        ("shard=2", {"model": with_block(mixer=MAMBA)}),
    ],
)
def test_what_divides_is_taken(parallel: str, changes: dict[str, Any]) -> None:
    check_parallel(spec(**changes), Parallel.parse(parallel))


def test_a_text_says_the_sizes() -> None:
    sizes = Parallel.parse("shard=2,tensor=4")
    assert sizes == Parallel(shard=2, tensor=4)
    assert sizes.world_size == 8
    assert Parallel.parse(str(sizes)) == sizes
    assert Parallel.parse("") == Parallel()


@pytest.mark.parametrize("text", ["fsdp=2", "shard", "shard=two", "shard=0", "shard=2,shard=2"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"--parallel: found .*, wanted NAME=SIZE"):
        Parallel.parse(text)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(SpecError, match=r"Parallel\.data: found 0"):
        Parallel(data=0)


@pytest.mark.parametrize(
    ("parallel", "own", "match"),
    [
        (
            "tensor=2",
            {"feed_forward": Plain()},
            r"blocks\[0\].feed_forward: found Plain, .* `tensor_pair\(\)`",
        ),
        ("context=2", {"mixer": Plain()}, r"blocks\[0\].mixer: found Plain, .* `attend`"),
        (
            "tensor=4",
            {"feed_forward": Paired(d_ff=6)},
            r"4, which does not divide the 6 rows of blocks\[0\].feed_forward's up",
        ),
    ],
)
def test_layers_of_ones_own_are_looked_at_before_any_process_starts(
    parallel: str, own: dict[str, Any], match: str
) -> None:
    wide = replace(BLOCK, mixer=replace(BLOCK.mixer, n_kv_heads=4))
    model = replace(LLAMA, blocks=(replace(wide, **own),))
    with pytest.raises(SpecError, match=match):
        check_parallel(spec(model=model), Parallel.parse(parallel))


def test_a_layer_of_ones_own_that_can_be_divided_is_taken() -> None:
    check_parallel(spec(model=with_block(feed_forward=Paired(d_ff=6))), Parallel(tensor=2))


@pytest.mark.parametrize(
    ("parallel", "model", "works"),
    [
        ("tensor=2", with_block(mixer=MAMBA), ("data", "shard")),
        ("context=2", MODELS["experts"], ("data", "shard", "expert")),
        ("tensor=2", MODELS["experts"], ("data", "shard", "expert")),
        ("tensor=4", LLAMA, ("data", "shard", "tensor", "context")),
    ],
)
def test_remedies_name_what_is_taken(parallel: str, model: Any, works: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        check_parallel(spec(model=model), Parallel.parse(parallel))
    assert caught.value.remedy.endswith(f"This run can have {' or '.join(f'{name}=2' for name in works)}.")
    for name in works:
        check_parallel(spec(model=model), Parallel(**{name: 2}))


def test_an_unknown_architecture_may_be_copied() -> None:
    check_parallel(spec(model=Llama(n_layers=1, d_model=8, n_heads=1, max_seq_len=32)), Parallel(data=4))


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    site = Site(lake=tmp_path, threads=1, device="cuda", parallel=Parallel(data=2))
    with pytest.raises(SpecError, match=r"found 1 GPUs that torch .* can use, wanted 2"):
        run(spec(), {}, tmp_path, site)
