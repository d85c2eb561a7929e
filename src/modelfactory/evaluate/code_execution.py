"""Generation: complete programs that are then executed against tests."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.sandbox import Limits, Outcome, require_sandbox, run_programs
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Completion
    from modelfactory.generate.language_model import LanguageModel

Style = Literal["HumanEval", "MBPP"]
STOPS: dict[Style, str] = {
    "HumanEval": r"\n(?=class|def|#|if|print)",
    "MBPP": r'\n(?=class|assert|"""|print|if|<\|/|```)',
}
"""Where a completion ends: Chen et al. 2021, arXiv:2107.03374, section 2; for MBPP what the BigCode
evaluation harness uses."""


class _Item(NamedTuple):
    row: Row
    prompt: str
    ids: tuple[int, ...]
    item_id: str


@dataclass(frozen=True, kw_only=True)
class CodeExecution:
    """Complete programs; each is executed with its tests in a sandbox, and the metric is pass@k.

    pass@k is the chance that of k samples one at least passes, estimated without bias from `n_samples` (Chen
    et al. 2021, arXiv:2107.03374, equation 1). A file in the style of HumanEval holds `prompt`, `test` (which
    defines `check`) and `entry_point`; in the style of MBPP `text` (or `prompt`), `test_list` and perhaps
    `test_setup_code` (or `test_imports`), and the model is shown text and first test in a docstring. Programs
    see the standard library only.
    """

    items: ItemFile
    style: Style
    """How the lines of the file are read."""
    max_new_tokens: int
    seed: int
    """Draws the samples."""
    n_samples: int = 1
    """Completions of each item; several need a temperature."""
    k: tuple[int, ...] = (1,)
    """pass@k is told for each; the first is the metric."""
    temperature: float = 0.0
    """0: greedy."""
    timeout_s: float = 3.0
    """Seconds after which a program is killed; a slower machine may fail what a faster passes."""
    memory_bytes: int = 512 * 1024**2
    """Address space of each process of a program."""
    n_workers: int = not_identity(default=2)
    """Programs that run at once."""
    allow_unsandboxed: bool = not_identity(default=False)
    """Where no sandbox can be made, run what the model wrote as yourself: it can do all that you can."""
    name: str = "code_execution"
    margin: float = not_identity(default=0.02)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(
            self, max_new_tokens=self.max_new_tokens, n_samples=self.n_samples, n_workers=self.n_workers
        )
        fits = bool(self.k) and all(1 <= k <= self.n_samples for k in self.k)
        wanted = f"numbers from 1 to n_samples = {self.n_samples}"
        require(fits, place="CodeExecution.k", found=self.k, wanted=wanted)
        is_meant = self.temperature > 0 or (self.temperature == 0 and self.n_samples == 1)
        wanted = "at least 0" if self.n_samples == 1 else "above 0, else all samples of an item are equal"
        require(is_meant, place="CodeExecution.temperature", found=self.temperature, wanted=wanted)
        self._limits()

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """The file it reads in place of documents."""
        return {"items": self.items}

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return f"pass_at_{self.k[0]}"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "share"

    @property
    def higher_is_better(self) -> bool:
        """A better model writes more that passes."""
        return True

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Look at every line, and for a sandbox: before anything is trained.

        Raises:
            SourceError: a line lacks what its style has.
            SandboxMissing: programs cannot be sandboxed here, and it is not allowed to do without.
        """
        del name
        for row in rows:
            assembled(row, self.style, "")
        if not self.allow_unsandboxed:
            require_sandbox()

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode the prompts."""
        rows = documents["items"]
        prompts = [prompt_of(row, self.style) for row in rows]
        encoded = zip(rows, prompts, tokenizer.encode_batch(prompts), strict=True)
        items = tuple(
            _Item(row, prompt, tuple(ids), row.item_id(number))
            for number, (row, prompt, ids) in enumerate(encoded)
        )
        return Prepared(items=items, skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Generate, then execute."""
        from modelfactory.generate.sampling import Sampling

        sampling = Sampling(
            max_new_tokens=self.max_new_tokens,
            stop_pattern=STOPS[self.style],
            temperature=self.temperature,
            seed=self.seed,
        )
        asked = [item.ids for item in prepared.items for _ in range(self.n_samples)]
        made = list(model.generate_from(asked, sampling))
        rows = [item.row for item in prepared.items for _ in range(self.n_samples)]
        ran = iter(zip(made, self.executed(rows, [one.text for one in made]), strict=True))
        outcomes = [self._outcome(item, list(islice(ran, self.n_samples))) for item in prepared.items]
        return Answers(outcomes=tuple(outcomes), facts=self._facts(outcomes))

    def executed(self, rows: Sequence[Row], completions: Sequence[str]) -> list[Outcome]:
        """Execute one completion for each row.

        Raises:
            SandboxMissing: no sandbox can be made here, and it is not allowed to do without.
        """
        programs = [assembled(row, self.style, text) for row, text in zip(rows, completions, strict=True)]
        return run_programs(
            programs, self._limits(), n_workers=self.n_workers, allow_unsandboxed=self.allow_unsandboxed
        )

    def _limits(self) -> Limits:
        return Limits(wall_s=self.timeout_s, memory_bytes=self.memory_bytes)

    def _outcome(self, item: _Item, ran: Sequence[tuple[Completion, Outcome]]) -> ItemOutcome:
        n_passed = sum(outcome.passed for _, outcome in ran)
        detail: dict[str, Any] = {
            **item.row.where,
            "prompt": item.prompt,
            "n_tokens_cut": ran[0][0].n_cut,
            "n_passed": n_passed,
            "samples": [
                {
                    "completion": made.text,
                    "finish": made.finish,
                    "n_tokens": len(made.ids),
                    "verdict": outcome.verdict,
                    "hit": outcome.hit,
                    "stderr": outcome.stderr,
                }
                for made, outcome in ran
            ],
        }
        value = pass_at_k(self.n_samples, n_passed, self.k[0])
        return ItemOutcome(item.item_id, item.row.identity, value, 1.0, detail)

    def _facts(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Any]:
        passed = [outcome.detail["n_passed"] for outcome in outcomes]
        samples = [sample for outcome in outcomes for sample in outcome.detail["samples"]]
        return {
            "pass_at_k": {str(k): mean_pass_at_k(self.n_samples, passed, k) for k in self.k},
            "verdicts": dict(sorted(Counter(sample["verdict"] for sample in samples).items())),
            "n_items_with_cut_prompt": sum(outcome.detail["n_tokens_cut"] > 0 for outcome in outcomes),
        }


def prompt_of(row: Row, style: Style) -> str:
    """Return what the model is shown.

    Raises:
        SourceError: the line lacks a field.
    """
    if style == "HumanEval":
        return row.text("prompt")
    text = row.text("text" if "text" in row.values else "prompt")
    return f'"""\n{text}\n{_tests(row)[0]}\n"""\n'


def assembled(row: Row, style: Style, completion: str) -> str:
    """Return the whole program: what was shown, what was written, the tests.

    Raises:
        SourceError: the line lacks a field.
    """
    if style == "HumanEval":
        parts = [row.text("prompt") + completion, row.text("test"), f"check({row.text('entry_point')})"]
        return "\n".join(parts) + "\n"
    setup = row.values.get("test_setup_code") or "\n".join(row.values.get("test_imports") or [])
    return "\n".join([prompt_of(row, style) + completion, setup, *_tests(row)]) + "\n"


def _tests(row: Row) -> list[str]:
    tests = row.value("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise row.fault(f"test_list = {tests!r}", "a list of at least one assertion")
    return tests


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k where `c` of `n` samples passed.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1), in whole numbers until the last.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(n: int, passed: Iterable[int], k: int) -> float:
    """Return the mean of pass@k over items, of each of which `n` samples were taken."""
    values = [pass_at_k(n, c, k) for c in passed]
    return math.fsum(values) / len(values)
