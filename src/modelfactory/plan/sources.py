"""Outside inputs, pinned by content before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.data import Pin, pin, pin_file
from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.tokens import TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelfactory.data import PinCache
    from modelfactory.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class PinnedSources:
    """Every source of some experiments, with its content."""

    by_source: Mapping[Any, Pin]
    """A source of a dataset, or a TokenizerFile -> its files."""


def pin_sources(experiments: Iterable[Experiment], cache: PinCache) -> PinnedSources:
    """Pin each distinct source once.

    Raises:
        InvalidInputs: all sources that match nothing or cannot be read.
    """
    found: dict[Any, Pin] = {}
    faults: list[InvalidInput] = []
    for source, pinned in _pinners(list(experiments), cache).items():
        try:
            found[source] = pinned()
        except InvalidInput as error:
            faults.append(error)
    if faults:
        raise InvalidInputs(faults)
    return PinnedSources(by_source=found)


def _pinners(experiments: list[Experiment], cache: PinCache) -> dict[Any, Callable[[], Pin]]:
    """Return for every source the call that pins it."""
    datasets = dict.fromkeys(dataset for experiment in experiments for dataset in experiment.datasets)
    calls: dict[Any, Callable[[], Pin]] = {}
    for source in (source for dataset in datasets for source in dataset.sources):
        calls.setdefault(source, lambda source=source: pin(source, cache))
    for tokenizer in (experiment.tokenizer for experiment in experiments):
        if isinstance(tokenizer, TokenizerFile):
            calls.setdefault(tokenizer, lambda tokenizer=tokenizer: _pinned_tokenizer(tokenizer, cache))
    return calls


def _pinned_tokenizer(tokenizer: TokenizerFile, cache: PinCache) -> Pin:
    tokenizer.check()
    return pin_file(tokenizer.path, cache)
