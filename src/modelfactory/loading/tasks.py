"""Tasks named on the command line: values of Python files, and tasks of lm-evaluation-harness."""

from __future__ import annotations

from collections import Counter
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.errors import CommandError, InvalidInputs, SpecError, closest
from modelfactory.evaluate import Harness
from modelfactory.evaluate.harness_files import find_task, task_named_in
from modelfactory.loading.importing import import_file, parse, read
from modelfactory.loading.study import as_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.evaluate import Task

PLACE = "--task"
MEMBERS = ("name", "primary_metric", "margin", "prepare", "answer")
"""What tells a task from other values."""


def read_tasks(words: Sequence[str], *, n_shot: int | None, limit: int | None) -> list[Task]:
    """Return the tasks that words name, in their order.

    Args:
        words: each `FILE.py:NAME`, a YAML of lm-evaluation-harness, or the name of a task that it ships.
        n_shot: of tasks of lm-evaluation-harness; by default as their YAML says.
        limit: their first items alone; by default all.

    Raises:
        CommandError: a word names no task, two tasks have one name, or a number that none of them takes.
        InvalidInput: a file or a task in it is faulty.
    """
    own = [word for word in words if _is_python(word)]
    if len(own) == len(words) and (n_shot is not None or limit is not None):
        raise CommandError(
            place="--n-shot" if n_shot is not None else "--limit",
            found="only tasks of Python files, which have such numbers of their own",
            wanted="a task of lm-evaluation-harness",
            remedy="Leave it out, or change the task in its file.",
        )
    tasks = [_of_file(word) if _is_python(word) else _of_harness(word, n_shot, limit) for word in words]
    repeated = [name for name, n in Counter(task.name for task in tasks).items() if n > 1]
    if repeated:
        raise CommandError(
            place=PLACE,
            found=f"{repeated[0]!r} twice",
            wanted="tasks of different names",
            remedy="Give one of them another `name`, or leave it out.",
        )
    return tasks


def folders_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return where the Python files lie, for the processes that import them."""
    files = [Path(word.rpartition(":")[0]) for word in words if _is_python(word)]
    return tuple(dict.fromkeys(str(file.resolve().parent) for file in files))


def _is_python(word: str) -> bool:
    return word.rpartition(":")[0].endswith(".py") or word.endswith(".py")


def _of_file(word: str) -> Task:
    file, _, name = word.rpartition(":")
    if not file.endswith(".py"):
        file, name = word, ""
    path = Path(file)
    parse(path, read(path))
    try:
        found = vars(import_file(path))
    except (Exception, SystemExit) as error:
        raise InvalidInputs(as_faults(path, error)) from error
    known = [each for each, value in found.items() if is_task(value)]
    if name in known:
        task: Task = found[name]
        return task
    what = "no name" if not name else type(found[name]).__name__ if name in found else f"no {name!r} in it"
    raise CommandError(
        place=f"{PLACE} {word}",
        found=what,
        wanted=f"{file}:NAME of a task" + (f": {', '.join(known)}" if known else "; the file has none"),
        remedy=closest(name, known) if name else "Name one of them.",
    )


def is_task(value: Any) -> bool:
    """Say whether a value has what every task has."""
    return (
        is_dataclass(value)
        and not isinstance(value, type)
        and all(hasattr(type(value), member) or hasattr(value, member) for member in MEMBERS)
    )


def _of_harness(word: str, n_shot: int | None, limit: int | None) -> Harness:
    path = Path(word)
    is_yaml = path.suffix in {".yaml", ".yml"}
    name = task_named_in(path) if is_yaml else word
    folder = str(path.parent) if is_yaml else ""
    try:
        said = find_task(name, folder).config.get("num_fewshot")
        shots = int(said or 0) if n_shot is None else n_shot
        return Harness(task=name, n_shot=shots, limit=limit or 0, include_path=folder)
    except SpecError as error:
        if is_yaml:
            raise
        raise type(error)(
            place=f"{PLACE} {word}", found=error.found, wanted=error.wanted, remedy=error.remedy
        ) from error
