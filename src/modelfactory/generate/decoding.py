"""Generation with a key/value cache for prompts of unequal length.

All rows of a batch are at the same position at every step: the prompts are read at once up to the length of
the shortest; from there on a row is fed its own prompt until that ends, then what it generates. So there is
no padding, and no row sees another position than it would alone. Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modelfactory.generate.choosing import choose, penalised
from modelfactory.generate.quiet import quiet, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.generate.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits, in tokens."""

    ids: tuple[int, ...]
    """Starts with what comes first whatever is forgotten, so it is never empty."""
    n_cut: int
    """Tokens left out."""


def fitted(ids: Sequence[int], *, prefix_id: int, max_len: int, max_new_tokens: int) -> Prompt:
    """Cut a prompt on its left so that it and its completion fit, but to no less than half the context.

    Args:
        ids: without what starts it.
        prefix_id: starts it, and is never cut.
        max_len: context of the model.
        max_new_tokens: of the completion.
    """
    room = room_for_prompt(max_len, max_new_tokens) - 1
    n_cut = max(0, len(ids) - room)
    return Prompt((prefix_id, *ids[n_cut:]), n_cut)


def room_for_prompt(max_len: int, max_new_tokens: int) -> int:
    """Return the tokens that a prompt may have, what starts it included."""
    return max(max_len - max_new_tokens, max_len // 2, 1)


class Decoding:
    """A batch of prompts being continued. Iterate for one mapping row -> new token at each step, forever."""

    def __init__(
        self, module: Any, prompts: Sequence[Prompt], sampling: Sampling, *, max_len: int, products: Any
    ) -> None:
        self._module = module
        self._sampling = sampling
        self._max_len = max_len
        self._products = products
        self._n_prompt = [len(prompt.ids) for prompt in prompts]
        self._lines = [list(prompt.ids) for prompt in prompts]
        self._device = next(iter(module.parameters())).device
        self.n_moves = 0
        """How often the context was full."""

    def steps(self, uniform_BN: torch.Tensor | None) -> Iterator[dict[int, int]]:
        """Yield new tokens; rows that are still in their prompt have none.

        Args:
            uniform_BN: the draws of each row, or None for greedy.
        """
        n_known = min(self._n_prompt)
        self._restart([line[:n_known] for line in self._lines])
        while True:
            new = self._grow(n_known, uniform_BN)
            yield new
            self._feed(n_known)
            n_known += 1

    def _restart(self, windows: list[list[int]]) -> None:
        """Read equally long windows into a fresh cache."""
        longest = max(self._n_prompt) + self._sampling.max_new_tokens
        with quiet(self._module):
            self._cache = self._module.new_cache(len(windows), min(self._max_len, longest))
        self._n_read = len(windows[0])
        self._read(windows)

    def _read(self, tokens: list[list[int]]) -> None:
        with quiet(self._module), self._products:
            tokens_BT = torch.tensor(tokens, dtype=torch.long, device=self._device)
            found = read(self._module, tokens_BT, self._cache)
            self._logits_BV = found.to_logits(found.states[:, -1]).float()

    def _grow(self, n_known: int, uniform_BN: torch.Tensor | None) -> dict[int, int]:
        """Append a token to each line that has no more than `n_known`."""
        rows = [row for row, line in enumerate(self._lines) if len(line) == n_known]
        uniform_R = None
        if uniform_BN is not None:
            drawn = [min(n_known - self._n_prompt[row], uniform_BN.shape[1] - 1) for row in rows]
            uniform_R = uniform_BN[rows, drawn]
        said = [self._lines[row][1:] for row in rows]
        logits_RV = penalised(self._logits_BV[rows].cpu(), self._sampling.repetition_penalty, said)
        picked = choose(logits_RV, self._sampling, uniform_R).tolist()
        for row, token in zip(rows, picked, strict=True):
            self._lines[row].append(token)
        return dict(zip(rows, picked, strict=True))

    def _feed(self, n_known: int) -> None:
        """Read the token at position `n_known` of every line, moving the window when it is full."""
        if self._n_read < self._max_len:
            self._n_read += 1
            self._read([[line[n_known]] for line in self._lines])
            return
        n_kept = max(self._max_len // 2, 1) - 1
        self.n_moves += 1
        self._restart([[line[0], *line[n_known + 1 - n_kept : n_known + 1]] for line in self._lines])
