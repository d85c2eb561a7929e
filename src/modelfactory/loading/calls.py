"""Calls in an experiment file against the signatures they name."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from modelfactory.errors import ExperimentError, closest, nearest

if TYPE_CHECKING:
    from pathlib import Path


class Calls(ast.NodeTransformer):
    """Hold keyword arguments against signatures; take out or rename those that nobody knows."""

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
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in parameters:
                self._unknown(node, keyword, target, parameters)
        node.keywords = [each for each in node.keywords if not each.arg or each.arg in parameters]
        unpacked = any(keyword.arg is None for keyword in node.keywords) or node.args
        missing = [name for name in _free(node, parameters) if parameters[name]]
        if missing and not unpacked:
            remedy = f"Give {', '.join(missing)}."
            self._fault(node.lineno, target, f"no {', '.join(missing)}", remedy)
        return node

    def _unknown(
        self, node: ast.Call, keyword: ast.keyword, target: Any, parameters: dict[str, bool]
    ) -> None:
        """Tell an unknown keyword; where it must mean a field that is missing, go on as if it said so."""
        name = str(keyword.arg)
        self._fault(keyword.lineno, target, f"an unknown field {name!r}", closest(name, parameters))
        near = nearest(name, parameters)
        if near in _free(node, parameters) and parameters[near]:
            keyword.arg = near

    def _target(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._target(node.value), node.attr, None)
        return None

    def _fault(self, line: int, target: Any, found: str, remedy: str) -> None:
        place = f"{self.path}:{line}: {target.__name__}"
        wanted = f"the fields of {target.__name__}"
        self.faults.append(ExperimentError(place=place, found=found, wanted=wanted, remedy=remedy))


def _free(node: ast.Call, parameters: dict[str, bool]) -> list[str]:
    """Return the parameters that a call gives no value."""
    given = {keyword.arg for keyword in node.keywords}
    return [name for name in parameters if name not in given]


def _parameters(target: Any) -> dict[str, bool] | None:
    """Return the keyword parameters of a spec or family of this package: name -> must be given."""
    module = getattr(target, "__module__", None)
    if not callable(target) or not str(module).startswith("modelfactory"):
        return None
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return None
    return {p.name: p.default is p.empty for p in parameters}
