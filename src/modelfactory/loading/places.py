"""Where in an author's files a fault lies: the file and the line that gave the value."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modelfactory.errors import InvalidInput, InvalidInputs

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

Span = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column, as both the compiler and the parser count them."""
PACKAGE = Path(__file__).parents[1]


class Step(NamedTuple):
    """One call on the way to a fault."""

    frame: types.FrameType
    line: int
    instruction: int

    @property
    def span(self) -> Span:
        """What of the source is being executed."""
        positions = self.frame.f_code.co_positions()
        return next(islice(positions, self.instruction // 2, None), (None,) * 4)


def steps_to_here() -> Iterator[Step]:
    """Yield the calls that are going on, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield Step(frame, frame.f_lineno, frame.f_lasti)
        frame = frame.f_back


def steps_to(error: BaseException) -> list[Step]:
    """Return the calls that an exception went through, the innermost first."""
    steps, trace = [], error.__traceback__
    while trace is not None:
        steps.append(Step(trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    return steps[::-1]


def flattened(error: InvalidInput) -> Iterator[InvalidInput]:
    """Yield the single faults behind an error."""
    if isinstance(error, InvalidInputs):
        for inner in error.errors:
            yield from flattened(inner)
    else:
        yield error


class Places:
    """Lines of an experiment file and of the modules beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.resolve().parent
        self._calls: dict[Path, dict[Span, ast.Call]] = {}

    def shown(self, filename: str) -> Path | None:
        """Return an author's file as the user would name it; None for the files of libraries."""
        file = Path(filename).resolve()
        if file == self.path.resolve():
            return self.path
        if file.suffix != ".py" or not file.is_relative_to(self._folder) or file.is_relative_to(PACKAGE):
            return None
        inner = file.relative_to(self._folder)
        return None if "site-packages" in inner.parts else self.path.parent / inner

    def line(self, steps: Iterable[Step], words: str = "") -> str:
        """Return `file:line` of the innermost step in an author's file, or nothing.

        Args:
            steps: the innermost first.
            words: of the keywords of the call there, the first that is among them has the line.
        """
        for step in steps:
            if step.frame.f_code.co_name == "__post_init__":
                continue  # of a spec of the author's own: the value was given where it was made
            file = self.shown(step.frame.f_code.co_filename)
            if file is not None:
                return f"{file}:{self._keyword_line(file, step, words) or step.line}"
        return ""

    def _keyword_line(self, file: Path, step: Step, words: str) -> int:
        call = self._calls_of(file).get(step.span)
        given = {keyword.arg: keyword.value.lineno for keyword in call.keywords} if call is not None else {}
        return next((given[word] for word in re.findall(r"\w+", words) if word in given), 0)

    def _calls_of(self, file: Path) -> dict[Span, ast.Call]:
        if file not in self._calls:
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            self._calls[file] = {
                (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node for node in calls
            }
        return self._calls[file]

    def told(self, error: InvalidInput) -> list[InvalidInput]:
        """Return the single faults of an error that went through an author's file, each with its line."""
        steps = steps_to(error)
        return [at_line(fault, self.line(steps, fault.place)) for fault in flattened(error)]


def at_line(fault: InvalidInput, line: str) -> InvalidInput:
    """Return the same fault with `file:line` in front of its place."""
    place = f"{line}: {fault.place}" if line else fault.place
    return type(fault)(place=place, found=fault.found, wanted=fault.wanted, remedy=fault.remedy)
