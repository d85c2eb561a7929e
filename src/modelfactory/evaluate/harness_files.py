"""The YAML of a task of lm-evaluation-harness, read without importing lm-eval: which files it is made of."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from modelfactory.errors import SourceError, SpecError, closest

TASK_LINE = re.compile(r"^(task|group):[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """What a task is made of."""

    yaml: Path
    config: dict[str, Any]
    """Its content with all it includes; a `!function` is the text that names it."""
    files: tuple[Path, ...]
    """The YAML, what it includes, the modules of its functions, and its local data."""
    data_files: Any = field(default=None)
    """`dataset_kwargs.data_files` with absolute paths; None where the data is not local."""


def shipped_tasks() -> Path:
    """Return the folder of the tasks that come with lm-eval, without importing it.

    Raises:
        SpecError: lm-eval is not installed.
    """
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        raise SpecError(
            place="Harness",
            found="no lm-eval",
            wanted="lm-evaluation-harness",
            remedy="Install it: pip install 'modelfactory[harness]'.",
        )
    return Path(found.origin).parent / "tasks"


def find_task(task: str, include_path: str) -> TaskFiles:
    """Return the files of a task: of a folder of one's own, or of those that lm-eval ships.

    Raises:
        SpecError: no such task (the closest is named), or a group of several.
        SourceError: a file of it is missing or is no YAML.
    """
    shipped = shipped_tasks()
    if not include_path:
        return _shipped(task, shipped)
    folder = Path(include_path)
    if not folder.is_dir():
        raise SpecError(
            place="Harness.include_path",
            found=include_path,
            wanted="a folder with the YAML of a task",
            remedy="Paths are relative to the working directory.",
        )
    return _read(_yaml_of(task, folder))


@lru_cache(maxsize=256)
def _shipped(task: str, folder: Path) -> TaskFiles:
    """Read a task of lm-eval once a process: its folder holds 14,000 files, and nobody edits them."""
    return _read(_yaml_of(task, folder))


def _yaml_of(task: str, folder: Path) -> Path:
    # most tasks have their name as file name: looking there first saves reading 14,000 files
    near = [path for path in sorted(folder.rglob(f"{task}.yaml")) if ("task", task) in _names(path)]
    if near:
        return near[0]
    named = {pair: path for path in sorted(folder.rglob("*.yaml")) for pair in _names(path)}
    if ("task", task) in named:
        return named["task", task]
    known = [name for kind, name in named if kind == "task"]
    group = ("group", task) in named
    raise SpecError(
        place="Harness.task",
        found=f"the group {task!r}" if group else repr(task),
        wanted="the name of one task" + (f" in {folder}" if folder != shipped_tasks() else " of lm-eval"),
        remedy="Give each task of the group its own Harness." if group else closest(task, known),
    )


def _names(path: Path) -> list[tuple[str, str]]:
    return TASK_LINE.findall(path.read_text(encoding="utf-8", errors="replace"))


def _read(path: Path) -> TaskFiles:
    files: dict[Path, None] = {}
    config = _load(path, files)
    data = _data_files(config)
    files |= dict.fromkeys(Path(each) for each in _flat(data))
    for needed in files:
        if not needed.is_file():
            raise SourceError(
                place=str(path),
                found=f"no file {needed}",
                wanted="every file that the task names",
                remedy="Data files are relative to the working directory, includes to their YAML.",
            )
    return TaskFiles(yaml=path, config=config, files=tuple(files), data_files=data)


def _load(path: Path, files: dict[Path, None]) -> dict[str, Any]:
    """Return the content of a YAML over what it includes, and add what both are made of to `files`."""
    path = path.resolve()
    files[path] = None
    own = _parsed(path, files)
    includes = own.pop("include", [])
    merged: dict[str, Any] = {}
    for each in [includes] if isinstance(includes, str) else includes:
        if (inner := (path.parent / each).resolve()) not in files:
            merged |= _load(inner, files)
    return merged | own


def _parsed(path: Path, files: dict[Path, None]) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        """Names functions instead of importing them."""

    def function(_: Any, __: str, node: Any) -> str:
        module, _, _name = str(node.value).rpartition(".")
        if (beside := path.parent / f"{module}.py").is_file():
            files[beside] = None
        return f"!function {node.value}"

    Loader.add_multi_constructor("!", function)
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)  # noqa: S506 (a SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SourceError(
            place=str(path), found=f"no YAML ({error})", wanted="a task of lm-eval", remedy="Correct it."
        ) from error
    if not isinstance(found, dict):
        raise SourceError(
            place=str(path),
            found=type(found).__name__,
            wanted="a task of lm-eval, a mapping",
            remedy="Correct it.",
        )
    return found


def _data_files(config: dict[str, Any]) -> Any:
    """Return the local data of a task with absolute paths; None where there is none."""
    data = (config.get("dataset_kwargs") or {}).get("data_files")
    return _absolute(data) if data and not any("://" in each for each in _flat(data)) else None


def _absolute(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _absolute(each) for name, each in data.items()}
    if isinstance(data, list):
        return [_absolute(each) for each in data]
    return str(Path(data).resolve())


def _flat(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [path for each in data.values() for path in _flat(each)]
    if isinstance(data, list):
        return [path for each in data for path in _flat(each)]
    return [] if data is None else [str(data)]


def task_named_in(path: Path) -> str:
    """Return the name of the task that a YAML holds.

    Raises:
        SourceError: it cannot be read, or holds no task.
    """
    try:
        found = [name for kind, name in TASK_LINE.findall(path.read_text(encoding="utf-8")) if kind == "task"]
    except (OSError, UnicodeDecodeError) as error:
        near = closest(path.name, [each.name for each in path.parent.glob("*.y*ml")])
        raise SourceError(
            place=str(path), found=str(error), wanted="a YAML of lm-evaluation-harness", remedy=near
        ) from error
    if not found:
        raise SourceError(
            place=str(path), found="no line `task: NAME`", wanted="the YAML of one task", remedy="Name it."
        )
    return str(found[0])
