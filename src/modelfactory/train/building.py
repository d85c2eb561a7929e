"""What a learner is made of, looked at as it is made: specs may be of the user's own make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from modelfactory.errors import SpecError
from modelfactory.models import Decoder, LossSums
from modelfactory.models.part_results import PartFault, built, counted, part_fault
from modelfactory.train.own_parts import own_parts_named

if TYPE_CHECKING:
    from modelfactory.train.processes import Sums
    from modelfactory.train.segment import TrainSegment


def module_of(spec: TrainSegment, vocab_size: int) -> torch.nn.Module:
    """Return the module, if it is as large as the spec says: FLOPs, memory and cost are counted by that."""
    with own_parts_named(model=spec.model):
        module = built(spec.model, vocab_size, spec.seed)
        formula = counted(spec.model, "n_parameters", vocab_size)
        if formula != _n_parameters(module):
            _refuse_layers(spec.model, module)
            raise _miscounted(spec.model, vocab_size, formula, module)
    return module


def _refuse_layers(model: Any, module: torch.nn.Module) -> None:
    """Refuse the first part of a decoder that is of another size than it says."""
    if not isinstance(model, Decoder):
        return
    for block, made in zip(model.layers(), cast("Any", module).blocks, strict=True):
        for name in ("mixer", "feed_forward"):
            layer, part = getattr(block, name), getattr(made, name)
            formula = counted(layer, "n_parameters", model.d_model)
            if formula != _n_parameters(part):
                raise _miscounted(layer, model.d_model, formula, part)


def _miscounted(spec: Any, argument: int, formula: int, module: torch.nn.Module) -> PartFault:
    return PartFault(
        place=f"{type(spec).__name__}.n_parameters({argument})",
        found=f"{formula:,} by formula and {_n_parameters(module):,} in the module",
        wanted="one number: FLOPs, memory and the plan's costs are counted by it",
        remedy=f"Mend n_parameters of {type(spec).__name__}, or of a layer in it that is yours.",
        part=spec,
    )


def _n_parameters(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


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
    return known if known is not None else _Bare(module)


def require_loss(loss: object, module: torch.nn.Module, method: str) -> None:
    """Raise PartFault unless a module of the user's own returned one number to minimise."""
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        return
    shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r:.160}"
    raise part_fault(module, method, f"{shape} as the loss", "a tensor of shape (), the sum of the losses")


class _Bare:
    """The sums of a module that minimises its loss and nothing else."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

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
        loss = cast("Any", self._module).loss_sum(tokens, labels, valid)
        require_loss(loss, self._module, "loss_sum")
        return LossSums(loss, torch.zeros_like(loss), {})
