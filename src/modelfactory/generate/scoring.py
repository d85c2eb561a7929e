"""Log-likelihoods of windows, in batches. Shapes: B rows, T positions, V vocabulary, N scored tokens.

Windows are sorted by length and padded on the right: under causal attention nothing before the padding
sees it, so a score depends on its batch by the order of floating-point sums alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from modelfactory.generate.quiet import quiet, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modelfactory.generate.quiet import Read
    from modelfactory.generate.windows import Window

MAX_LOGITS = 2**25
"""Logits held at once of a module that gives logits alone, 128 MiB in float32: with a large vocabulary these,
not the layers, fill the memory."""
PIECE = 512
"""Positions whose logits are held at once of a module that gives states."""


class WindowScore(NamedTuple):
    """Of the targets of one window."""

    logprob: float
    is_greedy: bool


def score_windows(
    module: Any,
    windows: Sequence[Window],
    *,
    batch_tokens: int,
    on_batch: Callable[[int], None],
) -> list[WindowScore]:
    """Return the score of each window, in their order.

    Args:
        module: of the protocol of `models`.
        windows: in any order.
        batch_tokens: positions passed at once, at most, unless one window alone has more.
        on_batch: called with the number of windows done after each batch; may raise to stop.
    """
    scores: list[WindowScore | None] = [None] * len(windows)
    for numbers in batches([len(window.inputs) for window in windows], batch_tokens):
        batch = [windows[number] for number in numbers]
        for number, score in zip(numbers, _score_batch(module, batch), strict=True):
            scores[number] = score
        on_batch(len(numbers))
    return [score for score in scores if score is not None]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield numbers of requests, longest first, so that rows x longest stays within `budget`."""
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    start = 0
    while start < len(order):
        n_rows = max(1, budget // lengths[order[start]])
        yield order[start : start + n_rows]
        start += n_rows


def _score_batch(module: Any, batch: Sequence[Window]) -> list[WindowScore]:
    device = next(iter(module.parameters())).device
    with quiet(module):
        found = read(module, padded([window.inputs for window in batch]).to(device))
        return scores_of(found, [window.first_scored for window in batch], batch)


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return token rows as one tensor (B, T), filled on the right with token 0."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows], dtype=torch.long)


def scored_positions(firsts: Sequence[int], batch: Sequence[Window]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and position of each logit that predicts a target, given each row's first position."""
    counts = torch.tensor([len(window.targets) for window in batch])
    rows = torch.arange(len(batch)).repeat_interleave(counts)
    positions = [
        torch.arange(first, first + len(window.targets)) for first, window in zip(firsts, batch, strict=True)
    ]
    return rows, torch.cat(positions)


def scores_of(found: Read, firsts: Sequence[int], batch: Sequence[Window]) -> list[WindowScore]:
    """Sum the log-probabilities of the targets by window, in double precision.

    Args:
        found: what the module made of the rows.
        firsts: of each row, the position whose next token is the first to count.
        batch: one window for each row; its targets may be none.
    """
    device = found.states.device
    rows, positions = scored_positions(firsts, batch)
    states_NS = found.states[rows.to(device), positions.to(device)]
    targets_N = torch.tensor([t for window in batch for t in window.targets], device=device, dtype=torch.long)
    logprobs_N, is_best_N = _judged(states_NS, targets_N, found.to_logits)
    counts = [len(window.targets) for window in batch]
    by_window = zip(torch.split(logprobs_N, counts), torch.split(is_best_N, counts), strict=True)
    return [WindowScore(float(logprobs.sum()), bool(is_best.all())) for logprobs, is_best in by_window]


def _judged(
    states_NS: torch.Tensor, targets_N: torch.Tensor, to_logits: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability (nats, float64) of each target, and whether it is the likeliest; on the CPU."""
    logprobs, is_best = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.bool)]
    for states_MS, targets_M in zip(
        torch.split(states_NS, PIECE), torch.split(targets_N, PIECE), strict=True
    ):
        logits_MV = to_logits(states_MS).float()
        logits_M = logits_MV.gather(-1, targets_M.unsqueeze(-1)).squeeze(-1)
        logprobs.append((logits_M.double() - logits_MV.logsumexp(dim=-1).double()).cpu())
        is_best.append((logits_MV.argmax(dim=-1) == targets_M).cpu())
    return torch.cat(logprobs), torch.cat(is_best)
