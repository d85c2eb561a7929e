"""One task of lm-evaluation-harness, loaded and evaluated by its own code. Imports lm-eval."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import datasets
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from modelfactory.errors import StageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lm_eval.api.model import LM

    from modelfactory.evaluate.harness_files import TaskFiles

FEWSHOT_SEED = 1_234
"""lm-eval's default: the same examples as `lm_eval` on the command line."""


def samples_of(lm: LM, files: TaskFiles, *, n_shot: int, limit: int) -> list[dict[str, Any]]:
    """Return what lm-eval logs of every item: document, arguments, responses, metrics.

    Args:
        lm: what is asked.
        files: of the task.
        n_shot: examples before each item.
        limit: items asked, the first of the task; 0: all.

    Raises:
        StageFailed: the task's data cannot be loaded.
    """
    with _loading(files) as task:
        task.set_config(key="num_fewshot", value=n_shot)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
        loaded = {"tasks": {task.task_name: task}, "groups": {}, "group_map": {}}
        found = evaluate(lm, loaded, limit=limit or None, bootstrap_iters=0, log_samples=True)
    logged: list[dict[str, Any]] = found["samples"][task.task_name]
    first = logged[0]["filter"]
    return [each for each in logged if each["filter"] == first]


@contextmanager
def _loading(files: TaskFiles) -> Iterator[Any]:
    """Load a task; one with local data reads those files alone, without a cache from before, offline."""
    with ExitStack() as stack:
        if files.data_files is not None:
            cache = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            stack.enter_context(_offline(cache))
        name = files.config["task"]
        manager = TaskManager(include_path=str(files.yaml.parent), include_defaults=False)
        try:
            task = manager.load(name)["tasks"][name]
        except Exception as error:
            raise StageFailed(f"lm-eval's task {name}: cannot be loaded ({error})") from error
        yield task


@contextmanager
def _offline(cache: str) -> Iterator[None]:
    """Keep `datasets` off the network and out of the user's cache, in this process and while this lasts."""
    names = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    told: dict[str, Any] = {"HF_HUB_OFFLINE": True, "HF_DATASETS_CACHE": cache}
    with mock.patch.dict(os.environ, names), mock.patch.multiple(datasets.config, **told):
        yield
