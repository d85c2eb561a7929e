"""One rank of a training stage: under `torchrun -m modelfactory.train.launch ORDER.json`, or of a stage.

An order is the stage's spec, inputs and site as JSON; `Order.write` makes the file. Under torchrun, all
machines need the folders of inputs and output at the same path.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
import torch.distributed as dist

from modelfactory.errors import CommandError
from modelfactory.spec import from_json
from modelfactory.stage import Checkpointing, Device, Parallel, Progress, Site

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Order:
    """What every rank is told."""

    spec: Any
    """JSON of the segment."""
    inputs: dict[str, str]
    output_dir: str
    lake: str
    threads: int
    """Of each rank."""
    parallel: str
    device: str = "cpu"
    micro_batch_tokens: int = 16_384
    compile: bool = False
    checkpointing: str = "none"

    def write(self, path: Path) -> None:
        """Write the file that torchrun's ranks read."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what `write` wrote.

        Raises:
            CommandError: it is no such file.
        """
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CommandError(
                place=str(path),
                found=f"{type(error).__name__}: {error}",
                wanted="an order as JSON",
                remedy="Write it with modelfactory.train.launch.Order(...).write(path).",
            ) from error

    def carry_out(self, report: Callable[[Progress], None] | None = None) -> None:
        """Run the stage on this rank; torch.distributed is initialised."""
        from modelfactory.train import stage

        options: Any = {} if report is None else {"report": report}
        site = Site(
            lake=Path(self.lake),
            threads=self.threads,
            micro_batch_tokens=self.micro_batch_tokens,
            compile=self.compile,
            device=cast("Device", self.device),
            parallel=Parallel.parse(self.parallel),
            checkpointing=cast("Checkpointing", self.checkpointing),
            **options,
        )
        inputs = {name: Path(path) for name, path in self.inputs.items()}
        stage.run(from_json(self.spec), inputs, Path(self.output_dir), site)


@dataclass(frozen=True, kw_only=True)
class Raised:
    """From a rank to whoever started it: it raised."""

    text: str
    error: BaseException | None
    """None where it cannot be pickled."""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the message, whatever was raised."""
        text = f"{type(error).__name__}: {error}"
        try:
            return cls(text=text, error=pickle.loads(pickle.dumps(error)))
        except Exception:  # noqa: BLE001 - an exception may hold anything
            return cls(text=text, error=None)


def serve(fd: int) -> None:
    """Carry out the one order that comes through `fd`, tell how it went, and end with who sent it."""
    connection: Connection[Any, Any] = Connection(fd)
    os.set_inheritable(fd, False)
    order, rank, store = connection.recv()
    threading.Thread(target=_watch, args=(connection,), daemon=True).start()
    try:
        # All ranks are on this machine, whatever its own name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        _join(order.device, rank, f"file://{store}", rank, Parallel.parse(order.parallel).world_size)
        order.carry_out(connection.send if rank == 0 else None)
    except BaseException as error:  # noqa: BLE001 - told to the parent, which raises it
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(Raised.of(error))
        os._exit(1)  # others may be gone: leaving the group in order could wait for them
    dist.barrier()
    dist.destroy_process_group()
    connection.send("done")


def _watch(connection: Connection[Any, Any]) -> None:
    """End this process once the other end of the pipe is closed."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


def _join(device: str, local_rank: int, store: str, rank: int = -1, world_size: int = -1) -> None:
    """Meet the other ranks at `store`; a rank of -1 is that of torchrun's environment."""
    here: Any = {"init_method": store, "rank": rank, "world_size": world_size}
    if device == "cuda":
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank), **here)
    else:
        dist.init_process_group("gloo", **here)


def main() -> None:
    """Carry out an order under torchrun."""
    if len(sys.argv) != 2 or "LOCAL_RANK" not in os.environ:
        raise CommandError(
            place="modelfactory.train.launch",
            found=" ".join(sys.argv[1:]) or "no argument",
            wanted="one order, under torchrun",
            remedy="torchrun --nproc-per-node N -m modelfactory.train.launch ORDER.json",
        )
    order = Order.read(Path(sys.argv[1]))
    _join(order.device, int(os.environ["LOCAL_RANK"]), "env://")
    if dist.get_rank() == 0:
        Path(order.output_dir).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    order.carry_out()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
