"""Python source taken apart, never executed."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from functools import cached_property

MAX_SOURCE_BYTES = 1 << 18
"""A larger file is a table more often than a program, and takes seconds to take apart."""


def parse(source: str) -> ast.Module | None:
    """Return the syntax tree, or None where there is none: also for null bytes and nesting too deep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like say nothing about the syntax
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@dataclass(frozen=True)
class PythonSource:
    """A file that parses."""

    lines: tuple[str, ...]
    """Without line breaks; line n of the tree is `lines[n - 1]`."""
    tree: ast.Module

    @classmethod
    def of(cls, text: str) -> PythonSource | str:
        """Return the source in `text`, or the reason why there is none."""
        if len(text) > MAX_SOURCE_BYTES:
            return f"larger than {MAX_SOURCE_BYTES} bytes"
        # The parser ends lines at these only, str.splitlines() at form feeds and others as well.
        unified = text.replace("\r\n", "\n").replace("\r", "\n")
        tree = parse(unified)
        if tree is None:
            return "not Python that parses"
        if all(isinstance(statement, ast.Expr) for statement in tree.body):
            return "without any statement"  # JSON and plain words parse as well
        return cls(tuple(unified.split("\n")), tree)

    @cached_property
    def inside_strings(self) -> frozenset[int]:
        """Numbers of the lines, from 1, that lie in a string of several lines."""
        spans = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno
        ]
        return frozenset(number for span in spans for number in span)


def n_statements(tree: ast.AST) -> int:
    """Count statements that do something: not `pass`, `...`, a docstring or another bare constant."""
    return sum(1 for node in ast.walk(tree) if isinstance(node, ast.stmt) and not _does_nothing(node))


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
