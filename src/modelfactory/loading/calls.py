"""Calls in an experiment file against the signatures they name."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from modelfactory.errors import ExperimentError, closest

if TYPE_CHECKING:
    from pathlib import Path


class Calls(ast.NodeTransformer):
    """Hold keyword arguments against signatures; take out those that nobody knows."""

    def __init__(self, path: Path, names: dict[str, Any]) -> None:
        self.path = path
        self.names = names
        self.faults: list[ExperimentError] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Check one call whose target is imported from this package."""
        self.generic_visit(node)
        target = self._target(node.func)
        parameters = _parameters(target)
        if parameters is None:
            return node
        given = [keyword.arg for keyword in node.keywords if keyword.arg]
        for name in [name for name in given if name not in parameters]:
            self._fault(node, target, f"an unknown field {name!r}", closest(name, parameters))
        node.keywords = [keyword for keyword in node.keywords if not keyword.arg or keyword.arg in parameters]
        unpacked = any(keyword.arg is None for keyword in node.keywords) or node.args
        missing = [name for name, needed in parameters.items() if needed and name not in given]
        if missing and not unpacked:
            self._fault(node, target, f"no {', '.join(missing)}", f"Give {', '.join(missing)}.")
        return node

    def _target(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._target(node.value), node.attr, None)
        return None

    def _fault(self, node: ast.Call, target: Any, found: str, remedy: str) -> None:
        place = f"{self.path}:{node.lineno}: {target.__name__}"
        wanted = f"the fields of {target.__name__}"
        self.faults.append(ExperimentError(place=place, found=found, wanted=wanted, remedy=remedy))


def _parameters(target: Any) -> dict[str, bool] | None:
    """Return the keyword parameters of a spec or family of this package: name -> must be given."""
    module = getattr(target, "__module__", None)
    if not callable(target) or not str(module).startswith("modelfactory"):
        return None
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return None
    return {p.name: p.default is p.empty for p in parameters}
