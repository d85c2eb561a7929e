"""From the path of an experiment file to a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.experiment import Experiment, check_comparisons, check_together
from modelfactory.loading.declared import Study, study_of
from modelfactory.loading.importing import import_file, parse, read
from modelfactory.loading.places import Places
from modelfactory.loading.raised import raised
from modelfactory.loading.trial import tried

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an experiment file gave: a study, or its faults and what is sound in spite of them."""

    study: Study | None
    """None where there are faults."""
    sound: tuple[Experiment, ...]
    """The experiments that no fault concerns; all of them in a study."""
    n_experiments: int
    """Of the file, as far as it could be executed."""
    faults: tuple[InvalidInput, ...] = ()


def load_study(path: Path) -> Study:
    """Import an experiment file and check all that can be known without reading data.

    Raises:
        InvalidInputs: every fault of the file.
    """
    reading = read_study(path)
    if reading.study is None:
        raise InvalidInputs(reading.faults)
    return reading.study


def read_study(path: Path) -> Reading:
    """Return the study of a file, or all of its faults with the experiments that can be looked at further.

    Raises:
        ExperimentError: it is no Python file.
    """
    tree = parse(path, read(path))
    try:
        study = study_of(path, import_file(path))
        _refuse_together(study)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is one of its faults
        found = tried(path, tree)
        faults = tuple(found.faults or as_faults(path, error))
        return Reading(study=None, sound=found.sound, n_experiments=found.n_experiments, faults=faults)
    return Reading(study=study, sound=study.experiments, n_experiments=len(study.experiments))


def _refuse_together(study: Study) -> None:
    found = [*check_together(study.experiments), *check_comparisons(study.comparisons, study.experiments)]
    if found:
        raise InvalidInputs(found)


def as_faults(path: Path, error: BaseException) -> list[InvalidInput]:
    """Return what an import of a file raised as faults, with their lines."""
    places = Places(path)
    return places.told(error) if isinstance(error, InvalidInput) else [raised(places, error)]
