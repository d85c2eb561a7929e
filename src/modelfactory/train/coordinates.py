"""The coordinate check: whether activations keep their size as a model widens (Yang et al. 2022, D.1).

A model is trained for a few steps at several widths, once as it is and once by muP. Where its parametrisation
is right, every kind of activation x changes by an amount that does not depend on the width; where it is not,
the log of mean |x - x at step 0| against log width has a slope, and the best learning rate moves with it.

The change is what the paper's figure 5 shows. Mean |x| itself is kept too. By muP it is as flat, but for the
logits: at random weights they fall with 1 / sqrt(width), until what is learnt outweighs what is random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.errors import SpecError
from modelfactory.models.mup import at_width, mup
from modelfactory.spec import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from modelfactory.models import Decoder
    from modelfactory.train.optimizers import Optimizer

Rule = Literal["standard", "muP"]
RULES: tuple[Rule, ...] = ("standard", "muP")
KINDS = ("embedding", "mixer", "feed_forward", "stream", "logits")
"""Outputs of the embedding, of the mixers, of the feed-forwards; what enters the last norm; the logits."""

_ROWS, _SEQ_LEN = 8, 64
_VOCAB_SIZE = 16
"""Of the random tokens. Rows of many different tokens have next to nothing in common: most logits then change
by what contexts share by chance, which falls with 1 / sqrt(width) and hides the slope. At 256 tokens and
widths of 64 to 512 a right parametrisation showed -0.4 in the logits, at 4 to 32 tokens -0.05 to 0.1."""


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """How large one kind of activation is, and how far it has come."""

    rule: Rule
    width: int
    step: int
    """Updates before it; 0 is the initialisation."""
    kind: str
    size: float
    """Mean |x|."""
    change: float
    """Mean |x - x at step 0|; 0 at step 0."""


def coordinate_check(
    model: Decoder, optimizer: Optimizer, *, widths: Sequence[int], n_steps: int, seed: int
) -> list[Coordinate]:
    """Train copies of `model` at each width, and measure activations before and after each step.

    All steps see one batch of random tokens out of 16, 8 rows of up to 64, at the optimizer's peak learning
    rate, in float32 on the CPU, without clipping. The base of muP is `model` itself.

    Args:
        model: of any width; the copies have heads of the same size.
        optimizer: whose learning rate is taken to be right for `model`.
        widths: d_model of the copies.
        n_steps: updates, at least 1.
        seed: of initial weights and tokens.

    Raises:
        SpecError: fewer than two widths, a model that cannot be resized or has no muP, or one that diverges
            or does not move, so that nothing can be read off its activations.
    """
    require(min(widths, default=1) >= 1, place="widths", found=list(widths), wanted="numbers above 0")
    require(len(set(widths)) >= 2, place="widths", found=list(widths), wanted="two or more, to compare them")
    require(n_steps >= 1, place="steps", found=n_steps, wanted="at least 1")
    found: list[Coordinate] = []
    for width in sorted(set(widths)):
        wide = at_width(model, width)
        built: dict[Rule, Decoder] = {"standard": wide, "muP": mup(wide, base=model)}
        for rule, each in built.items():
            steps = list(_activations(each, optimizer, n_steps, seed))
            fresh = [
                Coordinate(rule=rule, width=width, step=step, kind=kind, **_sizes(now[kind], steps[0][kind]))
                for step, now in enumerate(steps)
                for kind in KINDS
            ]
            _check_health(fresh)
            found += fresh
    return found


def _check_health(found: Sequence[Coordinate]) -> None:
    """Refuse activations whose logarithm is not there: a model that diverged, or stands still."""
    for each in found:
        moves = each.change != 0 or each.step == 0  # one that is not a number has moved
        if math.isfinite(each.size) and each.size > 0 and moves:
            continue
        raise SpecError(
            place=f"coordinate check: {each.rule}, width {each.width}, step {each.step}, {each.kind}",
            found=f"activations of size {each.size:g}, changed by {each.change:g}",
            wanted="finite ones above 0 that each step changes",
            remedy=f"{'Lower' if moves else 'Raise'} the learning rate, or take fewer steps.",
        )


def slopes(
    coordinates: Sequence[Coordinate], step: int, of: Literal["size", "change"] = "change"
) -> dict[tuple[Rule, str], float]:
    """Return the slope of the log of a size or change against log width after `step` updates.

    0: it does not depend on the width. 1: it grows as the width does.
    """
    groups: dict[tuple[Rule, str], list[tuple[float, float]]] = {}
    for each in coordinates:
        if each.step == step:
            point = (math.log(each.width), math.log(getattr(each, of)))
            groups.setdefault((each.rule, each.kind), []).append(point)
    return {key: _slope(points) for key, points in groups.items()}


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x_mean, y_mean = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return float(sum((x - x_mean) * (y - y_mean) for x, y in points) / spread)


def _sizes(now: torch.Tensor, at_first: torch.Tensor) -> dict[str, float]:
    return {"size": float(now.abs().mean()), "change": float((now - at_first).abs().mean())}


def _activations(
    model: Decoder, optimizer: Optimizer, n_steps: int, seed: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield them by kind, of all layers at once, before the first update and after each."""
    import torch

    module: Any = model.build(_VOCAB_SIZE, seed)
    descent = optimizer.build(module)
    length = min(model.max_seq_len, _SEQ_LEN)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(_VOCAB_SIZE, (_ROWS, length + 1), generator=generator)
    valid = torch.ones(_ROWS, length, dtype=torch.bool)
    yield _watched(module, tokens[:, :-1])
    for _ in range(n_steps):
        (module.loss_sum(tokens[:, :-1], tokens[:, 1:], valid) / valid.sum()).backward()
        descent.step()
        descent.zero_grad(set_to_none=True)
        yield _watched(module, tokens[:, :-1])


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
