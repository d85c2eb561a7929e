"""What each rank of a context group computes, put together, is what one process computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models.packing import packing_of
from modelfactory.models.scoring import Scoring
from modelfactory.models.softmax_attention import attend
from modelfactory.train import context
from modelfactory.train.tensor import divide, row_order

if TYPE_CHECKING:
    from modelfactory.models import LossSums, Packing

B, H, K, T, Q = 2, 4, 2, 24, 8
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 12 + [2] * 7, [0] * 24])


def test_all_ranks_see_equally_many_keys() -> None:
    for size in (1, 2, 3):
        held = [context.columns(T, rank, size, torch.device("cpu")) for rank in range(size)]
        assert sorted(torch.cat(held).tolist()) == list(range(T))
        assert len({int(columns.sum()) for columns in held}) == 1


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scoring", [Scoring(), Scoring(window=5), Scoring(softcap=2.0, window=7, scale=0.2)])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
def test_pieces_of_attention_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, size: int, scoring: Scoring, documents: torch.Tensor | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, heads, T, Q, generator=generator) for heads in (H, K, K))
    packing = None if documents is None else packing_of(documents)
    whole = attend(q, k, v, scoring, packing)
    held = [context.columns(T, rank, size, torch.device("cpu")) for rank in range(size)]
    both = torch.cat((k, v), dim=-1)
    by_rank = torch.cat([both[:, :, columns] for columns in held], dim=2)
    monkeypatch.setattr(context, "all_gather_single_autograd", lambda x, dim, group: by_rank)
    for rank, own in enumerate(held):
        group: Any = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: size)
        seen: list[Packing | None] = []

        def sums(tokens: Any, labels: Any, valid: Any, packing: Any, seen: Any = seen) -> LossSums:
            seen.append(packing)
            return None  # type: ignore[return-value]

        rows = torch.zeros(B, T, dtype=torch.int64)
        context.OwnColumns(sums, rank, size)(rows, rows, rows, documents)
        here = context.WholeRow(group)(q[:, :, own], k[:, :, own], v[:, :, own], scoring, seen[0])
        torch.testing.assert_close(here, whole[:, :, own], atol=1e-6, rtol=1e-5)


def test_rows_of_matrices_side_by_side_go_to_ranks_from_each() -> None:
    assert row_order((4, 2, 2), 2).tolist() == [0, 1, 4, 6, 2, 3, 5, 7]
    assert row_order((4,), 4).tolist() == [0, 1, 2, 3]


def test_a_module_without_blocks_is_not_left_whole_silently() -> None:
    module, nobody = torch.nn.Linear(2, 2), SimpleNamespace(size=lambda: 2)
    with pytest.raises(SpecError, match=r"Parallel\.tensor: found Linear, a module without blocks"):
        divide(module, nobody)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"Parallel\.context: found Linear, a module without blocks"):
        context.gather_keys(module, nobody)  # type: ignore[arg-type]
