"""Outside inputs, pinned by content before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from modelfactory.data import Pin, check_dataset, pin, pin_file
from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.interchange import ImportedModel
from modelfactory.plan.starts import import_of, pin_start, pretrained_faults, with_starts
from modelfactory.tokens import TokenizerFile, chat_files
from modelfactory.train import Pretrained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from modelfactory.data import Dataset, PinCache
    from modelfactory.experiment import Experiment
    from modelfactory.tokens import BPE


@dataclass(frozen=True, kw_only=True)
class PinnedSources:
    """Every source of some experiments, with its content."""

    by_source: Mapping[Any, Pin]
    """A source of a dataset, a TokenizerFile, a Pretrained, or a file of `chat_files` -> its files."""
    imports: Mapping[Pretrained, ImportedModel] = field(default_factory=dict)
    """A model that training starts from -> the spec of the stage that imports it."""


def pin_sources(experiments: Sequence[Experiment], cache: PinCache) -> PinnedSources:
    """Pin each distinct source once.

    Raises:
        InvalidInputs: all sources that match nothing or cannot be read, and datasets that would be empty.
    """
    found: dict[Any, Pin] = {}
    faults: list[InvalidInput] = []
    asked = [(task.dataset, each.tokenizer) for each in experiments for task in each.evaluations]
    experiments = with_starts(experiments)
    rendered = [(part.dataset, each.tokenizer) for each in experiments for part in each.mixture.parts] + asked
    for source, pinned in _pinners(experiments, cache).items():
        try:
            found[source] = pinned()
        except InvalidInput as error:
            faults.append(error)
    faults.extend(_chat_faults(rendered, found, cache))
    faults.extend(_dataset_faults(experiments, found))
    faults.extend(pretrained_faults(experiments, found))
    if faults:
        raise InvalidInputs(faults)
    imports = {source: import_of(source) for source in found if isinstance(source, Pretrained)}
    return PinnedSources(by_source=found, imports=imports)


def _chat_faults(
    pairs: Iterable[tuple[Dataset, BPE | TokenizerFile]], found: dict[Any, Pin], cache: PinCache
) -> Iterator[InvalidInput]:
    """Pin what conversations are rendered by, and yield what is wrong with it."""
    for dataset, tokenizer in dict.fromkeys(pairs):
        try:
            found |= {path: pin_file(path, cache) for path in chat_files(dataset, tokenizer).values()}
        except InvalidInput as error:
            yield error


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
    for start in (experiment.training.start for experiment in experiments):
        if isinstance(start, Pretrained):
            calls.setdefault(start, partial(pin_start, start, cache))
    return calls


def _pinned_tokenizer(tokenizer: TokenizerFile, cache: PinCache) -> Pin:
    tokenizer.check()
    return pin_file(tokenizer.path, cache)
