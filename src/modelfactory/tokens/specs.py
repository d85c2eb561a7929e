"""What an author says about tokenizers and mixtures."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from modelfactory.data import Dataset, Files
from modelfactory.errors import SourceError
from modelfactory.spec import check_types, identity_json, not_identity, require
from modelfactory.tokens.weights import Shares, check_weights, integer_shares

N_BYTES = 256
"""Tokens of a byte-level vocabulary before the first merge."""
MAX_EPOCHS = 4.0
"""Up to here repeated data is nearly as good as new: Muennighoff et al. 2023, arXiv 2305.16264."""


@dataclass(frozen=True, kw_only=True)
class BPE:
    """Byte-level byte-pair encoding, trained on a dataset; deterministic."""

    vocab_size: int
    """Asked for: special tokens, 256 bytes, and merges. The corpus may support fewer; see the facts."""
    dataset: Dataset
    """What it is trained on."""
    special_tokens: tuple[str, ...] = ("<|endoftext|>",)
    """They get the first ids. The first one ends every document. Text never yields any of them."""

    def __post_init__(self) -> None:
        """Refuse a vocabulary that cannot hold the bytes, and special tokens that are no names."""
        check_types(self)
        names = self.special_tokens
        good = len(names) > 0 and all(names) and len(set(names)) == len(names)
        wanted = "one or more different names, none empty"
        require(good, place="BPE.special_tokens", found=names, wanted=wanted)
        least = N_BYTES + len(names)
        require(
            self.vocab_size >= least,
            place="BPE.vocab_size",
            found=self.vocab_size,
            wanted=f"at least {least}: {N_BYTES} bytes and {len(names)} special tokens",
        )


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """An existing `tokenizer.json`, as `tokenizers` and transformers write it."""

    path: str = not_identity()
    """Where it is; its content is what counts. Relative to the working directory."""
    eos_token: str
    """Ends every document; a name in its vocabulary."""

    def __post_init__(self) -> None:
        """Check the types; the file is read by `check`, at plan time."""
        check_types(self)

    @property
    def source(self) -> Files:
        """The file as a source that `data.pin` takes."""
        path = Path(self.path)
        return Files(root=str(path.parent), pattern=glob.escape(path.name), exclude=("*/**",))

    def check(self) -> None:
        """Raise SourceError or SpecError unless the file is a tokenizer that holds `eos_token`."""
        from modelfactory.tokens.importing import imported

        path = Path(self.path)
        if not path.is_file():
            raise SourceError(
                place=str(path),
                found="no file",
                wanted="a tokenizer.json",
                remedy="Correct TokenizerFile.path.",
            )
        imported(path.read_bytes(), self.eos_token, place=str(path))


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Tokens of a dataset under a tokenizer, both of them inputs of the stage.

    One sequence for each document, in the order in which the documents stage reads them, each closed by the
    end-of-text token. A document without text is that token alone, so that row i is always document i.
    Documents that are conversations are rendered by a template, an input as well, and get a loss mask.
    """

    def __post_init__(self) -> None:
        """Nothing to check yet."""
        check_types(self)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One dataset of a mixture."""

    dataset: Dataset
    weight: float
    """Share of the sequences, against the sum of all weights; above 0."""
    max_epochs: float = MAX_EPOCHS
    """A run that would see the dataset more often than this is refused before it trains."""

    def __post_init__(self) -> None:
        """Refuse weights and limits that are not above 0."""
        check_types(self)
        check_weights((self.weight,), "Part.weight")
        require(
            self.max_epochs > 0, place="Part.max_epochs", found=self.max_epochs, wanted="a number above 0"
        )


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Datasets and how much of each: exact to one sequence at every step."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Refuse no parts, a dataset that occurs twice, and a weight too small to be kept."""
        check_types(self)
        require(len(self.parts) > 0, place="Mixture.parts", found=self.parts, wanted="at least one Part")
        self._refuse_repeats()
        weights = [part.weight for part in self.parts]
        if weights and min(weights) > 0:  # else told by the Part, when all faults of a file are gathered
            integer_shares(weights, "Mixture.parts.weight")

    def _refuse_repeats(self) -> None:
        seen: dict[str, int] = {}
        for number, part in enumerate(self.parts):
            first = seen.setdefault(identity_json(part.dataset), number)
            require(
                first == number,
                place=f"Mixture.parts[{number}].dataset",
                found=f"the dataset of parts[{first}]",
                wanted="each dataset once",
                remedy="Add the weights into one Part.",
            )

    @property
    def shares(self) -> Shares:
        """The weights as integers, and whether they are exactly what was asked for."""
        return integer_shares([part.weight for part in self.parts])

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights in effect, summing to 1; (7, 3) and (0.7, 0.3) give the same."""
        return self.shares.effective_weights

    @property
    def max_epochs(self) -> tuple[float, ...]:
        """Limit of each part."""
        return tuple(part.max_epochs for part in self.parts)
