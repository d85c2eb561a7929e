"""What an experiment file declares."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import ExperimentError
from modelfactory.experiment import Comparison, Experiment, default_comparisons

if TYPE_CHECKING:
    import types


@dataclass(frozen=True, kw_only=True)
class Study:
    """What an experiment file declares."""

    file: Path
    question: str
    """The docstring of the file."""
    experiments: tuple[Experiment, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def folder(self) -> Path:
        """The folder that workers put on their Python path."""
        return self.file.parent


def study_of(path: Path, module: types.ModuleType) -> Study:
    """Return what an imported experiment file declares."""
    experiments = declared(path, module)
    return Study(
        file=path.resolve(),
        question=inspect.cleandoc(module.__doc__ or ""),
        experiments=tuple(experiments),
        comparisons=comparisons_of(path, module, experiments),
    )


def declared(path: Path, module: types.ModuleType) -> list[Experiment]:
    """Return what `experiments()` gives, which must be experiments."""
    found = module.experiments()
    good = isinstance(found, (list, tuple)) and found and all(isinstance(item, Experiment) for item in found)
    if not good:
        raise ExperimentError(
            place=f"{path}: experiments()",
            found=f"{found!r:.80}",
            wanted="a list of at least one Experiment",
            remedy="",
        )
    return list(found)


def comparisons_of(
    path: Path, module: types.ModuleType, experiments: list[Experiment]
) -> tuple[Comparison, ...]:
    """Return what `comparisons()` gives, else the comparisons that nobody has to ask for."""
    asked = getattr(module, "comparisons", None)
    if asked is None:
        return default_comparisons(experiments)
    found = tuple(asked())
    if not all(isinstance(item, Comparison) for item in found):
        raise ExperimentError(
            place=f"{path}: comparisons()", found=f"{found!r:.80}", wanted="a list of Comparison", remedy=""
        )
    return found
