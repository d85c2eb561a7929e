"""What learns: a module and its optimizer, and the step that both are at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.tensor import DTensor

from modelfactory.errors import NonFiniteLoss
from modelfactory.train.building import module_of, optimizer_of, require_loss, sums_of
from modelfactory.train.optimizer_state import flat_state, restore_state
from modelfactory.train.own_parts import is_own, own_parts_named
from modelfactory.train.processes import Alone, Processes, parameter_of
from modelfactory.train.recompute import recompute

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from modelfactory.models import LossSums
    from modelfactory.stage import Checkpointing, Device
    from modelfactory.train.checkpoint import State
    from modelfactory.train.processes import Sums
    from modelfactory.train.segment import TrainSegment


class Learner:
    """Lives in one process, from segment to segment; `state` and `load_state` carry it to another.

    Args:
        spec: of the segment it is made for; a later one may continue with it if `fits`.
        vocab_size: of the tokenizer.
        is_compiled: whether torch.compile is used.
        device: where it computes.
        checkpointing: what is computed again in the backward pass.
        processes: those that train together; by default this one alone.
    """

    def __init__(
        self,
        spec: TrainSegment,
        vocab_size: int,
        *,
        is_compiled: bool,
        device: Device = "cpu",
        checkpointing: Checkpointing = "none",
        processes: Processes | None = None,
    ) -> None:
        self.key = _key(spec, vocab_size, is_compiled, device, checkpointing)
        self.device, self.processes = device, processes or Alone()
        self.module = module_of(spec, vocab_size)
        self.precision = spec.precision
        recompute(self.module, checkpointing)
        self._sums: Sums = self.processes.spread(
            self.module, sums_of(self.module), is_compiled=is_compiled, is_bf16=self.precision == "bf16"
        )
        self.module.to(device)
        self.optimizer = optimizer_of(spec, self.module)
        self.processes.prepare(self.optimizer)
        self._names = dict(self.module.named_parameters())
        own = {"optimizer": self.optimizer} if is_own(type(spec.optimizer)) else {}
        self._parts: dict[str, Any] = {"model": self.module, **own}
        self.step = 0
        self.n_tokens = 0
        self.fingerprint = ""
        """Of the stage whose state it holds."""

    def fits(
        self,
        spec: TrainSegment,
        vocab_size: int,
        *,
        is_compiled: bool,
        fingerprint: str,
        device: Device = "cpu",
        checkpointing: Checkpointing = "none",
    ) -> bool:
        """Say whether it holds the state of stage `fingerprint` and can go on as `spec` wants it."""
        is_that_state = self.fingerprint == fingerprint != ""
        return is_that_state and self.key == _key(spec, vocab_size, is_compiled, device, checkpointing)

    def sums(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        valid: torch.Tensor,
        documents: torch.Tensor | None = None,
    ) -> LossSums:
        """Return losses and what else is minimised and observed, at the segment's precision."""
        is_bf16 = self.precision == "bf16"
        with self.own_parts_named(), torch.autocast(self.device, dtype=torch.bfloat16, enabled=is_bf16):
            found = self._sums(tokens, labels, valid, documents)
            require_loss(getattr(found, "loss", found), self.module, "training_sums")
            return found

    def own_parts_named(self) -> AbstractContextManager[None]:
        """See `own_parts.own_parts_named`, of module and optimizer."""
        return own_parts_named(**self._parts)

    def after_step(self, observed: dict[str, torch.Tensor]) -> None:
        """Tell the module what was observed over a whole step, if it wants to know."""
        if observed:
            with self.own_parts_named():
                cast("Any", self.module).after_step(observed)

    def state(self) -> State:
        """Return all that the next step follows from, the tensors themselves and not copies.

        Of many processes each returns what it holds, in the order of one: see `Processes.outward`.
        """
        state: State = {f"model/{name}": value for name, value in self.module.state_dict().items()}
        state |= flat_state(self.optimizer, self.module)
        state = {key: self.processes.outward(self._name(key), value) for key, value in state.items()}
        state |= {"step": torch.tensor(self.step), "n_tokens": torch.tensor(self.n_tokens)}
        return state | {"rng": torch.get_rng_state()}

    def like(self, key: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return an empty tensor for the value of `key` in a checkpoint, which `load_state` takes."""
        return self.processes.like(self._name(key), shape, dtype)

    def load_state(self, state: State) -> None:
        """Take over what `state` returned."""
        state = {key: self.processes.inward(self._name(key), value) for key, value in state.items()}
        parts = {key.removeprefix("model/"): v for key, v in state.items() if key.startswith("model/")}
        self.module.load_state_dict(parts)
        self._forget()
        slots = {key: value.to(self.device) for key, value in state.items() if key.startswith("optimizer/")}
        restore_state(self.optimizer, self.module, slots)
        self.step, self.n_tokens = int(state["step"]), int(state["n_tokens"])
        torch.set_rng_state(state["rng"])

    def begin(self, weights: Mapping[str, torch.Tensor], *, strict: bool = True) -> None:
        """Take over weights before the first step.

        Args:
            weights: by name, whole tensors also where many processes train.
            strict: False leaves parameters that are not among them, such as new adapters, as they are.
        """
        state = {name: self.processes.inward(self._name(f"model/{name}"), v) for name, v in weights.items()}
        lacking, unknown = self.module.load_state_dict(state, strict=strict)
        assert not unknown, f"no parameters {unknown}"
        assert strict or all(dict(self.module.named_parameters())[n].requires_grad for n in lacking)
        self._forget()

    def refuse_non_finite(self) -> None:
        """Raise NonFiniteLoss if an update has left a number that is not finite: such a state is not kept."""
        for key, value in self.state().items():
            held = value.to_local() if isinstance(value, DTensor) else value
            if held.is_floating_point() and not bool(torch.isfinite(held).all()):
                message = (
                    f"step {self.step}: {key} holds a number that is not finite after the update. No "
                    "checkpoint is written; the last one stands. Lower the learning rate."
                )
                raise NonFiniteLoss(message)

    def _name(self, key: str) -> str:
        """Return the parameter that a key of the state belongs to, or nothing."""
        return parameter_of(key, self._names)

    def _forget(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self.n_tokens, self.fingerprint = 0, 0, ""


def _key(spec: TrainSegment, vocab_size: int, *how: object) -> tuple[Any, ...]:
    return spec.model, spec.optimizer, spec.precision, vocab_size, *how
