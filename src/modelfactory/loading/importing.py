"""An experiment file as text, as a tree, and as a module."""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import ExperimentError, closest

if TYPE_CHECKING:
    import types


def read(path: Path) -> str:
    """Return the text of an experiment file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = closest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise ExperimentError(
            place=str(path), found=str(error), wanted="a Python file in UTF-8", remedy=near
        ) from error


def parse(path: Path, text: str) -> ast.Module:
    """Return the syntax tree of an experiment file."""
    try:
        return ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        raise ExperimentError(
            place=f"{path}:{line}", found=f"{type(error).__name__}: {error}", wanted="Python", remedy=""
        ) from error


def import_file(path: Path) -> types.ModuleType:
    """Import the file by its stem, afresh each time."""
    folder, name = str(path.resolve().parent), path.stem
    refuse_hidden(path, name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def refuse_hidden(path: Path, name: str) -> None:
    """A file named like another module would be imported in its place, or the other in this one's."""
    loaded = sys.modules.get(name)
    other = getattr(loaded, "__file__", None) if loaded is not None else None
    hidden = loaded is not None and (other is None or Path(other).resolve() != path.resolve())
    other = other or _installed(name)
    hidden = hidden or (loaded is None and other is not None)
    if name in sys.stdlib_module_names or hidden or not name.isidentifier():
        raise ExperimentError(
            place=str(path),
            found=f"the module name {name!r}" + (f", which {other or 'Python itself'} has" if hidden else ""),
            wanted="a Python name that no other module has",
            remedy="Rename the file.",
        )


def _installed(name: str) -> str | None:
    """Return where a library of this name lies, imported or not: a worker may import it later."""
    found = PathFinder.find_spec(name, [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return None if found is None else found.origin or str(found.submodule_search_locations)
