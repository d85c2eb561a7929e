"""Attention in blocks of queries against the whole formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modelfactory.models import query_block_sizes, query_blocks
from modelfactory.models.packing import packing_of
from modelfactory.models.query_blocks import by_query_blocks, fits_query_blocks
from modelfactory.models.scoring import Scoring, seen
from modelfactory.models.softmax_attention import attend, by_formula

SCORINGS = {
    "plain": Scoring(),
    "scaled": Scoring(scale=0.3),
    "window": Scoring(window=50),
    "capped": Scoring(softcap=1.5),
    "all": Scoring(scale=0.2, softcap=2.0, window=130),
}


def material(T: int, kind: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, T, 8), (2, 2, T, 8), (2, 2, T, 6))
    return [torch.randn(shape, generator=generator).to(kind).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("T", [64, 128, 300, 600])
@pytest.mark.parametrize("name", SCORINGS)
def test_blocks_are_the_whole(name: str, T: int, packed: bool) -> None:
    q, k, v = material(T)
    documents = (torch.arange(T) // 70).expand(2, T)
    packing = packing_of(documents) if packed else None
    scoring = SCORINGS[name]
    found = by_query_blocks(q, k, v, scoring, packing, by_formula)
    mask = seen(T, T, scoring.window, packing, q.device)
    wanted = by_formula(q, k, v, mask, scoring)
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (found, wanted))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_only_inside_the_compiler_on_a_cpu_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = material(128, torch.bfloat16)
    assert not fits_query_blocks(q, k), "not compiling"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fits_query_blocks(q, k)
    assert not fits_query_blocks(q.float(), k.float())
    assert not fits_query_blocks(q[:, :, -1:], k), "one token after a cache"
    assert not fits_query_blocks(q[:, :, :32], k[:, :, :32]), "short"
    monkeypatch.setattr(query_block_sizes, "_MOST_WEIGHTS", 1)
    assert not fits_query_blocks(q, k), "more weights than memory is given for"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_call_takes_the_blocks_and_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    whole = query_blocks.by_query_blocks

    def noted(*parts: Any) -> torch.Tensor:
        taken.append(1)
        return whole(*parts)

    monkeypatch.setattr("modelfactory.models.softmax_attention.by_query_blocks", noted)
    q, k, v = material(128, torch.bfloat16)
    v = v.detach()[..., :6].requires_grad_()
    compiled = torch.compile(attend, dynamic=False, backend="eager")
    found = compiled(q, k, v, Scoring())
    assert taken == [1]
    wanted = by_formula(q.double(), k.double(), v.double(), seen(128, 128, None, None, q.device), Scoring())
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.02)
