"""From the path of an experiment file to a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.experiment import check_comparisons, check_together
from modelfactory.loading.declared import study_of
from modelfactory.loading.importing import import_file, parse, read
from modelfactory.loading.places import Places
from modelfactory.loading.raised import raised
from modelfactory.loading.trial import faults_of

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.loading.declared import Study


def load_study(path: Path) -> Study:
    """Import an experiment file and check all that can be known without reading data.

    Raises:
        InvalidInputs: every fault of the file.
    """
    tree = parse(path, read(path))
    try:
        study = study_of(path, import_file(path))
        _refuse_together(study)
    except (Exception, SystemExit) as error:
        faults = faults_of(path, tree)
        raise InvalidInputs(faults or _as_faults(path, error)) from error
    return study


def _refuse_together(study: Study) -> None:
    found = [*check_together(study.experiments), *check_comparisons(study.comparisons, study.experiments)]
    if found:
        raise InvalidInputs(found)


def _as_faults(path: Path, error: BaseException) -> list[InvalidInput]:
    places = Places(path)
    return places.told(error) if isinstance(error, InvalidInput) else [raised(places, error)]
