"""`--allow-unsandboxed`: programs that a model wrote may run without a sandbox where none can be made."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from modelfactory.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from modelfactory.evaluate import Task
    from modelfactory.loading import Reading

FIELD = "allow_unsandboxed"
"""Of tasks that execute what a model wrote; no part of what a task is."""


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the word."""
    parser.add_argument(
        "--allow-unsandboxed",
        action="store_true",
        help="where no sandbox can be made, run programs that a model wrote as yourself",
    )


def permitted(reading: Reading) -> Reading:
    """Return the experiments of a file with the permission in all their tasks that take it."""
    study = reading.study
    _refuse_without_effect([task for each in reading.sound for task in each.evaluations])
    sound = tuple(
        replace(each, evaluations=tuple(map(_permitted, each.evaluations))) for each in reading.sound
    )
    return replace(reading, sound=sound, study=None if study is None else replace(study, experiments=sound))


def permitted_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return tasks with the permission in all that take it."""
    _refuse_without_effect(tasks)
    return [_permitted(task) for task in tasks]


def _refuse_without_effect(tasks: Sequence[Task]) -> None:
    if tasks and not any(_executes(task) for task in tasks):
        raise CommandError(
            place="--allow-unsandboxed",
            found="no task that executes programs",
            wanted="one, such as CodeExecution",
            remedy="Leave it out.",
        )


def _executes(task: Any) -> bool:
    return any(field.name == FIELD for field in fields(task))


def _permitted(task: Any) -> Any:
    return replace(task, **{FIELD: True}) if _executes(task) else task
