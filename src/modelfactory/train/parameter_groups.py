"""Which parameters are treated alike: what decays, what learns at its own rate, what is a hidden matrix.

A module may have three methods that say more than its parameters' shapes do:

- `lr_scales() -> Mapping[str, float]`: by parameter name, what the learning rate is multiplied by; 1 for
  names that are missing. muP is the use of it (see `models.mup`).
- `hidden_matrices() -> Collection[str]`: names of the matrices that Muon and SOAP take. Without it they are
  found by `hidden_matrices` below.
- `stacked_rows() -> Mapping[str, Sequence[int]]`: of parameters that are several matrices on top of each
  other, such as queries, keys and values, the rows of each. Muon makes each orthogonal by itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SpecError, closest
from modelfactory.spec import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


def parameter_groups(
    named: Iterable[tuple[str, torch.nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    scales: Mapping[str, float],
    share_of_lr: float = 1.0,
) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer, those that decay first.

    The decay of a step is the group's rate times its weight_decay. Dividing the latter by the model's scale
    leaves a decay of lr * weight_decay to every matrix: with muP's small rates of hidden matrices, decay
    would else vanish as models widen (Wang and Aitchison 2024, arXiv 2405.13698).

    Args:
        named: parameters by name.
        lr: peak learning rate of the run.
        weight_decay: of matrices; vectors and scalars do not decay.
        scales: of the learning rate by name; see `lr_scales_of`.
        share_of_lr: what else the learning rate of these parameters is multiplied by.
    """
    found: dict[tuple[bool, float], list[torch.nn.Parameter]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:  # frozen: no state, no step
            continue
        found.setdefault((parameter.ndim >= 2, scales.get(name, 1.0)), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay / scale if decays else 0.0,
            "lr": lr * share_of_lr * scale,
            "lr_scale": share_of_lr * scale,
        }
        for (decays, scale), parameters in sorted(found.items(), key=lambda item: not item[0][0])
    ]


def lr_scales_of(module: torch.nn.Module) -> dict[str, float]:
    """Return what the module multiplies learning rates by, by parameter name.

    Raises:
        SpecError: it names no parameter, or a scale is not above 0.
    """
    offered = getattr(module, "lr_scales", None)
    scales = {} if offered is None else dict(offered())
    names = {name for name, _ in module.named_parameters()}
    for name, scale in scales.items():
        place = f"{type(module).__name__}.lr_scales[{name!r}]"
        require(
            name in names,
            place=place,
            found="no parameter",
            wanted="the name of one",
            remedy=closest(name, names),
        )
        require(scale > 0, place=place, found=scale, wanted="a number above 0")
    return scales


def hidden_matrices(module: torch.nn.Module) -> set[str]:
    """Return the names of matrices from hidden vectors to hidden vectors.

    If the module does not say: the 2-dimensional weights of its `nn.Linear` modules, without those that give
    logits (as many outputs as the vocabulary has tokens) and those that other modules hold too. So neither
    embeddings, heads, tied or not, learned positions, nor stacks of matrices are among them. The vocabulary
    is `module.vocab_size`, or the rows of the largest `nn.Embedding`.

    Raises:
        SpecError: there are none, or the size of the vocabulary cannot be told.
    """
    from torch import nn

    offered = getattr(module, "hidden_matrices", None)
    if offered is not None:
        names = set(offered())
    else:
        holders = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
        vocab_size = _vocab_size(module)
        names = {
            f"{name}.weight".lstrip(".")
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear)
            and part.out_features != vocab_size
            and part.weight.ndim == 2
            and holders[id(part.weight)] == 1
        }
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    names -= frozen
    require(
        bool(names),
        place=type(module).__name__,
        found="no hidden matrix",
        wanted="nn.Linear modules between embedding and head, which is what Muon and SOAP are for",
        remedy="Use AdamW, or give the module `hidden_matrices()`.",
    )
    return names


def stacked_rows(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Return what the module says of parameters that are several matrices, by name.

    Raises:
        SpecError: the rows are not those of the parameter.
    """
    offered = getattr(module, "stacked_rows", None)
    stacked = {} if offered is None else {name: tuple(rows) for name, rows in offered().items()}
    parameters = dict(module.named_parameters())
    for name, rows in stacked.items():
        n_rows = parameters[name].shape[0] if name in parameters else 0
        require(
            sum(rows) == n_rows and min(rows, default=0) > 0,
            place=f"{type(module).__name__}.stacked_rows[{name!r}]",
            found=rows,
            wanted=f"rows that add up to the {n_rows} of the parameter"
            if n_rows
            else "the name of a parameter",
        )
    return stacked


def _vocab_size(module: torch.nn.Module) -> int:
    from torch import nn

    if isinstance(size := getattr(module, "vocab_size", None), int):
        return size
    tables = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    if not tables:
        raise SpecError(
            place=type(module).__name__,
            found="neither `vocab_size` nor an nn.Embedding",
            wanted="the size of the vocabulary, by which the head is told from hidden matrices",
            remedy="Give the module an attribute `vocab_size`, or `hidden_matrices()`.",
        )
    return max(tables)
