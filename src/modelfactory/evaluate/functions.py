"""Functions of Python files, and how much of them is shown to a model that is to complete them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from modelfactory.evaluate.documents import order
from modelfactory.evaluate.python_source import n_statements, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.evaluate.python_source import PythonSource

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Shown = Literal["beginning", "all but the end"]

MAX_PROMPT_BYTES: dict[Shown, int] = {"beginning": 1_024, "all but the end": 256}
"""A longer prompt is not asked about. Of a whole function little enough is shown for small contexts."""
WORD = re.compile(r"\w+|[^\w\s]")
"""A statement can be cut before each of these."""


class Function(NamedTuple):
    """A function as it is shown."""

    line: int
    prompt: str
    """The class's own line, if it is a method, then from `def` on, without white space at the end."""
    indentation: int
    """Characters before `def`."""


def functions_of(document_id: str, source: PythonSource, shown: Shown, seed: int) -> list[Function]:
    """Return the functions that can be asked about, in the order they are to be taken."""
    key = f"{seed}\n{document_id}"
    if shown == "beginning":
        found = [_beginning(header, node, source) for header, node in _definitions(source)]
    else:
        found = [_all_but_the_end(header, node, source, key) for header, node in _definitions(source)]
    asked = [function for function in found if function is not None]
    return sorted(asked, key=lambda function: order(seed, document_id, function.line))


def _definitions(source: PythonSource) -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions of a module, and those of its classes after the line that opens the class."""
    for node in source.tree.body:
        if isinstance(node, FunctionNode):
            yield "", node
        elif isinstance(node, ast.ClassDef) and source.lines[node.lineno - 1].endswith(":"):
            header = source.lines[node.lineno - 1] + "\n"
            yield from ((header, method) for method in node.body if isinstance(method, FunctionNode))


def _beginning(header: str, node: FunctionNode, source: PythonSource) -> Function | None:
    """Return what is shown of a function, or None where too little would be left to complete."""
    first = node.body[0]
    if first.lineno == node.lineno:
        return None
    prompt = header + source.text(node.lineno, _last_shown_line(first)).rstrip()
    if len(prompt.encode("utf-8")) > MAX_PROMPT_BYTES["beginning"]:
        return None
    shown = Function(node.lineno, prompt, node.col_offset)
    known = n_known(shown)
    return shown if 0 < known < n_statements(node) + bool(header) else None


def _last_shown_line(first: ast.stmt) -> int:
    """Show the first statement, if it is a simple one; of a block not even the beginning."""
    return first.lineno - 1 if hasattr(first, "body") else first.end_lineno or first.lineno


def n_known(function: Function) -> int:
    """Count the statements of a prompt; a signature alone parses once it has a body. 0: it never parses."""
    tree = parse(function.prompt) or parse(f"{function.prompt}\n{' ' * function.indentation} pass")
    return 0 if tree is None else n_statements(tree)


def _all_but_the_end(header: str, node: FunctionNode, source: PythonSource, key: str) -> Function | None:
    """Return a function up to a word within its last statement, or None where none can be cut.

    What is shown never parses by itself: an empty completion wins nothing, and closing what is open wins.
    """
    last = _last_statement(node)
    line = source.lines[last.lineno - 1]
    alone = last.lineno == last.end_lineno and not line[: last.col_offset].strip()
    if not alone or last.lineno == node.lineno or not n_statements(last):
        return None
    before = header + source.text(node.lineno, last.lineno - 1) + "\n"
    code = line[: len(line.encode("utf-8")[: last.end_col_offset].decode("utf-8", "ignore"))]
    cuts = [before + code[: word.start()].rstrip() for word in [*WORD.finditer(code)][1:]]
    for prompt in sorted(cuts, key=lambda cut: order(key, node.lineno, cut)):
        if len(prompt.encode("utf-8")) <= MAX_PROMPT_BYTES["all but the end"] and parse(prompt) is None:
            return Function(node.lineno, prompt, node.col_offset)
    return None


def _last_statement(node: FunctionNode) -> ast.stmt:
    """Return the last statement that holds no other, however deep it lies."""
    simple = [n for n in ast.walk(node) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
    return max(simple, key=lambda statement: (statement.lineno, statement.col_offset))
