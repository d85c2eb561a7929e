"""Python source taken apart, never executed."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from functools import cached_property

MAX_SOURCE_BYTES = 1 << 18
"""A larger file is a table more often than a program, and takes seconds to take apart."""
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of statements that hold statements."""


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

    def text(self, first: int, last: int) -> str:
        """Return the lines `first` to `last`, from 1, both included."""
        return "\n".join(self.lines[first - 1 : last])

    @cached_property
    def inside_strings(self) -> frozenset[int]:
        """Numbers of the lines, from 1, that lie in a string of several lines."""
        found: set[int] = set()
        pending: list[ast.AST] = [self.tree]
        while pending:
            for node in ast.iter_child_nodes(pending.pop()):
                first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 1)
                if first == last:
                    continue  # nothing inside has several lines; most of a program ends here
                if isinstance(node, (ast.Constant, ast.JoinedStr)):
                    found.update(range(first, last + 1))
                else:
                    pending.append(node)
        return frozenset(found)


def n_statements(tree: ast.AST) -> int:
    """Count statements that do something, `tree` included: not `pass`, `...` or another bare constant."""
    count, pending = 0, [tree]
    while pending:
        node = pending.pop()
        count += isinstance(node, ast.stmt) and not _does_nothing(node)
        for block in BLOCKS:
            pending.extend(getattr(node, block, ()))
    return count


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
