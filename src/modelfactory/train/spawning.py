"""The ranks of one training stage as processes of this machine: started, listened to, ended together."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.errors import FactoryError, StageFailed, Stopped
from modelfactory.spec import to_json
from modelfactory.stage import Progress
from modelfactory.train.launch import Order, Raised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.stage import Site
    from modelfactory.train.segment import TrainSegment

_LOOK_EVERY_S = 0.2
_GRACE_S = 1.0
"""After the first failure: the others often fail because of it, and one of them may have said so first."""
_CONSEQUENCES = ("closed by peer", "connection reset", "connection refused", "broken pipe", "timed out")


@dataclass(kw_only=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    is_done: bool = False
    raised: Raised | None = None


def on_ranks(spec: TrainSegment, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Run the stage on `site.parallel.world_size` new processes, which get equal shares of the threads.

    What they print goes where this process prints. They end with this process, and when one fails.

    Raises:
        StageFailed: a rank died or raised; the message names it.
        FactoryError: what a rank raised on purpose, such as NonFiniteLoss.
        Stopped: the user asked to.
    """
    n_ranks = site.parallel.world_size
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        try:
            for number in range(n_ranks):
                ranks.append(_started(number))
                order = _order(spec, inputs, output_dir, site)
                ranks[-1].connection.send((order, number, str(Path(folder, "store"))))
            _listen(ranks, site)
        finally:
            _end(ranks)


def _order(spec: TrainSegment, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> Order:
    return Order(
        spec=to_json(spec),
        inputs={name: str(path) for name, path in inputs.items()},
        output_dir=str(output_dir),
        lake=str(site.lake),
        threads=max(site.threads // site.parallel.world_size, 1),
        parallel=str(site.parallel),
        device=site.device,
        micro_batch_tokens=site.micro_batch_tokens,
        compile=site.compile,
        checkpointing=site.checkpointing,
    )


def _started(number: int) -> _Rank:
    ours, theirs = Pipe()
    with theirs:
        code = (
            f"import sys; sys.path[:0] = {sys.path!r}; "
            f"from modelfactory.train.launch import serve; serve({theirs.fileno()})"
        )
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    return _Rank(number=number, process=process, connection=ours)


def _listen(ranks: Sequence[_Rank], site: Site) -> None:
    """Return once all ranks are done."""
    failing_since = float("inf")
    while not all(rank.is_done for rank in ranks):
        if site.stopping():
            raise Stopped("stopped while several processes trained; the step under way is not kept")
        open_ = {rank.connection: rank for rank in ranks if not (rank.is_done or _has_failed(rank))}
        for connection in wait(list(open_), _LOOK_EVERY_S):
            _hear(open_[connection], site)  # type: ignore[index]
        failed = [rank for rank in ranks if _has_failed(rank)]
        if failed:
            failing_since = min(failing_since, time.monotonic())
            if time.monotonic() - failing_since > _GRACE_S or len(failed) == len(ranks):
                _raise(failed, len(ranks))


def _has_failed(rank: _Rank) -> bool:
    return not rank.is_done and (rank.raised is not None or rank.process.returncode is not None)


def _hear(rank: _Rank, site: Site) -> None:
    try:
        message = rank.connection.recv()
    except (EOFError, OSError):
        rank.process.wait()
        return
    if isinstance(message, Progress):
        site.report(message)
    elif isinstance(message, Raised):
        rank.raised = message
    else:
        rank.is_done = True


def _raise(failed: Sequence[_Rank], n_ranks: int) -> None:
    """Raise what was first: a death, else an error that is no consequence of another one's."""
    rank = min(failed, key=_order_of_blame)
    name = f"rank {rank.number} of {n_ranks}"
    if rank.raised is None:
        code = rank.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        message = f"{name} {how} in the middle of the stage; the others were ended."
        raise StageFailed(message)
    error = rank.raised.error
    if isinstance(error, FactoryError):
        error.add_note(f"raised by {name}")
        raise error
    message = f"{name}: {rank.raised.text}"
    raise StageFailed(message) from error


def _order_of_blame(rank: _Rank) -> tuple[int, int]:
    if rank.raised is None:
        return 0, rank.number
    text = rank.raised.text.lower()
    return (2 if any(words in text for words in _CONSEQUENCES) else 1), rank.number


def _end(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if not rank.is_done:
            rank.process.kill()
        rank.connection.close()
    for rank in ranks:
        rank.process.wait()
