"""Activation checkpointing: blocks that keep less for the backward pass and compute it again.

Chen et al. 2016, arXiv 1604.06174; which results are dear enough to keep is Korthikanti et al. 2022, arXiv
2205.05198, section 5.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from modelfactory.errors import SpecError

if TYPE_CHECKING:
    from torch import nn

    from modelfactory.stage import Checkpointing

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "grouped_product", "_scaled_mm")


def recompute(module: nn.Module, checkpointing: Checkpointing) -> None:
    """Let each block of `module.blocks` compute again what `checkpointing` says, where gradients are taken.

    Raises:
        SpecError: the module has no blocks.
    """
    if checkpointing == "none":
        return
    blocks = getattr(module, "blocks", None)
    if not isinstance(blocks, torch.nn.ModuleList):
        raise SpecError(
            place="Site.checkpointing",
            found=f"{checkpointing!r} for a model without blocks",
            wanted="a module whose `blocks` is an nn.ModuleList",
            remedy="Use 'none', or give the module its blocks.",
        )
    if checkpointing == "selective":
        _let_names_pass()
    for block in blocks:
        block.forward = _Recomputed(block.forward, is_selective=checkpointing == "selective")


def _let_names_pass() -> None:
    """Have torch not count the names that FSDP gives its work for profilers: another time they differ."""
    entered = torch.ops.profiler._record_function_enter_new.default  # noqa: SLF001
    left = torch.ops.profiler._record_function_exit._RecordFunction  # noqa: SLF001
    SAC_IGNORED_OPS.update({entered, left})


class _Recomputed:
    """Stands in for a block's forward pass."""

    def __init__(self, forward: Any, *, is_selective: bool) -> None:
        self._forward = forward
        contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
        self._options: dict[str, Any] = {"context_fn": contexts} if is_selective else {}

    def __call__(self, *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments)
        return checkpoint(self._forward, *arguments, use_reentrant=False, **self._options)


def _policy(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    """Keep what is dear to compute: matrix products and attention."""
    del context, arguments, options
    name = operator.name().partition("::")[2].partition(".")[0]
    is_kept = name in _PRODUCTS or name.startswith("_scaled_dot_product")
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
