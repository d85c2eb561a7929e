"""Outside inputs, pinned by content before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.data import MemoryCache, Pin, check_dataset, pin, pin_file
from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.evaluate.item_files import checked_rows, item_files
from modelfactory.evaluate.task import dataset_of
from modelfactory.interchange import ImportedModel
from modelfactory.loading import flattened, in_experiments
from modelfactory.plan.starts import import_of, pin_start, pretrained_faults, with_starts
from modelfactory.tokens import TokenizerFile, chat_files
from modelfactory.train import Pretrained

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.data import Dataset, PinCache
    from modelfactory.evaluate import Task
    from modelfactory.experiment import Experiment
    from modelfactory.tokens import BPE

Names = dict[str, None]
"""Of experiments, each once, in their order."""


@dataclass(frozen=True, kw_only=True)
class PinnedSources:
    """Every source of some experiments, with its content."""

    by_source: Mapping[Any, Pin]
    """A source of a dataset, a TokenizerFile, a Pretrained, a file of `chat_files`, or a task and the name of
    one of its item files -> its files."""
    imports: Mapping[Pretrained, ImportedModel] = field(default_factory=dict)
    """A model that training starts from -> the spec of the stage that imports it."""


def pin_sources(experiments: Sequence[Experiment], cache: PinCache) -> PinnedSources:
    """Pin each distinct source once.

    Raises:
        InvalidInputs: all sources that match nothing or cannot be read, and datasets that would be empty.
    """
    sources, faults = try_sources(experiments, cache)
    if faults:
        raise InvalidInputs(faults)
    return sources


def try_sources(
    experiments: Sequence[Experiment], cache: PinCache, n_experiments: int | None = None
) -> tuple[PinnedSources, list[InvalidInput]]:
    """Pin each distinct source once; return those that can be pinned, and all faults of the others.

    Args:
        experiments: whose sources.
        cache: hashes of files seen before.
        n_experiments: of the file, where some are left out.
    """
    found: dict[Any, Pin] = {}
    n_experiments = len(experiments) if n_experiments is None else n_experiments
    faults: list[InvalidInput] = []
    every = with_starts(experiments)
    for source, asked in _asked(every, cache).items():
        try:
            found[source] = asked.pinned()
        except InvalidInput as error:
            faults.extend(asked.placed(each, n_experiments) for each in flattened(error))
    faults.extend(_chat_faults(_rendered(experiments), found, cache, n_experiments))
    faults.extend(_dataset_faults(every, found, n_experiments))
    faults.extend(pretrained_faults(every, found))
    imports = {}
    for source in [each for each in found if isinstance(each, Pretrained)]:
        try:
            imports[source] = import_of(source)
        except InvalidInput as error:  # which the comparison with what is trained has told
            faults.extend([] if faults else flattened(error))
    return PinnedSources(by_source=found, imports=imports), faults


def pin_tasks(tasks: Sequence[Task], tokenizer: TokenizerFile | None, cache: PinCache) -> PinnedSources:
    """Pin what tasks read, for checkpoints that are there already.

    Args:
        tasks: whose datasets and item files.
        tokenizer: of the checkpoints; conversations may be rendered by a template beside its file. None: it
            has no file.
        cache: hashes of files seen before.

    Raises:
        InvalidInputs: all sources that are not there or cannot be read, and every faulty line of item files.
    """
    found: dict[Any, Pin] = {}
    faults: list[InvalidInput] = []
    for task in tasks:
        try:
            found |= _pins_of_task(task, tokenizer, cache)
        except InvalidInput as error:
            faults.extend(flattened(error))
    if faults:
        raise InvalidInputs(faults)
    return PinnedSources(by_source=found)


def _pins_of_task(task: Task, tokenizer: TokenizerFile | None, cache: PinCache) -> dict[Any, Pin]:
    found: dict[Any, Pin] = {(task, name): _pinned_items(task, name, cache) for name in item_files(task)}
    if (dataset := dataset_of(task)) is not None:
        for n, source in enumerate(dataset.sources):
            found[source] = pin(source, cache, place=f"dataset {dataset.name!r}: sources[{n}]")
        check_dataset(dataset, [found[source] for source in dataset.sources])
        found |= {path: pin_file(path, cache) for path in chat_files(dataset, tokenizer).values()}
    return found


def is_pinned(experiment: Experiment, sources: PinnedSources) -> bool:
    """Say whether all sources that an experiment is made from are there."""
    every = with_starts([experiment])
    try:
        files = [path for pair in _rendered([experiment]) for path in chat_files(*pair).values()]
    except InvalidInput:
        return False
    wanted = [*_asked(every, MemoryCache()), *files]
    starts = [each.training.start for each in every if isinstance(each.training.start, Pretrained)]
    return all(each in sources.by_source for each in wanted) and all(
        each in sources.imports for each in starts
    )


def _rendered(experiments: Sequence[Experiment]) -> dict[tuple[Dataset, BPE | TokenizerFile], Names]:
    """Return each dataset with the tokenizer that its conversations are rendered for, and who asks for it."""
    pairs: dict[tuple[Dataset, BPE | TokenizerFile], Names] = {}
    read = [(part.dataset, each) for each in with_starts(experiments) for part in each.mixture.parts]
    judged = [(dataset_of(task), each) for each in experiments for task in each.evaluations]
    read += [(dataset, each) for dataset, each in judged if dataset is not None]
    for dataset, each in read:
        pairs.setdefault((dataset, each.tokenizer), {})[each.name] = None
    return pairs


def _chat_faults(
    pairs: Mapping[tuple[Dataset, BPE | TokenizerFile], Names],
    found: dict[Any, Pin],
    cache: PinCache,
    n_experiments: int,
) -> Iterator[InvalidInput]:
    """Pin what conversations are rendered by, and yield what is wrong with it."""
    for (dataset, tokenizer), names in pairs.items():
        try:
            found |= {path: pin_file(path, cache) for path in chat_files(dataset, tokenizer).values()}
        except InvalidInput as error:
            yield from _named(error, names, n_experiments)


def _dataset_faults(
    experiments: Sequence[Experiment], found: Mapping[Any, Pin], n_experiments: int
) -> Iterator[InvalidInput]:
    """Yield what is known to be wrong with datasets whose sources are all there."""
    for dataset, names in _by_dataset(experiments).items():
        if all(source in found for source in dataset.sources):
            try:
                check_dataset(dataset, [found[source] for source in dataset.sources])
            except InvalidInput as error:
                yield from _named(error, names, n_experiments)


def _named(error: InvalidInput, names: Names, n_experiments: int) -> Iterator[InvalidInput]:
    """Yield each fault with the experiments it is in."""
    return (in_experiments(each, list(names), n_experiments) for each in flattened(error))


def _by_dataset(experiments: Sequence[Experiment]) -> dict[Dataset, Names]:
    found: dict[Dataset, Names] = {}
    for experiment in experiments:
        for dataset in experiment.datasets:
            found.setdefault(dataset, {})[experiment.name] = None
    return found


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A source, by the call that pins it."""

    pinned: Callable[[], Pin]
    place: str = ""
    """Field of the experiment; empty where the call names its place whole."""
    names: Names = field(default_factory=dict)
    """The experiments that need it."""

    def placed(self, fault: InvalidInput, n_experiments: int) -> InvalidInput:
        """Return the fault with the field and the experiments it is in."""
        place = f"{self.place}: {fault.place}" if self.place else fault.place
        fault = type(fault)(place=place, found=fault.found, wanted=fault.wanted, remedy=fault.remedy)
        return in_experiments(fault, list(self.names), n_experiments)


def _asked(experiments: Sequence[Experiment], cache: PinCache) -> dict[Any, _Asked]:
    """Return for every source the call that pins it, and whose it is."""
    calls: dict[Any, _Asked] = {}
    for dataset, names in _by_dataset(experiments).items():
        for n, source in enumerate(dataset.sources):
            place = f"dataset {dataset.name!r}: sources[{n}]"
            pinned = partial(pin, source, cache, place=place)
            calls.setdefault(source, _Asked(pinned=pinned)).names.update(names)
    for each in experiments:
        tokenizer, start = each.tokenizer, each.training.start
        if isinstance(tokenizer, TokenizerFile):
            pinned = partial(_pinned_tokenizer, tokenizer, cache)
            calls.setdefault(tokenizer, _Asked(pinned=pinned, place="tokenizer")).names[each.name] = None
        if isinstance(start, Pretrained):
            pinned = partial(pin_start, start, cache)
            calls.setdefault(start, _Asked(pinned=pinned, place="training.start")).names[each.name] = None
        for key in [(task, name) for task in each.evaluations for name in item_files(task)]:
            asked = _Asked(pinned=partial(_pinned_items, *key, cache), place=f"evaluations.{key[0].name}")
            calls.setdefault(key, asked).names[each.name] = None
    return calls


def _pinned_items(task: Task, name: str, cache: PinCache) -> Pin:
    """Pin a file of questions, and have the task look at every line: an evaluation comes hours later."""
    path = Path(item_files(task)[name].path)
    found = pin_file(path, cache)
    checked_rows(task, name, path, path.read_bytes())
    return found


def _pinned_tokenizer(tokenizer: TokenizerFile, cache: PinCache) -> Pin:
    tokenizer.check()
    return pin_file(tokenizer.path, cache)
