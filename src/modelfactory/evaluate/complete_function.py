"""Generation: complete a held-out function so that it parses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, order, require_items
from modelfactory.evaluate.python_source import n_statements, parse
from modelfactory.evaluate.rounds import candidates_of, in_rounds
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from modelfactory.evaluate.python_source import PythonSource
    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Completion
    from modelfactory.generate.language_model import LanguageModel

FIRST_COLUMN = r"\n(?=[^\s#)\]}])"
"""Where generation can stop: a line that begins in the first column ends every function."""
CONTINUES = tuple("#)]}")
"""A line that begins with these ends nothing, wherever it begins: a comment, the end of a bracket."""
MAX_PROMPT_BYTES = 1_024
"""Functions with a longer beginning are not asked about."""


class _Function(NamedTuple):
    line: int
    prompt: str
    """The class's own line, if it is a method, then from `def` on, without white space at the end."""
    indentation: int
    """Characters before `def`."""


class _Item(NamedTuple):
    item_id: str
    document_id: str
    path: str
    function: _Function
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CompleteFunction:
    """Complete functions of held-out Python files; the metric is the share that parses.

    The prompt is a function's signature and its docstring, or its first statement where it has none, after
    the first line of its class if it is a method. The model writes, greedily, until the function ends (a line
    that begins no further right than `def`), the end-of-text token, or max_new_tokens; in the last case a
    line it did not finish is left out. An item is won if prompt and completion parse with `ast.parse` *and*
    the completion adds a statement other than `pass`, `...` or a bare string: an empty completion of a prompt
    that parses wins nothing. Nothing is executed. Functions inside functions are not asked about.
    """

    dataset: Dataset
    n_items: int
    max_new_tokens: int
    seed: int
    """Draws the documents and functions; generation is greedy."""
    name: str = "complete_function"
    margin: float = not_identity(default=0.05)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(self, n_items=self.n_items, max_new_tokens=self.max_new_tokens)

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return "parse_rate"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "share"

    @property
    def higher_is_better(self) -> bool:
        """A better model writes more that parses."""
        return True

    def prepare(self, documents: Iterable[Document], tokenizer: Encoder) -> Prepared:
        """Find functions and encode their beginnings.

        Raises:
            SourceError: there are too few.
        """
        sampled = candidates_of(documents, self.n_items, f"{self.seed}", self._functions)
        taken = list(islice(in_rounds(sampled.found), self.n_items))
        require_items(
            len(taken),
            self.n_items,
            place=self.name,
            what="functions to complete",
            n_documents=sampled.n_documents,
            skipped=sampled.skipped,
        )
        encoded = tokenizer.encode_batch([function.prompt for _, function in taken])
        items = tuple(
            _item(found.document, function, ids)
            for (found, function), ids in zip(taken, encoded, strict=True)
        )
        return Prepared(items=items, skipped=sampled.skipped)

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Generate, then parse."""
        from modelfactory.generate.sampling import Sampling

        sampling = Sampling(max_new_tokens=self.max_new_tokens, stop_pattern=FIRST_COLUMN)
        completions = model.generate_from([item.ids for item in prepared.items], sampling)
        outcomes = [_outcome(item, made) for item, made in zip(prepared.items, completions, strict=True)]
        facts = {
            "n_characters": sum(outcome.detail["n_characters"] for outcome in outcomes),
            "n_items_with_cut_prompt": sum(made.n_cut > 0 for made in completions),
            "n_items_past_the_context": sum(made.n_moves > 0 for made in completions),
        }
        return Answers(outcomes=tuple(outcomes), facts=facts)

    def _functions(self, document: Document, source: PythonSource) -> list[_Function]:
        """Return the functions that can be asked about, in the order they are to be taken."""
        found = [
            shown for header, node in _definitions(source) if (shown := _beginning(header, node, source))
        ]
        return sorted(found, key=lambda function: order(self.seed, document.document_id, function.line))


def _definitions(source: PythonSource) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module, and those of its classes after the line that opens the class."""
    for node in source.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield "", node
        elif isinstance(node, ast.ClassDef) and source.lines[node.lineno - 1].endswith(":"):
            header = source.lines[node.lineno - 1] + "\n"
            methods = (n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
            yield from ((header, method) for method in methods)


def _beginning(
    header: str, node: ast.FunctionDef | ast.AsyncFunctionDef, source: PythonSource
) -> _Function | None:
    """Return what is shown of a function, or None where too little would be left to complete."""
    first = node.body[0]
    if first.lineno == node.lineno:
        return None
    prompt = header + source.text(node.lineno, _last_shown_line(first)).rstrip()
    if len(prompt.encode("utf-8")) > MAX_PROMPT_BYTES:
        return None
    shown = _Function(node.lineno, prompt, node.col_offset)
    known = n_known(shown)
    return shown if 0 < known < n_statements(node) + bool(header) else None


def _last_shown_line(first: ast.stmt) -> int:
    """Show the first statement, if it is a simple one; of a block not even the beginning."""
    return first.lineno - 1 if hasattr(first, "body") else first.end_lineno or first.lineno


def n_known(function: _Function) -> int:
    """Count the statements of a prompt; a signature alone parses once it has a body. 0: it never parses."""
    tree = parse(function.prompt) or parse(f"{function.prompt}\n{' ' * function.indentation} pass")
    return 0 if tree is None else n_statements(tree)


def _item(document: Document, function: _Function, ids: Iterable[int]) -> _Item:
    return _Item(
        item_id=f"{document.document_id[:16]}-{function.line}-{order(function.prompt)[:16]}",
        document_id=document.document_id,
        path=document.path,
        function=function,
        ids=tuple(ids),
    )


def body_of(completion: Completion, indentation: int) -> str:
    """Return what belongs to the function, without a line that was not finished for want of tokens."""
    first, *lines = completion.text.split("\n")
    kept = [first]
    for line in lines:
        stripped = line.lstrip()
        if stripped and len(line) - len(stripped) <= indentation and not stripped.startswith(CONTINUES):
            return "\n".join(kept)
        kept.append(line)
    return "\n".join(kept[:-1] if completion.finish == "length" else kept)


def is_won(function: _Function, body: str) -> bool:
    """Say whether both parse together and the completion adds a statement that does something."""
    tree = parse(function.prompt + body)
    return tree is not None and n_statements(tree) > n_known(function)


def _outcome(item: _Item, made: Completion) -> ItemOutcome:
    function = item.function
    body = body_of(made, function.indentation)
    detail: dict[str, Any] = {
        "path": item.path,
        "line": function.line,
        "prompt": function.prompt,
        "completion": body,
        "parses": parse(function.prompt + body) is not None,
        "finish": made.finish,
        "n_characters": len(body),
        "n_tokens": len(made.ids),
        "n_tokens_cut": made.n_cut,
    }
    return ItemOutcome(item.item_id, item.document_id, float(is_won(function, body)), 1.0, detail)
