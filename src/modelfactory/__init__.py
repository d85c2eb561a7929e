"""Model Factory: an assembly line for foundation models.

Declare experiments as typed values; the factory plans the cheapest stages that answer them, runs them,
evaluates every checkpoint, and gives a verdict with statistics.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelfactory.experiment import Comparison, Experiment, all_variants

__all__ = ["Comparison", "Experiment", "all_variants"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that a part can be used without all the others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from modelfactory import experiment

    return getattr(experiment, name)
