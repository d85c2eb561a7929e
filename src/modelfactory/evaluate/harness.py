"""Any task of lm-evaluation-harness, as a task of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.evaluate.harness_files import TaskFiles, find_task
from modelfactory.evaluate.harness_metric import Metric, primary_metric, value_and_weight
from modelfactory.evaluate.item_files import ItemFile
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.generate.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Harness:
    """A task of lm-evaluation-harness, run by its own code on our engine; needs the extra `harness`.

    The metric is the first of the task that is a mean over its items, or bits per byte; all others of an item
    are kept beside it. An item is a document of the task, and its cluster. The YAML, what it includes, its
    functions and its local data files are pinned by content; data of a hub is not.

    Gao et al., "A framework for few-shot language model evaluation" (lm-eval 0.4).
    """

    task: str
    """Name of one task; a group's tasks are declared one by one."""
    n_shot: int
    """Examples before each item, drawn with lm-eval's seed."""
    limit: int = 0
    """Items asked, the first of the task; 0: all."""
    include_path: str = not_identity(default="")
    """A folder with YAML tasks of one's own; empty: those that lm-eval ships. Relative to the working
    directory."""
    margin: float = not_identity(default=0.01)
    """Of the primary metric: a difference below it does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration: lm-eval is there, and knows the task."""
        require(self.task.strip() != "", place="Harness.task", found=self.task, wanted="a name")
        check_task(self)
        require(self.n_shot >= 0, place="Harness.n_shot", found=self.n_shot, wanted="at least 0")
        require(self.limit >= 0, place="Harness.limit", found=self.limit, wanted="at least 0")
        _ = self._metric

    @property
    def name(self) -> str:
        """Task, examples, and items where they are limited."""
        return f"{self.task}/{self.n_shot}-shot" + (f"/{self.limit}" if self.limit else "")

    @property
    def primary_metric(self) -> str:
        """Name of the metric, as lm-eval has it."""
        return self._metric.name

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return self._metric.unit

    @property
    def higher_is_better(self) -> bool:
        """As the task says."""
        return self._metric.higher_is_better

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """Every file that the task is made of."""
        return {f"harness{number}": ItemFile(path=str(path)) for number, path in enumerate(self._files.files)}

    @property
    def reads_whole_files(self) -> bool:
        """lm-eval reads the files itself: they are pinned, not parsed."""
        return True

    @property
    def _files(self) -> TaskFiles:
        return find_task(self.task, self.include_path)

    @property
    def _metric(self) -> Metric:
        return primary_metric(self.task, self._files.config)

    def prepare(self, documents: Mapping[str, Any], tokenizer: Any) -> Prepared:  # noqa: ARG002 (lm-eval encodes)
        """Leave making the items to lm-eval, which does it when it asks."""
        return Prepared(items=(self._files,), skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Have lm-eval ask and score every item."""
        from modelfactory.evaluate.harness_model import HarnessModel
        from modelfactory.evaluate.harness_run import samples_of

        asked = HarnessModel(model)
        samples = samples_of(asked, prepared.items[0], n_shot=self.n_shot, limit=self.limit)
        metric = self.primary_metric  # read from the YAML, so once and not for every item
        outcomes = tuple(_outcome(metric, sample) for sample in samples)
        return Answers(outcomes=outcomes, facts={"n_cut_requests": asked.n_cut})


def _outcome(metric: str, sample: Mapping[str, Any]) -> ItemOutcome:
    value, weight = value_and_weight(metric, sample[metric])
    metrics = {name: _plain(sample[name]) for name in sample["metrics"]}
    told = {
        "responses": sample["filtered_resps"],
        "target": sample["target"],
        "prompt": sample["arguments"][0][0],
    }
    return ItemOutcome(
        item_id=f"{sample['doc_id']:06d}-{sample['doc_hash'][:12]}",
        cluster=sample["doc_hash"],
        value=value,
        weight=weight,
        detail={**metrics, **{name: _plain(each) for name, each in told.items()}},
    )


def _plain(value: Any) -> Any:
    """Return JSON data: numbers of numpy as numbers, what is no data as its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if hasattr(value, "item"):
        return value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
