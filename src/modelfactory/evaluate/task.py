"""What every task has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from modelfactory.data.dataset import Dataset
    from modelfactory.generate.language_model import LanguageModel


class ItemOutcome(NamedTuple):
    """One item, answered.

    The metric of a task is `sum(weight * value) / sum(weight)` over its items, for every task.
    """

    item_id: str
    """The same for every checkpoint of every variant that is asked the same."""
    cluster: str
    """Id of the document it was made from: items of one document are not independent."""
    value: float
    weight: float
    detail: Mapping[str, Any]
    """JSON data for people, and for metrics that are thought of later."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The questions of a task in tokens: a function of documents and tokenizer, whatever the model."""

    items: tuple[Any, ...]
    """Each task has its own type."""
    skipped: Mapping[str, int]
    """Reason -> documents that gave no item."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model made of a task."""

    outcomes: tuple[ItemOutcome, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON data about the whole: chance level, unit of a score, what was cut."""


class Task(Protocol):
    """A task as a value: a frozen dataclass, checked by `spec.check_types`.

    Its items come from one of two places. `dataset`, a `data.Dataset`, is held-out documents, which `prepare`
    is given. `item_files`, a dict of `ItemFile` by name, is files of questions: then `prepare` is given their
    rows by those names, and `check_rows(name, rows)`, where a task has it, looks at them when it is planned.
    """

    @property
    def name(self) -> str:
        """Short and stable; unique in an experiment."""

    @property
    def primary_metric(self) -> str:
        """Name of the metric that `ItemOutcome.value` is one item of."""

    @property
    def unit(self) -> str:
        """Unit of the metric; "share" is a proportion."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is a better model."""

    @property
    def margin(self) -> float:
        """Differences of the primary metric below this do not matter. Not part of what is computed."""

    def prepare(self, documents: Any, tokenizer: Any) -> Prepared:
        """Make the items: a function of the documents, whatever their order.

        Args:
            documents: an iterable of held-out `Document`; of a task with `item_files`, their rows by name.
            tokenizer: an `Encoder`; of a task that `reads_chats`, the `ChatEncoder` of its conversations.

        Raises:
            SourceError: there are too few.
        """

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Ask `model` every item."""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Spec of the evaluate stage."""

    task: Task

    def __post_init__(self) -> None:
        """Check types."""
        check_types(self)


def dataset_of(task: Task) -> Dataset | None:
    """Return the documents that a task asks about; None of one that reads files of questions."""
    found: Dataset | None = getattr(task, "dataset", None)
    return found


def reads_chats(task: Task) -> bool:
    """Return whether the documents of a task are conversations, as a property of that name says."""
    return bool(getattr(task, "reads_chats", False))


def check_task(task: Task) -> None:
    """Check what every task of this package has, at declaration."""
    check_types(task)
    kind = type(task).__name__
    require(task.name.strip() != "", place=f"{kind}.name", found=task.name, wanted="a name")
    require(task.margin >= 0, place=f"{kind}.margin", found=task.margin, wanted="at least 0")


def require_counts(task: Task, **counts: int) -> None:
    """Refuse numbers below 1."""
    for name, count in counts.items():
        place = f"{type(task).__name__}.{name}"
        require(count >= 1, place=place, found=count, wanted="at least 1")
