"""Outside inputs, pinned by content before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from modelfactory.data import Pin, check_dataset, pin, pin_file
from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.tokens import TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from modelfactory.data import PinCache
    from modelfactory.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class PinnedSources:
    """Every source of some experiments, with its content."""

    by_source: Mapping[Any, Pin]
    """A source of a dataset, or a TokenizerFile -> its files."""


def pin_sources(experiments: Sequence[Experiment], cache: PinCache) -> PinnedSources:
    """Pin each distinct source once.

    Raises:
        InvalidInputs: all sources that match nothing or cannot be read, and datasets that would be empty.
    """
    found: dict[Any, Pin] = {}
    faults: list[InvalidInput] = []
    for source, pinned in _pinners(experiments, cache).items():
        try:
            found[source] = pinned()
        except InvalidInput as error:
            faults.append(error)
    faults.extend(_dataset_faults(experiments, found))
    if faults:
        raise InvalidInputs(faults)
    return PinnedSources(by_source=found)


def _dataset_faults(experiments: Iterable[Experiment], found: Mapping[Any, Pin]) -> Iterator[InvalidInput]:
    """Yield what is known to be wrong with datasets whose sources are all there."""
    for dataset in dict.fromkeys(dataset for experiment in experiments for dataset in experiment.datasets):
        if all(source in found for source in dataset.sources):
            try:
                check_dataset(dataset, [found[source] for source in dataset.sources])
            except InvalidInput as error:
                yield error


def _pinners(experiments: Sequence[Experiment], cache: PinCache) -> dict[Any, Callable[[], Pin]]:
    """Return for every source the call that pins it."""
    datasets = dict.fromkeys(dataset for experiment in experiments for dataset in experiment.datasets)
    calls: dict[Any, Callable[[], Pin]] = {}
    for dataset in datasets:
        for n, source in enumerate(dataset.sources):
            place = f"dataset {dataset.name!r}: sources[{n}]"
            calls.setdefault(source, partial(pin, source, cache, place=place))
    for tokenizer in (experiment.tokenizer for experiment in experiments):
        if isinstance(tokenizer, TokenizerFile):
            calls.setdefault(tokenizer, partial(_pinned_tokenizer, tokenizer, cache))
    return calls


def _pinned_tokenizer(tokenizer: TokenizerFile, cache: PinCache) -> Pin:
    tokenizer.check()
    return pin_file(tokenizer.path, cache)
