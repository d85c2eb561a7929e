"""Generation: complete a held-out function so that it parses."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, order, require_items
from modelfactory.evaluate.python_source import n_statements, parse
from modelfactory.evaluate.rounds import candidates_of, in_rounds
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelfactory.evaluate.python_source import PythonSource
    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Completion
    from modelfactory.generate.language_model import LanguageModel

FUNCTION_ENDS = r"\n(?=[^\s#)\]}])"
"""A line that begins in the first column ends the function, unless it is a comment or closes a bracket."""
MAX_PROMPT_BYTES = 1_024
"""Functions with a longer beginning are not asked about."""


class _Function(NamedTuple):
    line: int
    prompt: str
    """From `def` on, without its indentation and without white space at the end."""


class _Item(NamedTuple):
    item_id: str
    document_id: str
    path: str
    line: int
    prompt: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CompleteFunction:
    """Complete functions of held-out Python files; the metric is the share that parses.

    The prompt is a function's signature and its docstring, or its first statement where it has none. The
    model writes, greedily, until the function ends (a line that begins in the first column), the end-of-text
    token, or max_new_tokens; in the last case a line it did not finish is left out. An item is won if prompt
    and completion parse with `ast.parse` *and* the completion adds a statement other than `pass`, `...` or a
    bare string: an empty completion of a prompt that parses wins nothing. Nothing is executed.
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
        taken = in_rounds(sampled.found)[: self.n_items]
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

        sampling = Sampling(max_new_tokens=self.max_new_tokens, stop_pattern=FUNCTION_ENDS)
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
        nodes = [n for n in ast.walk(source.tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        found = [function for node in nodes if (function := _beginning(node, source))]
        return sorted(found, key=lambda function: order(self.seed, document.document_id, function.line))


def _beginning(node: ast.FunctionDef | ast.AsyncFunctionDef, source: PythonSource) -> _Function | None:
    """Return the prompt of a function, or None where too little would be left to complete."""
    first = node.body[0]
    whole = _dedented(source, node.lineno, node.end_lineno or node.lineno)
    shown = _dedented(source, node.lineno, _last_shown_line(first))
    tree = parse(whole)
    if first.lineno == node.lineno or tree is None or len(shown.encode("utf-8")) > MAX_PROMPT_BYTES:
        return None
    return _Function(node.lineno, shown) if n_statements(tree) > n_known(shown) else None


def _dedented(source: PythonSource, first: int, last: int) -> str:
    return textwrap.dedent("\n".join(source.lines[first - 1 : last])).rstrip()


def _last_shown_line(first: ast.stmt) -> int:
    """Show the first statement, if it is a simple one; of a block not even the beginning."""
    return first.lineno - 1 if hasattr(first, "body") else first.end_lineno or first.lineno


def n_known(prompt: str) -> int:
    """Count the statements a prompt has before it is completed; a signature alone does not parse."""
    tree = parse(prompt)
    return 1 if tree is None else n_statements(tree)


def _item(document: Document, function: _Function, ids: Iterable[int]) -> _Item:
    return _Item(
        item_id=f"{document.document_id[:16]}-{function.line}-{order(function.prompt)[:16]}",
        document_id=document.document_id,
        path=document.path,
        line=function.line,
        prompt=function.prompt,
        ids=tuple(ids),
    )


def kept_text(completion: Completion) -> str:
    """Leave out a line that the model could not finish for want of tokens."""
    if completion.finish != "length":
        return completion.text
    return completion.text[: completion.text.rfind("\n") + 1]


def is_won(prompt: str, completion: str) -> bool:
    """Say whether both parse together and the completion adds a statement that does something."""
    tree = parse(prompt + completion)
    return tree is not None and n_statements(tree) > n_known(prompt)


def _outcome(item: _Item, made: Completion) -> ItemOutcome:
    text = kept_text(made)
    detail: dict[str, Any] = {
        "path": item.path,
        "line": item.line,
        "prompt": item.prompt,
        "completion": text,
        "parses": parse(item.prompt + text) is not None,
        "finish": made.finish,
        "n_characters": len(text),
        "n_tokens": len(made.ids),
        "n_tokens_cut": made.n_cut,
    }
    won = float(is_won(item.prompt, text))
    return ItemOutcome(item.item_id, item.document_id, won, 1.0, detail)
