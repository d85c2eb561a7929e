"""Filters: each says which documents stay, and names why the others do not."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modelfactory.data.frame import computed
from modelfactory.errors import StageFailed
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from modelfactory.data.frame import Expression

NOT_ALPHANUMERIC = r"[^\p{L}\p{M}\p{N}]"
"""Marks count as alphanumeric: without their vowel signs, words of Hindi or Thai would fall short."""


@dataclass(frozen=True, kw_only=True)
class MinLength:
    """Keeps documents of at least `n_bytes` bytes of UTF-8."""

    n_bytes: int

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        _require_positive(self, "n_bytes", self.n_bytes)

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        return f"shorter than {self.n_bytes} bytes"

    def keeps(self, documents: pa.Table) -> pa.Array:
        """Return a boolean for each document."""
        return _where(documents, lambda daft: daft.functions.length_bytes(daft.col("text")) >= self.n_bytes)


@dataclass(frozen=True, kw_only=True)
class MaxLength:
    """Keeps documents of at most `n_bytes` bytes of UTF-8."""

    n_bytes: int

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        _require_positive(self, "n_bytes", self.n_bytes)

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        return f"longer than {self.n_bytes} bytes"

    def keeps(self, documents: pa.Table) -> pa.Array:
        """Return a boolean for each document."""
        return _where(documents, lambda daft: daft.functions.length_bytes(daft.col("text")) <= self.n_bytes)


@dataclass(frozen=True, kw_only=True)
class MaxLineLength:
    """Keeps documents without a line of more than `n_characters` code points; lines end at a newline."""

    n_characters: int

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        _require_positive(self, "n_characters", self.n_characters)

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        return f"a line longer than {self.n_characters} characters"

    def keeps(self, documents: pa.Table) -> pa.Array:
        """Return a boolean for each document."""
        return _where(documents, lambda daft: _longest_line(daft) <= self.n_characters)


@dataclass(frozen=True, kw_only=True)
class MinAlphanumeric:
    """Keeps documents of which at least `share` of all code points are letters, marks or digits."""

    share: float
    """From 0 to 1; white space counts among the others."""

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        require(
            isinstance(self.share, float) and 0 < self.share <= 1,
            place="MinAlphanumeric.share",
            found=self.share,
            wanted="a share above 0 and at most 1",
        )

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        return f"less than {self.share:g} alphanumeric"

    def keeps(self, documents: pa.Table) -> pa.Array:
        """Return a boolean for each document."""
        return _where(documents, lambda daft: _alphanumeric_share(daft) >= self.share)


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Keeps documents for which the author's own function of the text returns True."""

    function: Callable[[str], bool]
    """At the top level of a module, a function of the text alone: the same text, the same answer."""

    def __post_init__(self) -> None:
        """Check types."""
        check_types(self)

    @property
    def name(self) -> str:
        """Module and name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        return f"refused by {self.name}"

    def keeps(self, documents: pa.Table) -> pa.Array:
        """Return a boolean for each document.

        Raises:
            StageFailed: the function raised or returned no boolean; names the document.
        """
        answers = computed(
            {"text": documents["text"]},
            {
                "answer": lambda daft: daft.func(self._answer, return_dtype=daft.DataType.string())(
                    daft.col("text")
                )
            },
        )["answer"].to_pylist()
        for answer, source, path in zip(
            answers, documents["source"].to_pylist(), documents["path"].to_pylist(), strict=True
        ):
            if answer not in ("yes", "no"):
                raise StageFailed(f"filter {self.name}, on document {path} of {source}: {answer}")
        return pa.array([answer == "yes" for answer in answers], pa.bool_())

    def _answer(self, text: str) -> str:
        try:
            answer: object = self.function(text)
        except Exception as error:  # noqa: BLE001 - the author's code; becomes the failure of the stage
            line = traceback.extract_tb(error.__traceback__)[-1]
            return f"it raised {type(error).__name__}: {error} ({line.filename}:{line.lineno})"
        if answer is True or answer is False:
            return "yes" if answer else "no"
        return f"it returned {answer!r:.100}, wanted True or False"


Filter = MinLength | MaxLength | MaxLineLength | MinAlphanumeric | Keep


def _where(documents: pa.Table, condition: Any) -> pa.Array:
    return computed({"text": documents["text"]}, {"kept": condition})["kept"].combine_chunks()


def _longest_line(daft: Any) -> Expression:
    functions = daft.functions
    lines = functions.split(daft.col("text"), "\n")
    return functions.list_max(functions.list_map(lines, functions.length(daft.element())))


def _alphanumeric_share(daft: Any) -> Expression:
    functions = daft.functions
    alphanumeric = functions.length(functions.regexp_replace(daft.col("text"), NOT_ALPHANUMERIC, ""))
    return alphanumeric / functions.length(daft.col("text"))


def _require_positive(spec: object, name: str, value: int) -> None:
    require(
        isinstance(value, int) and value >= 1,
        place=f"{type(spec).__name__}.{name}",
        found=value,
        wanted="a whole number of at least 1",
    )
