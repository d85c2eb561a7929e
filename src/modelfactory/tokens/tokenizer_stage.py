"""The tokenizer stage: train one, or take an existing one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from modelfactory.data import read_documents
from modelfactory.errors import SourceError, Stopped
from modelfactory.stage import Progress
from modelfactory.tokens.importing import imported
from modelfactory.tokens.pinned import pinned_content
from modelfactory.tokens.specs import BPE, N_BYTES, TokenizerFile
from modelfactory.tokens.threads import tokenizer_threads
from modelfactory.tokens.tokenizer import FACTS, TOKENIZER, Tokenizer, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import tokenizers

    from modelfactory.stage import Site

VERSION = 1
SAMPLE_BYTES = 4 << 20
"""Bytes of the first documents over which bytes a token are measured."""
MIN_FREQUENCY = 2
"""A pair seen once is no pattern; merging it would only memorise its document."""


def run(spec: BPE | TokenizerFile, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Write `tokenizer.json` and `tokenizer_facts.json`.

    Args:
        spec: how to come by the tokenizer.
        inputs: `documents`, the stage of the BPE's dataset; or `tokenizer_file`, a pin file of one file.
        output_dir: exists and is empty.
        site: threads, progress.

    Raises:
        SourceError: no documents, or the tokenizer file changed after it was planned.
    """
    with tokenizer_threads(site.threads):
        if isinstance(spec, BPE):
            _train(spec, inputs["documents"], output_dir, site)
        else:
            _take(spec, inputs["tokenizer_file"], output_dir)


def train_bpe(
    texts: Iterable[list[str]], vocab_size: int, special_tokens: tuple[str, ...]
) -> tokenizers.Tokenizer:
    """Train byte-level BPE with GPT-2's splitting pattern; equal texts give equal bytes.

    Ids: special tokens, then the 256 bytes, then merges by falling frequency. Texts longer than MAX_PIECE are
    cut as `Tokenizer` cuts them.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    cut = ([piece for text in batch for piece in pieces(text)] for batch in texts)
    tokenizer.train_from_iterator(cut, trainer)
    return tokenizer


def _train(spec: BPE, documents: Path, output_dir: Path, site: Site) -> None:
    reading = _Reading(documents, site)
    inner = train_bpe(reading.batches(), spec.vocab_size, spec.special_tokens)
    if reading.n_documents == 0:
        raise SourceError(
            place=f"tokenizer of dataset {spec.dataset.name!r}",
            found="no documents",
            wanted="at least one to train on",
            remedy="See drops.json of its documents stage for what was dropped and why.",
        )
    tokenizer = Tokenizer(inner, eos_id=0)
    n_bytes = sum(len(text.encode("utf-8")) for text in reading.sample)
    n_tokens = sum(map(len, tokenizer.encode_batch(reading.sample)))
    facts = {
        "asked": spec.vocab_size,
        "n_merges": tokenizer.vocab_size - N_BYTES - len(spec.special_tokens),
        "bytes_per_token": n_bytes / n_tokens if n_tokens else None,
        "note": _shortfall(spec.vocab_size, tokenizer.vocab_size),
    }
    _write(tokenizer, output_dir, facts)


def _shortfall(asked: int, found: int) -> str:
    if found == asked:
        return ""
    return (
        f"vocabulary of {found:,} in place of the {asked:,} asked for: "
        f"no further pair of tokens occurs {MIN_FREQUENCY} times in the documents"
    )


def _take(spec: TokenizerFile, pin_path: Path, output_dir: Path) -> None:
    path, content = pinned_content(pin_path, "a tokenizer.json")
    inner = imported(content, spec.eos_token, place=str(path))
    eos_id = inner.token_to_id(spec.eos_token)
    assert eos_id is not None, "imported() checks that the file has it"
    tokenizer = Tokenizer(inner, eos_id)
    _write(tokenizer, output_dir, {"asked": None, "n_merges": None, "bytes_per_token": None, "note": ""})


def _write(tokenizer: Tokenizer, output_dir: Path, facts: dict[str, Any]) -> None:
    own = {"vocab_size": tokenizer.vocab_size, "eos_id": tokenizer.eos_id, "bos_id": tokenizer.bos_id}
    (output_dir / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
    (output_dir / FACTS).write_text(json.dumps(own | facts, indent=1, sort_keys=True), encoding="utf-8")


class _Reading:
    """Texts of a documents stage, with progress, and the first few kept to measure on."""

    def __init__(self, documents: Path, site: Site) -> None:
        self.sample: list[str] = []
        self.n_documents = 0
        self._documents = documents
        self._site = site
        self._sample_bytes = 0

    def batches(self) -> Iterator[list[str]]:
        """Yield texts in the order of the stage."""
        total = json.loads((self._documents / "documents.json").read_text("utf-8"))["n_documents"]
        started = time.monotonic()
        for batch in read_documents(self._documents, self._site.lake, ["text"]):
            if self._site.stopping():
                raise Stopped("stopped while a tokenizer was trained; nothing is kept of it")
            texts = batch.column("text").to_pylist()
            self._keep(texts)
            self.n_documents += len(texts)
            rate = self.n_documents / max(time.monotonic() - started, 1e-9)
            progress = Progress(done=self.n_documents, total=total, unit="documents", rate=rate)
            self._site.report(progress)
            yield texts

    def _keep(self, texts: list[str]) -> None:
        for text in texts:
            if self._sample_bytes >= SAMPLE_BYTES:
                return
            piece = text[: SAMPLE_BYTES - self._sample_bytes]
            self.sample.append(piece)
            self._sample_bytes += len(piece)
