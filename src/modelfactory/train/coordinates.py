"""The coordinate check: whether activations change alike as a model widens (Yang et al. 2022, D.1).

A model is trained for a few steps at several widths, once as it is and once by muP. Where its parametrisation
is right, every kind of activation x changes by an amount that does not depend on the width; where it is not,
the log of mean |x - x at step 0| against log width has a slope, and the best learning rate moves with it.

The change is what figure 5 of the paper (arXiv 2203.03466) shows. Mean |x| itself is kept too. By muP it is
as flat, but for the logits: at random weights they fall with 1 / sqrt(width), until what is learnt outweighs
what is random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.errors import SpecError
from modelfactory.models.decoder import Decoder
from modelfactory.models.mup import at_width, mup
from modelfactory.models.mup_base import has_mup
from modelfactory.spec import require
from modelfactory.train.coordinate_sizes import KINDS, N_TOKENS, VOCAB_SIZE, activations
from modelfactory.train.optimizer_memory import hidden_shapes, optimizer_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.train.optimizers import Optimizer

Rule = Literal["standard", "muP"]
RULES: tuple[Rule, ...] = ("standard", "muP")
_WIDEST = 1_000_000_000


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


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A model at one width, by one rule."""

    rule: Rule
    width: int
    model: Decoder


def check_widths(widths: Sequence[int]) -> None:
    """Refuse widths that cannot be, or of which nothing can be said.

    Raises:
        SpecError: one is below 1, or there are fewer than two.
    """
    require(
        all(1 <= width <= _WIDEST for width in widths),
        place="widths",
        found=list(widths),
        wanted=f"whole numbers from 1 to {_WIDEST:,}, such as 64,128,256",
    )
    require(
        len(set(widths)) >= 2,
        place="widths",
        found=list(widths),
        wanted="two or more different ones, such as 64,128,256, to compare them",
    )


def check_steps(n_steps: int) -> None:
    """Refuse fewer than one step.

    Raises:
        SpecError: fewer than one.
    """
    require(n_steps >= 1, place="n_steps", found=n_steps, wanted="at least 1")


def copies(base: Decoder, widths: Sequence[int]) -> list[Copy]:
    """Return `base` at each width, by each rule; nothing is allocated.

    Raises:
        SpecError: widths that `check_widths` refuses, a base that has muP itself, or a model that cannot be
            resized or has no muP.
    """
    check_widths(widths)
    require(
        not has_mup(base),
        place="Decoder.hidden_lr_scale",
        found=base.hidden_lr_scale,
        wanted="1: a model that has muP is no base of it",
        remedy="Check the model that it was scaled from; models.mup_base.base_of finds it.",
    )
    found = []
    for width in sorted(set(widths)):
        wide = at_width(base, width)
        found.append(Copy(rule="standard", width=width, model=wide))
        found.append(Copy(rule="muP", width=width, model=mup(wide, base=base)))
    return found


def copy_bytes(model: Decoder, optimizer: Optimizer) -> int:
    """Estimate the memory that the check of one copy takes, beside Python and libraries.

    Parameters, gradients, the optimizer's state, and activations: those the backward pass reads, taken to be
    four times the inputs and outputs of all matrices, and those that are looked at, before and now.
    """
    n_parameters = model.n_parameters(VOCAB_SIZE)
    wide = sum(rows + columns for rows, columns in hidden_shapes(model))
    n_blocks = model.n_layers + len(tuple(model.depths()))
    watched = 2 * len(KINDS) * n_blocks * model.d_model
    state = optimizer_bytes(optimizer, model, VOCAB_SIZE)
    return 8 * n_parameters + state + 4 * N_TOKENS * (4 * wide + watched)


def coordinate_check(
    base: Decoder, optimizer: Optimizer, *, widths: Sequence[int], n_steps: int, seed: int
) -> list[Coordinate]:
    """Train copies of `base` at each width, and measure activations before and after each step.

    All steps see one batch of random tokens out of 16, 8 rows of up to 64, at the optimizer's peak learning
    rate, in float32 on the CPU, without clipping. The loss is that of training, further tokens included. One
    copy is in memory at a time.

    Args:
        base: of any width, without muP; the copies have heads of the same size.
        optimizer: whose learning rate is taken to be right for `base`.
        widths: d_model of the copies.
        n_steps: updates, at least 1.
        seed: of initial weights and tokens.

    Raises:
        SpecError: what `check_steps` and `copies` refuse, or a copy that diverges or does not move, so that
            nothing can be read off its activations.
    """
    check_steps(n_steps)
    return [
        coordinate
        for copy in copies(base, widths)
        for coordinate in _coordinates(copy, optimizer, n_steps, seed)
    ]


def _coordinates(copy: Copy, optimizer: Optimizer, n_steps: int, seed: int) -> list[Coordinate]:
    found = [
        Coordinate(rule=copy.rule, width=copy.width, step=step, kind=kind, size=size, change=change)
        for step, sizes in enumerate(activations(copy.model, optimizer, n_steps, seed))
        for kind, (size, change) in sizes.items()
    ]
    _check_health(found)
    return found


def _check_health(found: Sequence[Coordinate]) -> None:
    """Refuse activations whose logarithm is not there: a model that diverged, or stands still."""
    for each in found:
        moves = each.change != 0 or each.step == 0  # one that is not a number has moved
        if math.isfinite(each.size) and each.size > 0 and math.isfinite(each.change) and moves:
            continue
        raise SpecError(
            place=f"coordinate check: {each.rule}, width {each.width}, step {each.step}, {each.kind}",
            found=f"activations of size {each.size:g}, changed by {each.change:g}",
            wanted="finite ones above 0 that each step changes",
            remedy=f"{'Lower' if moves else 'Raise'} the learning rate, or take fewer steps.",
        )
