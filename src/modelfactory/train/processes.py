"""What the loop asks of the processes that train together, and the answers where there is only one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist

from modelfactory.errors import SpecError
from modelfactory.train.clipping import norms_of, scale_down

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from modelfactory.models import LossSums
    from modelfactory.stage import Device, Parallel, Site

    Sums = Callable[..., LossSums]


class Processes(Protocol):
    """All that differs between one process and many; see `Alone` and `ranks.Ranks`."""

    is_main: bool
    """Whether this one writes logs and facts."""
    row_rank: int
    """Which share of a batch's rows it reads."""
    n_row_ranks: int
    """How many shares there are."""
    column_rank: int
    """Which piece of each of its rows it computes: see `Parallel.context`."""

    def spread(self, module: torch.nn.Module, sums: Sums, *, is_compiled: bool, is_bf16: bool) -> Sums:
        """Divide the module in place among the processes and return what computes its sums."""

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer of a divided module ready."""

    def adding(self, module: torch.nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Return a block in which a part of a batch is computed; gradients are exchanged in the last one."""

    def total(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return each value summed over all processes that hold a part of the batch."""

    def clip(self, module: torch.nn.Module, limit: float) -> torch.Tensor:
        """Scale the whole gradient to a norm of at most `limit` and return the norm it had."""

    def outward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return parameter `name`, or a state of its shape, as one process would have it in a checkpoint."""

    def inward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return what `outward` returned, or a whole tensor, as this process holds it."""

    def like(self, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return an empty tensor into which the checkpoint's value for parameter `name` is read."""


class Alone:
    """One process; follows `Processes`."""

    is_main = True
    row_rank = 0
    n_row_ranks = 1
    column_rank = 0

    def spread(self, module: torch.nn.Module, sums: Sums, *, is_compiled: bool, is_bf16: bool) -> Sums:
        """Leave the module whole; compile the loss as one graph."""
        del module, is_bf16
        return cast("Sums", torch.compile(sums, dynamic=False)) if is_compiled else sums

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave it as it is."""

    def adding(self, module: torch.nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Gradients add up by themselves."""
        del module, is_last
        return nullcontext()

    def total(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sum of one is itself."""
        return values

    def clip(self, module: torch.nn.Module, limit: float) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_, by more exact norms."""
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        norm: torch.Tensor = torch.linalg.vector_norm(norms_of(gradients))
        scale_down(gradients, norm, limit)
        return norm

    def outward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """It is whole."""
        del name
        return value

    def inward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """It stays whole."""
        del name
        return value

    def like(self, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """On the CPU, as checkpoints are read."""
        del name
        return torch.empty(shape, dtype=dtype)


def are_joined() -> bool:
    """Say whether this process is one of several that torch.distributed connects."""
    return dist.is_available() and dist.is_initialized()


def require_device(device: Device, parallel: Parallel) -> None:
    """Refuse fewer GPUs than the processes on this machine take.

    Raises:
        SpecError: names how many there are.
    """
    if device != "cuda":
        return
    found = torch.cuda.device_count()
    wanted = 1 if are_joined() else parallel.world_size
    if found < wanted:
        raise SpecError(
            place="--device cuda",
            found=f"{found} GPUs that torch {torch.__version__} can use",
            wanted=f"{wanted}, one for each process",
            remedy="Use --device cpu, fewer processes, or a build of torch for your GPUs.",
        )


def processes_of(site: Site) -> Processes:
    """Return the processes that the site means: this one, or those that are joined.

    Raises:
        SpecError: others than `site.parallel` says are joined.
    """
    if not are_joined() or dist.get_world_size() == site.parallel.world_size == 1:
        return Alone()
    from modelfactory.train.ranks import Ranks

    return Ranks(site.parallel, site.device)


def parameter_of(key: str, parameters: Mapping[str, Any]) -> str:
    """Return the parameter that a key of a checkpoint belongs to, or nothing: see `Learner.state`."""
    kind, _, rest = key.partition("/")
    name = rest.rpartition("/")[0] if kind == "optimizer" else rest
    return name if kind in ("model", "optimizer") and name in parameters else ""
