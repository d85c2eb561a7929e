"""The evaluate stage: one checkpoint x one task."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modelfactory.errors import Stopped
from modelfactory.evaluate.documents import held_out
from modelfactory.evaluate.item_files import checked_rows, item_files, reads_whole_files
from modelfactory.evaluate.results import write_results
from modelfactory.evaluate.task import reads_chats
from modelfactory.generate.loading import load_language_model
from modelfactory.spec import identity_json
from modelfactory.stage import OBSERVED, Progress, Site
from modelfactory.tokens.chat_files import CONFIG, TEMPLATE
from modelfactory.tokens.pinned import pinned_content
from modelfactory.tokens.shard_stage import chat_encoder
from modelfactory.tokens.threads import tokenizer_threads
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer
from modelfactory.train.own_parts import own_parts_named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from modelfactory.evaluate.item_files import Row
    from modelfactory.evaluate.task import Evaluate, Prepared, Task
    from modelfactory.generate.language_model import LanguageModel

VERSION = 1
WARM = "evaluate.prepared"
N_WARM = 8
"""Tasks whose tokenised questions are kept between stages; the same questions go to every checkpoint."""
REPORT_EVERY_S = 0.2


def run(spec: Evaluate, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Write `items.parquet`, `result.json` and `observed/timing.json`.

    Args:
        spec: the task.
        inputs: directories of the stages `checkpoint`, `tokenizer` and `documents`; of a task that reads
            conversations also the pins of `tokens.chat_files`; of one with item files their pins, by name,
            in place of `documents`.
        output_dir: exists and is empty.
        site: lake, threads, progress.

    Raises:
        InvalidInput: checkpoint and tokenizer do not belong together.
        SpecError: a layer or a task of the user's own raised; it is named.
        SourceError: there are too few held-out documents.
        StageFailed: a score is not finite.
        Stopped: the user asked to stop.
    """
    from modelfactory.train.settings import torch_settings

    started = time.perf_counter()
    settings = torch_settings(site.threads)
    with own_parts_named(task=spec.task), tokenizer_threads(site.threads), settings:
        tokenizer = load_tokenizer(inputs["tokenizer"])
        prepared = prepared_task(spec.task, inputs, tokenizer, site)
        ready = time.perf_counter()
        model = _model(inputs["checkpoint"], tokenizer, site)
        loaded = time.perf_counter()
        answers = spec.task.answer(prepared, model)
    answered = time.perf_counter()
    with own_parts_named(task=spec.task):
        write_results(spec.task, answers, prepared.skipped, output_dir)
    seconds = {"prepare_s": ready - started, "load_s": loaded - ready, "answer_s": answered - loaded}
    _write_timing(seconds, output_dir / OBSERVED)


def prepared_task(task: Task, inputs: Mapping[str, Path], tokenizer: Tokenizer, site: Site) -> Prepared:
    """Return the questions of a task, kept from an earlier stage where documents and tokenizer are equal.

    Equal by content, not by path: a folder of a notebook may be written anew.
    """
    kept: dict[str, Prepared] = site.warm.setdefault(WARM, {})
    templates = [(inputs[name]).read_text() for name in (TEMPLATE, CONFIG) if name in inputs]
    files = item_files(task)
    read = [inputs[name] for name in files] if files else [inputs["documents"] / "documents.json"]
    sources = [path.read_text(encoding="utf-8") for path in read]
    key = _key(identity_json(task), *sources, tokenizer.to_json(), *templates)
    prepared = kept.pop(key, None)
    # a task that reads its files while it answers finds them as they are now: they are compared each time
    if prepared is None or reads_whole_files(task):
        encoder = chat_encoder(tokenizer, inputs) if reads_chats(task) else tokenizer
        asked = _rows(task, inputs) if files else held_out(inputs["documents"], site.lake)
        prepared = task.prepare(asked, encoder)
    kept[key] = prepared  # the last one is the one used last
    while len(kept) > N_WARM:
        del kept[next(iter(kept))]
    return prepared


def _rows(task: Task, inputs: Mapping[str, Path]) -> dict[str, tuple[Row, ...]]:
    """Read the files of questions, as they were pinned."""
    return {name: checked_rows(task, name, *pinned_content(inputs[name], name)) for name in item_files(task)}


def _key(*parts: str) -> str:
    digests = [hashlib.sha256(part.encode("utf-8")).hexdigest() for part in parts]
    return " ".join(digests)


def _model(checkpoint: Path, tokenizer: Tokenizer, site: Site) -> LanguageModel:
    from modelfactory.generate.language_model import BATCH_TOKENS

    batch_tokens = min(site.micro_batch_tokens, BATCH_TOKENS)
    return load_language_model(checkpoint, tokenizer, batch_tokens=batch_tokens, on_batch=_Reporter(site))


@dataclass
class _Reporter:
    """Tells the driver how far it is, not too often, and stops when it is asked to."""

    site: Site
    started: float = field(default_factory=time.perf_counter)
    last: float = 0.0

    def __call__(self, n_done: int, n_total: int) -> None:
        if self.site.stopping():
            raise Stopped("evaluation stopped; it starts anew with the next run")
        now = time.perf_counter()
        if now - self.last >= REPORT_EVERY_S or n_done == n_total:
            self.last = now
            rate = n_done / max(now - self.started, 1e-9)
            self.site.report(Progress(done=n_done, total=n_total, unit="requests", rate=rate))


def _write_timing(seconds: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir()
    (folder / "timing.json").write_text(json.dumps(dict(seconds), sort_keys=True) + "\n", encoding="utf-8")
