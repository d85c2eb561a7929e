"""Models that training starts from: pinned and compared with what is to be trained, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput
from modelfactory.tokens import TokenizerFile
from modelfactory.train import FromRun, Pretrained
from modelfactory.train.start import model_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from modelfactory.data import Pin, PinCache
    from modelfactory.experiment import Experiment
    from modelfactory.interchange import ImportedModel


def with_starts(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return the experiments, and those whose checkpoints they start from, each once."""
    found: dict[Experiment, None] = {}
    waiting = list(experiments)
    for experiment in waiting:
        found[experiment] = None
        start = experiment.training.start
        if isinstance(start, FromRun):
            waiting.append(start.experiment)  # type: ignore[arg-type]
    return list(found)


def pin_start(start: Pretrained, cache: PinCache) -> Pin:
    """Return the pin of the files that an import reads."""
    from modelfactory.interchange.starting import pin_model

    return pin_model(start.path, cache)


def import_of(start: Pretrained) -> ImportedModel:
    """Return the spec of the stage that imports it."""
    from modelfactory.interchange.starting import imported_model

    return imported_model(start.path)


def pretrained_faults(experiments: Iterable[Experiment], found: Mapping[Any, Pin]) -> Iterator[InvalidInput]:
    """Yield what is wrong with the starts whose files are there."""
    for experiment in experiments:
        start = experiment.training.start
        if isinstance(start, Pretrained) and start in found:
            try:
                yield from _faults(experiment, start, found)
            except InvalidInput as error:
                yield error


def _faults(experiment: Experiment, start: Pretrained, found: Mapping[Any, Pin]) -> Iterator[InvalidInput]:
    from modelfactory.interchange.starting import architecture_of, check_tokenizer

    yield from model_faults(
        f"{experiment.name}: training.start", architecture_of(start.path), experiment.model
    )
    is_there = not isinstance(experiment.tokenizer, TokenizerFile) or experiment.tokenizer in found
    if is_there:
        check_tokenizer(start.path, experiment.tokenizer, f"{experiment.name}: tokenizer")
