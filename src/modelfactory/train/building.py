"""What a learner is made of, looked at as it is made: specs may be of the user's own make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from modelfactory.errors import SpecError
from modelfactory.models import LossSums
from modelfactory.train.own_parts import own_parts_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.train.processes import Sums
    from modelfactory.train.segment import TrainSegment


def module_of(spec: TrainSegment, vocab_size: int) -> torch.nn.Module:
    """Return the module, if it is as large as the spec says: FLOPs, memory and cost are counted by that."""
    with own_parts_named(model=spec.model):
        module = cast("torch.nn.Module", spec.model.build(vocab_size, spec.seed))
        counted = spec.model.n_parameters(vocab_size)
    there = sum(each.numel() for each in module.parameters())
    if counted != there:
        raise SpecError(
            place=f"{type(spec.model).__name__}.n_parameters({vocab_size})",
            found=f"{counted:,} by formula and {there:,} in the module",
            wanted="one number: FLOPs, memory and the plan's costs are counted by it",
            remedy="Mend n_parameters of the layer that is yours.",
        )
    return module


def optimizer_of(spec: TrainSegment, module: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer, if it is one and steps every parameter that is trained."""
    with own_parts_named(optimizer=spec.optimizer):
        optimizer = spec.optimizer.build(module)
    place, remedy = f"{type(spec.optimizer).__name__}.build", "Mend the optimizer's spec."
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(place=place, found=repr(optimizer), wanted="a torch.optim.Optimizer", remedy=remedy)
    stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
    trained = ((name, each) for name, each in module.named_parameters() if each.requires_grad)
    left = [name for name, each in trained if id(each) not in stepped]
    if left:
        raise SpecError(
            place=place,
            found=f"an optimizer without {left[0]}" + (f" and {len(left) - 1} more" if left[1:] else ""),
            wanted="one that steps every parameter; freeze a part by requires_grad = False",
            remedy=remedy,
        )
    return optimizer


def sums_of(module: torch.nn.Module) -> Sums:
    """Return the module's `training_sums`, or what stands for it in one that has only `loss_sum`."""
    known: Sums | None = getattr(module, "training_sums", None)
    return known if known is not None else _Bare(cast("Any", module).loss_sum)


class _Bare:
    """The sums of a module that minimises its loss and nothing else."""

    def __init__(self, loss_sum: Callable[..., torch.Tensor]) -> None:
        self._loss_sum = loss_sum

    def __call__(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        valid: torch.Tensor,
        documents: torch.Tensor | None = None,
    ) -> LossSums:
        if documents is not None:
            raise SpecError(
                place="Training.document_masks",
                found="a model without `training_sums`",
                wanted="one that can keep the documents of a row apart",
                remedy="Give its module `training_sums` (see modelfactory.models.Trained).",
            )
        loss = self._loss_sum(tokens, labels, valid)
        return LossSums(loss, torch.zeros_like(loss), {})
