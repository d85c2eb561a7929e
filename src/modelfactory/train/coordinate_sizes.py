"""How large the activations of a decoder are, before and after each of a few updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from modelfactory.models import Decoder
    from modelfactory.train.optimizers import Optimizer

KINDS = ("embedding", "mixer", "feed_forward", "stream", "logits")
"""Outputs of the embedding, of the mixers, of the feed-forwards; what enters the last norm; the logits."""

_ROWS, _SEQ_LEN = 8, 64
N_TOKENS = _ROWS * _SEQ_LEN
VOCAB_SIZE = 16
"""Of the random tokens. Rows of many different tokens have next to nothing in common: most logits then change
by what contexts share by chance, which falls with 1 / sqrt(width) and hides the slope. At 256 tokens and
widths of 64 to 512 a right parametrisation showed -0.4 in the logits, at 4 to 32 tokens -0.05 to 0.1."""


def activations(
    model: Decoder, optimizer: Optimizer, n_steps: int, seed: int
) -> Iterator[dict[str, tuple[float, float]]]:
    """Yield mean |x| and mean |x - x at first| by kind, over all layers, at first and after each step."""
    import torch

    module: Any = model.build(VOCAB_SIZE, seed)
    descent = optimizer.build(module)
    length = min(model.max_seq_len, _SEQ_LEN)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB_SIZE, (_ROWS, length + 1), generator=generator)
    valid = torch.ones(_ROWS, length, dtype=torch.bool)
    at_first = _watched(module, tokens[:, :-1])
    yield {kind: _sizes(x, x) for kind, x in at_first.items()}
    for _ in range(n_steps):
        (module.loss_sum(tokens[:, :-1], tokens[:, 1:], valid) / valid.sum()).backward()
        descent.step()
        descent.zero_grad(set_to_none=True)
        now = _watched(module, tokens[:, :-1])
        yield {kind: _sizes(now[kind], at_first[kind]) for kind in KINDS}


def _sizes(now: torch.Tensor, at_first: torch.Tensor) -> tuple[float, float]:
    return float(now.abs().mean()), float((now - at_first).abs().mean())


def _watched(module: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what the parts of a decoder give for `tokens`."""
    import torch

    seen: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}

    def note(kind: str) -> Any:
        return lambda _, taken, given=None: seen[kind].append(taken[0] if given is None else given)

    hooks = [
        module.embedding.register_forward_hook(note("embedding")),
        module.final_norm.register_forward_pre_hook(note("stream")),
    ]
    for block in module.blocks:
        hooks += [getattr(block, kind).register_forward_hook(note(kind)) for kind in KINDS[1:3]]
    with torch.no_grad():
        seen["logits"].append(module(tokens))
    for hook in hooks:
        hook.remove()
    return {kind: torch.stack(values) for kind, values in seen.items()}
