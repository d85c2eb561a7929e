"""What the import statements of an experiment file bind, and those of them that fail."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from modelfactory.loading.raised import raised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.errors import InvalidInput
    from modelfactory.loading.places import Places


def imported_names(places: Places, tree: ast.Module) -> tuple[dict[str, Any], list[InvalidInput]]:
    """Execute the imports at the top level alone, name by name.

    Returns:
        What each name means, so that calls can be held against signatures; and a fault for each name that
        cannot be imported.
    """
    names: dict[str, Any] = {"__name__": places.path.stem}
    faults: dict[str, InvalidInput] = {}
    for node in _single_imports(tree):
        try:
            exec(compile(ast.Module([node], []), str(places.path), "exec"), names)  # noqa: S102
        except ImportError as error:
            fault = raised(places, error)
            faults[str(fault)] = fault
        except (Exception, SystemExit):  # noqa: BLE001, S112 - told by the execution of the whole file
            continue
    return names, list(faults.values())


def _single_imports(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (ast.copy_location(ast.Import([alias]), node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                single = ast.ImportFrom(node.module, [alias], node.level)
                yield ast.copy_location(single, alias)
