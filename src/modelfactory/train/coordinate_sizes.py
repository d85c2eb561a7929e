"""How large the activations of a decoder are, before and after each of a few updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from modelfactory.models import Decoder
    from modelfactory.train.optimizers import Optimizer

KINDS = ("embedding", "mixer", "feed_forward", "stream", "logits")
"""Outputs of the embedding, of the mixers, of the feed-forwards; what enters the last norm; the logits. Each
depth that predicts further tokens has a block, a last norm and logits too."""

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
    batch = (tokens[:, :-1], tokens[:, 1:], torch.ones(_ROWS, length, dtype=torch.bool))
    at_first = _watched(module, batch)
    yield {kind: _sizes(x, x) for kind, x in at_first.items()}
    for _ in range(n_steps):
        sums = module.training_sums(*batch)
        ((sums.loss + sums.extra) / batch[-1].sum()).backward()
        descent.step()
        descent.zero_grad(set_to_none=True)
        now = _watched(module, batch)
        yield {kind: _sizes(now[kind], at_first[kind]) for kind in KINDS}


def _sizes(now: torch.Tensor, at_first: torch.Tensor) -> tuple[float, float]:
    return float(now.abs().mean()), float((now - at_first).abs().mean())


def _watched(module: Any, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Return what the parts of a decoder give in a training pass, all numbers of a kind in a row."""
    import torch
    from torch.nn import functional

    from modelfactory.models.cross_entropy import scaled

    seen: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}

    def note(kind: str) -> Any:
        return lambda *taken: seen[kind].append(taken[-1])

    def note_ends(_: Any, taken: Any, given: torch.Tensor) -> None:
        seen["stream"].append(taken[0])
        seen["logits"].append(scaled(functional.linear(given, module.head_VD), **module.logits))

    depths = [] if module.multi_token is None else list(module.multi_token.depths)
    hooks = [module.embedding.register_forward_hook(note("embedding"))]
    hooks += [each.final_norm.register_forward_hook(note_ends) for each in (module, *depths)]
    for block in (*module.blocks, *(depth.block for depth in depths)):
        hooks += [getattr(block, kind).register_forward_hook(note(kind)) for kind in KINDS[1:3]]
    with torch.no_grad():
        module.training_sums(*batch)
    for hook in hooks:
        hook.remove()
    return {kind: torch.cat([value.flatten() for value in values]) for kind, values in seen.items()}
