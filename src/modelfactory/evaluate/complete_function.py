"""Generation: complete a held-out function so that it parses."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, order, require_items
from modelfactory.evaluate.functions import Function, Shown, functions_of, n_known
from modelfactory.evaluate.python_source import n_statements, parse
from modelfactory.evaluate.rounds import candidates_of, in_rounds
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelfactory.evaluate.python_source import PythonSource
    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Completion
    from modelfactory.generate.language_model import LanguageModel

STOPS: dict[Shown, str] = {
    "beginning": r"\n(?=[^\s#)\]}])",
    "all but the end": r"(?<=[^,(\[{\\+\-*/%|&=<>])\n",
}
"""Where generation can stop: a line that begins in the first column ends every function; the end of a line
ends a statement, unless the line ends in an open bracket, a comma, an operator or a backslash."""
CONTINUES = tuple("#)]}")
"""A line that begins with these ends nothing, wherever it begins: a comment, the end of a bracket."""


class _Item(NamedTuple):
    item_id: str
    document_id: str
    path: str
    function: Function
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CompleteFunction:
    """Complete functions of held-out Python files; the metric is the share of completions that parse.

    `shown="beginning"`: the prompt is a function's signature and its docstring, or its first statement where
    it has none, after the first line of its class if it is a method. The model writes until the function ends
    (a line that begins no further right than `def`), the end-of-text token, or max_new_tokens; in the last
    case a line it did not finish is left out. A completion wins if prompt and completion parse with
    `ast.parse` *and* it adds a statement other than `pass`, `...` or a bare string.

    `shown="all but the end"`: the prompt is a short function up to a word within its last statement, at a
    place where it does not parse. The model writes until that statement's line ends, and wins if the function
    then parses; a statement not ended within max_new_tokens is lost. For models that have seen little: they
    write no whole body that parses, and the metric would be 0 for all of them.

    The value of an item is the share of its samples that win. Nothing is executed. Functions inside functions
    are not asked about.
    """

    dataset: Dataset
    n_items: int
    max_new_tokens: int
    seed: int
    """Draws the documents, functions and samples; the draws are the same for every model."""
    shown: Shown = "beginning"
    """How much of a function is given."""
    n_samples: int = 1
    """Completions of each function; several need a temperature."""
    temperature: float = 0.0
    """0: greedy, in which models that have seen little repeat one word without end."""
    name: str = "complete_function"
    margin: float = not_identity(default=0.05)
    """Share of completions below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(
            self, n_items=self.n_items, max_new_tokens=self.max_new_tokens, n_samples=self.n_samples
        )
        wanted = "at least 0" if self.n_samples == 1 else "above 0, else all samples of an item are equal"
        is_meant = self.temperature > 0 or (self.temperature == 0 and self.n_samples == 1)
        require(is_meant, place="CompleteFunction.temperature", found=self.temperature, wanted=wanted)

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

        sampling = Sampling(
            max_new_tokens=self.max_new_tokens,
            stop_pattern=STOPS[self.shown],
            temperature=self.temperature,
            seed=self.seed,
        )
        asked = [item.ids for item in prepared.items for _ in range(self.n_samples)]
        made = iter(model.generate_from(asked, sampling))
        samples = [list(islice(made, self.n_samples)) for _ in prepared.items]
        outcomes = [self._outcome(item, own) for item, own in zip(prepared.items, samples, strict=True)]
        return Answers(outcomes=tuple(outcomes), facts=_facts(outcomes, samples))

    def _functions(self, document: Document, source: PythonSource) -> list[Function]:
        return functions_of(document.document_id, source, self.shown, self.seed)

    def _outcome(self, item: _Item, made: Sequence[Completion]) -> ItemOutcome:
        samples = [judged(item.function, completion, self.shown) for completion in made]
        detail: dict[str, Any] = {
            "path": item.path,
            "line": item.function.line,
            "prompt": item.function.prompt,
            "n_tokens_cut": made[0].n_cut,
            "samples": samples,
        }
        value = sum(sample["won"] for sample in samples) / len(samples)
        return ItemOutcome(item.item_id, item.document_id, value, 1.0, detail)


def _item(document: Document, function: Function, ids: Iterable[int]) -> _Item:
    return _Item(
        item_id=f"{document.document_id[:16]}-{function.line}-{order(function.prompt)[:16]}",
        document_id=document.document_id,
        path=document.path,
        function=function,
        ids=tuple(ids),
    )


def _facts(outcomes: Sequence[ItemOutcome], samples: Sequence[Sequence[Completion]]) -> dict[str, int]:
    written = [sample["completion"] for outcome in outcomes for sample in outcome.detail["samples"]]
    return {
        "n_characters": sum(map(len, written)),
        "n_items_with_cut_prompt": sum(own[0].n_cut > 0 for own in samples),
        "n_items_past_the_context": sum(any(one.n_moves for one in own) for own in samples),
    }


def judged(function: Function, made: Completion, shown: Shown) -> dict[str, Any]:
    """Return what is kept of a completion, with whether it won."""
    if shown == "beginning":
        text = body_of(made, function.indentation)
        won = is_won(function, text)
    else:
        text = made.text
        won = made.finish != "length" and parse(function.prompt + text) is not None
    return {"completion": text, "won": won, "finish": made.finish, "n_tokens": len(made.ids)}


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


def is_won(function: Function, body: str) -> bool:
    """Say whether both parse together and the completion adds a statement that does something."""
    tree = parse(function.prompt + body)
    return tree is not None and n_statements(tree) > n_known(function)
