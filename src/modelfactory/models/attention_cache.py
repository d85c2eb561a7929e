"""What attention keeps of the positions so far; all rows are of one length.

Shapes: B batch, T time (new positions), S positions kept, K key/value heads, Q head_dim.
"""

from __future__ import annotations

from typing import Protocol

import torch


class AttentionCache(Protocol):
    """Keys and values, already rotated."""

    n_tokens: int
    """Positions so far."""

    def append(self, keys_BKTQ: torch.Tensor, values_BKTQ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take in new positions; return all keys and values they may see, in order, themselves last.

        A single new position may get the others in any order: it sees them all.
        """


class FullCache:
    """Keys and values of all positions."""

    def __init__(self, keys_BKSQ: torch.Tensor, values_BKSQ: torch.Tensor) -> None:
        self.keys_BKSQ = keys_BKSQ
        self.values_BKSQ = values_BKSQ
        self.n_tokens = 0

    def append(self, keys_BKTQ: torch.Tensor, values_BKTQ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of all positions, the new ones last."""
        end = self.n_tokens + keys_BKTQ.shape[2]
        self.keys_BKSQ[:, :, self.n_tokens : end] = keys_BKTQ
        self.values_BKSQ[:, :, self.n_tokens : end] = values_BKTQ
        self.n_tokens = end
        return self.keys_BKSQ[:, :, :end], self.values_BKSQ[:, :, :end]


class WindowCache:
    """A ring: position n lies in slot n % window, so that a step of one token moves nothing."""

    def __init__(self, keys_BKSQ: torch.Tensor, values_BKSQ: torch.Tensor) -> None:
        self.keys_BKSQ = keys_BKSQ
        self.values_BKSQ = values_BKSQ
        self.window = keys_BKSQ.shape[2]
        self.n_tokens = 0

    def append(self, keys_BKTQ: torch.Tensor, values_BKTQ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of up to window - 1 earlier positions and of the new ones."""
        before, T = self.n_tokens, keys_BKTQ.shape[2]
        self.n_tokens = before + T
        if T == 1:
            self._keep(keys_BKTQ, values_BKTQ)
            held = min(self.n_tokens, self.window)
            return self.keys_BKSQ[:, :, :held], self.values_BKSQ[:, :, :held]
        earlier = self._slots(max(before - self.window + 1, 0), before)
        seen = (
            torch.cat((self.keys_BKSQ[:, :, earlier], keys_BKTQ.to(self.keys_BKSQ.dtype)), dim=2),
            torch.cat((self.values_BKSQ[:, :, earlier], values_BKTQ.to(self.keys_BKSQ.dtype)), dim=2),
        )
        self._keep(keys_BKTQ, values_BKTQ)
        return seen

    def _keep(self, keys_BKTQ: torch.Tensor, values_BKTQ: torch.Tensor) -> None:
        n_kept = min(keys_BKTQ.shape[2], self.window)
        slots = self._slots(self.n_tokens - n_kept, self.n_tokens)
        self.keys_BKSQ[:, :, slots] = keys_BKTQ[:, :, -n_kept:].to(self.keys_BKSQ.dtype)
        self.values_BKSQ[:, :, slots] = values_BKTQ[:, :, -n_kept:].to(self.keys_BKSQ.dtype)

    def _slots(self, start: int, end: int) -> torch.Tensor:
        return torch.arange(start, end, device=self.keys_BKSQ.device) % self.window
