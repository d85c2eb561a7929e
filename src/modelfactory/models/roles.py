"""Which layers mix along the sequence, which feed forward, and which only scale: told apart at declaration.

A mixer's module takes a cache and tells tokens apart by place; in place of a feed-forward it would be
trained, and would write another text with a cache than without one. Of a layer of the user's own only its
module shows what it is: see `fitting`.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.models.part_results import built, part_fault
from modelfactory.spec import require

if TYPE_CHECKING:
    from torch import nn

    from modelfactory.models.architecture import BuildContext

Role = Literal["mixer", "feed-forward", "norm"]


@lru_cache(maxsize=3)
def _classes(role: Role) -> tuple[type, ...]:
    """Return the classes of this package that have a role; they look their own parts' roles up here."""
    from modelfactory import models

    return {
        "mixer": (models.Attention, models.LatentAttention, models.GatedDelta, models.Mamba2),
        "feed-forward": (models.FeedForward, models.GatedFeedForward, models.Experts),
        "norm": (models.LayerNorm, models.RMSNorm),
    }[role]


def require_role(part: Any, role: Role, place: str) -> None:
    """Refuse a part of this package that has another role.

    Whoever wrote `build` made the module: a class of the user's own that inherits it has the same role.

    Raises:
        SpecError: names the place, and the classes of the package that have the role.
    """
    maker = next((cls for cls in type(part).__mro__ if "build" in vars(cls)), None)
    is_ours = maker is not None and maker.__module__.partition(".")[0] == "modelfactory"
    known = _classes(role)
    remedy = f"Give one of {', '.join(cls.__name__ for cls in known)}, or a {role} of your own."
    require(not is_ours or maker in known, place=place, found=part, wanted=f"a {role}", remedy=remedy)


def fitting(part: Any, role: Literal["mixer", "feed-forward"], context: BuildContext) -> nn.Module:
    """Return the module that a layer builds, if it can be called as its role is (see `Layer`).

    Raises:
        PartFault: it builds none; a mixer's takes no cache; or a feed-forward's has `new_cache`, which nobody
            would call, or takes more than x_BTD.
    """
    module = built(part, context)
    if role == "feed-forward" and callable(getattr(module, "new_cache", None)):
        found = "new_cache, as the module of a mixer has it"
        raise part_fault(part, "build", found, "the module of a feed-forward, which is given no cache")
    arguments = ("x_BTD", "cache", "packing") if role == "mixer" else ("x_BTD",)
    if not _takes(module.forward, arguments):
        found = f"a {type(module).__name__} with forward{inspect.signature(module.forward)}"
        wanted = f"one with forward({', '.join(arguments)}), as a {role} has it"
        raise part_fault(part, "build", found, wanted)
    return module


def _takes(method: Any, arguments: tuple[str, ...]) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # written in C: unknown
        return True
    return True
