"""The chunked loss against torch's, value and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from modelfactory.models import cross_entropy, loss_chunks
from modelfactory.models.cross_entropy import UNCOUNTED, cross_entropy_sum, scaled

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "capped": {"softcap": 2.0},
    "both": {"scale": 1.7, "softcap": 1.5},
}


def material(n: int = 37, kind: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 16, generator=generator, dtype=kind).requires_grad_()
    head = torch.randn(53, 16, generator=generator, dtype=kind).requires_grad_()
    labels = torch.randint(53, (n,), generator=generator)
    labels[::5] = UNCOUNTED
    return x, head, labels


def plain(x: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    logits = scaled(functional.linear(x, head), **({"scale": 1.0, "softcap": None} | options))
    return functional.cross_entropy(logits, labels, ignore_index=UNCOUNTED, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 4, 1_024])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_torch(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_chunks, "rows_per_chunk", lambda _: chunk)
    x, head, labels = material()
    wanted = plain(x, head, labels, **CASES[name])
    found = cross_entropy_sum(x, head, labels, **CASES[name])
    torch.testing.assert_close(found, wanted)
    gradients = torch.autograd.grad(3 * found, (x, head)), torch.autograd.grad(3 * wanted, (x, head))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy_sum(x, head, labels, **CASES[name]), wanted)


def test_nothing_counted_is_0_with_no_gradient() -> None:
    x, head, labels = material()
    found = cross_entropy_sum(x, head, torch.full_like(labels, UNCOUNTED))
    assert found.item() == 0
    assert all(g.abs().max() == 0 for g in torch.autograd.grad(found, (x, head)))


def test_no_piece_holds_the_logits_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_chunks, "rows_per_chunk", lambda _: 10)
    kept: list[int] = []
    x, head, labels = material()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    sizes = [len(part) for part, _ in cross_entropy._chunks(x, labels, head)]
    assert max(sizes) <= 10
    assert sum(sizes) == 37
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cross_entropy_sum(x, head, labels)
    assert max(kept) < 37 * 53


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    x, head, labels = material(kind=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cross_entropy_sum(x, head, labels)
        (grad,) = torch.autograd.grad(found, head, retain_graph=True)
    assert found.dtype == torch.float32 == grad.dtype
    wanted = plain(x.bfloat16(), head.bfloat16(), labels)
    torch.testing.assert_close(found, wanted.float(), rtol=0.02, atol=0.0)
    assert found.item() != plain(x, head, labels).item(), "products in float32 would be equal"
    (true,) = torch.autograd.grad(plain(x, head, labels), head)
    assert (grad - true).norm() / true.norm() < 0.02


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_compiled_is_the_same() -> None:
    x, head, labels = material(kind=torch.float32)
    compiled = torch.compile(cross_entropy_sum, dynamic=False, fullgraph=True)
    torch.testing.assert_close(compiled(x, head, labels), cross_entropy_sum(x, head, labels))
    for ours, theirs in zip(
        torch.autograd.grad(compiled(x, head, labels), (x, head)),
        torch.autograd.grad(cross_entropy_sum(x, head, labels), (x, head)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
