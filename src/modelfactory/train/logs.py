"""Numbers of each step, to files and to whoever watches."""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, Self

from modelfactory.models.part_results import counted
from modelfactory.stage import OBSERVED, Progress
from modelfactory.train.labels import unlabelled
from modelfactory.train.own_parts import own_parts_named
from modelfactory.train.speed import peak_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from modelfactory.stage import Site
    from modelfactory.tokens import Stream
    from modelfactory.train.segment import TrainSegment
    from modelfactory.train.steps import StepResult

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
_REPORT_EVERY_S = 0.5
_logger = logging.getLogger(__name__)


class StepLog:
    """Appends one line for each step to metrics.jsonl and to observed/timing.jsonl; reports progress.

    Metrics follow from the spec alone; whatever a clock says goes into `observed/`. The first step without a
    label that counts is warned of, and how many there were at the end.
    """

    def __init__(
        self, spec: TrainSegment, stream: Stream, output_dir: Path, site: Site, vocab_size: int
    ) -> None:
        self._spec, self._stream, self._site = spec, stream, site
        with own_parts_named(model=spec.model):
            self._flops_per_token = counted(spec.model, "flops_per_token", vocab_size, spec.seq_len)
        self._peak = peak_of(site, spec.precision)
        self._stack = ExitStack()
        (output_dir / OBSERVED).mkdir(exist_ok=True)
        self._metrics = self._open(output_dir / METRICS)
        self._timing = self._open(output_dir / OBSERVED / TIMING)
        self._clock = time.perf_counter()
        self._reported = float("-inf")
        self._n_unlabelled = 0

    def __enter__(self) -> Self:
        """Start the clock of the first step."""
        self._clock = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close both files."""
        self._stack.close()
        if self._n_unlabelled > 1:
            _logger.warning("%d steps had no label that counts", self._n_unlabelled)

    def add(self, result: StepResult, *, step: int, lr: float, n_tokens: int) -> None:
        """Write one step; `n_tokens` are those of the run up to and with it."""
        before = self._stream.n_tokens_to(step - 1)
        seconds = self._lap()
        rate = (n_tokens - before) / seconds
        _write(
            self._metrics,
            step=step,
            n_tokens=n_tokens,
            loss=result.loss,
            lr=lr,
            grad_norm=result.grad_norm,
            flops=n_tokens * self._flops_per_token,
            epochs=list(self._stream.epochs(step)),
            **({"n_labels": result.n_valid} if self._stream.masks_labels else {}),
            **{name: value.tolist() for name, value in result.observed.items()},
        )
        mfu = {} if self._peak == 0 else {"mfu": round(rate * self._flops_per_token / self._peak, 4)}
        _write(self._timing, step=step, seconds=round(seconds, 6), tokens_per_s=round(rate, 1), **mfu)
        if result.loss is None:
            self._note_unlabelled(step)
        self._report(result, step, seconds, {"tokens_per_s": rate, **mfu})

    def _note_unlabelled(self, step: int) -> None:
        self._n_unlabelled += 1
        if self._n_unlabelled == 1:
            text = unlabelled(self._stream, step)
            _logger.warning("%s", text)
            first, last = self._spec.from_step, self._spec.to_step
            self._site.report(Progress(done=step - first, total=last - first, unit="steps", warning=text))

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        return max(seconds, 1e-9)

    def _report(self, result: StepResult, step: int, seconds: float, speed: Mapping[str, float]) -> None:
        first, last = self._spec.from_step, self._spec.to_step
        if self._clock - self._reported < _REPORT_EVERY_S and step != last:
            return
        self._reported = self._clock
        loss = {} if result.loss is None else {"loss": result.loss}
        metrics = {"step": step, **loss, **speed}
        self._site.report(
            Progress(done=step - first, total=last - first, unit="steps", rate=1 / seconds, metrics=metrics)
        )

    def _open(self, path: Path) -> IO[str]:
        return self._stack.enter_context(path.open("w", encoding="utf-8", buffering=1))


def _write(file: IO[str], **fields: Any) -> None:
    file.write(json.dumps(fields, allow_nan=False) + "\n")
