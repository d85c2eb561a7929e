"""Logits to token ids, without any global random state. Shapes: B rows, V vocabulary, N tokens to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.generate.sampling import Sampling


def draws(sampling: Sampling, numbers: Sequence[int]) -> torch.Tensor | None:
    """Return the uniform numbers of every prompt and new token (B, N), or None where none are needed.

    Each prompt has a generator of its own, so a draw depends neither on the batch nor on other prompts.
    """
    if sampling.temperature == 0:
        return None
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(sampling.draw_seed(number))
        rows.append(torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def penalised(logits_BV: torch.Tensor, penalty: float, lines: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return logits with tokens that a row's line holds made less likely; see `Sampling.repetition_penalty`.

    Args:
        logits_BV: stay as they are.
        penalty: above 0.
        lines: the tokens of each row that count.
    """
    if penalty == 1:
        return logits_BV
    found_BV = logits_BV.clone()
    for row, line in enumerate(lines):
        ids = torch.tensor(sorted(set(line)), dtype=torch.long, device=logits_BV.device)
        said = logits_BV[row, ids]
        found_BV[row, ids] = torch.where(said < 0, said * penalty, said / penalty)
    return found_BV


def choose(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor | None) -> torch.Tensor:
    """Return one token id for each row: the best one, or the inverse of the distribution at `uniform_B`.

    Tokens are kept as transformers does it: the temperature first, then top_k, top_p and min_p.
    """
    if uniform_B is None:
        return logits_BV.argmax(dim=-1)
    n_kept = min(sampling.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
    kept_BK, ids_BK = logits_BV.double().sort(dim=-1, descending=True, stable=True)
    share_BK = (kept_BK[:, :n_kept] / sampling.temperature).softmax(dim=-1)
    above_BK = share_BK.cumsum(dim=-1) - share_BK
    share_BK = share_BK * (above_BK < sampling.top_p)
    share_BK = share_BK * (share_BK >= sampling.min_p * share_BK[:, :1])
    total_BK = share_BK.cumsum(dim=-1)
    point_B1 = (uniform_B * total_BK[:, -1]).unsqueeze(-1)
    rank_B1 = torch.searchsorted(total_BK, point_B1, right=True)
    last_B1 = (share_BK > 0).sum(dim=-1, keepdim=True) - 1
    return ids_BK.gather(-1, rank_B1.minimum(last_B1)).squeeze(-1)
