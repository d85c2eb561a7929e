"""What learns: a module and its optimizer, and the step that both are at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from modelfactory.errors import NonFiniteLoss

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.train.checkpoint import State
    from modelfactory.train.segment import TrainSegment

    LossSum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Learner:
    """Lives in one process, from segment to segment; `state` and `load_state` carry it to another.

    Args:
        spec: of the segment it is made for; a later one may continue with it if `fits`.
        vocab_size: of the tokenizer.
        is_compiled: whether torch.compile is used.
    """

    def __init__(self, spec: TrainSegment, vocab_size: int, *, is_compiled: bool) -> None:
        self.key = _key(spec, vocab_size, is_compiled)
        self.module = cast("torch.nn.Module", spec.model.build(vocab_size, spec.seed))
        self.optimizer = spec.optimizer.build(self.module)
        self.precision = spec.precision
        loss_sum = cast("Any", self.module).loss_sum
        self._loss_sum: LossSum = torch.compile(loss_sum, dynamic=False) if is_compiled else loss_sum
        self.step = 0
        self.n_tokens = 0
        self.fingerprint = ""
        """Of the stage whose state it holds."""

    def fits(self, spec: TrainSegment, vocab_size: int, *, is_compiled: bool, fingerprint: str) -> bool:
        """Say whether it holds the state of stage `fingerprint` and can go on as `spec` wants it."""
        is_that_state = self.fingerprint == fingerprint != ""
        return is_that_state and self.key == _key(spec, vocab_size, is_compiled)

    def loss_sum(self, tokens: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses at the segment's precision."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self._loss_sum(tokens, labels, valid)

    def state(self) -> State:
        """Return all that the next step follows from, the tensors themselves and not copies."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        state: State = {f"model/{name}": value for name, value in self.module.state_dict().items()}
        for parameter, slots in self.optimizer.state.items():
            name = names[id(parameter)]
            state |= {f"optimizer/{name}/{slot}": value for slot, value in slots.items()}
        state |= {"step": torch.tensor(self.step), "n_tokens": torch.tensor(self.n_tokens)}
        return state | {"rng": torch.get_rng_state()}

    def load_state(self, state: State) -> None:
        """Take over what `state` returned."""
        parts = {key.removeprefix("model/"): v for key, v in state.items() if key.startswith("model/")}
        self.module.load_state_dict(parts)
        self._forget()
        parameters = dict(self.module.named_parameters())
        for key, value in state.items():
            kind, _, rest = key.partition("/")
            if kind == "optimizer":
                name, _, slot = rest.rpartition("/")
                self.optimizer.state[parameters[name]][slot] = value
        self.step, self.n_tokens = int(state["step"]), int(state["n_tokens"])
        torch.set_rng_state(state["rng"])

    def refuse_non_finite(self) -> None:
        """Raise NonFiniteLoss if an update has left a number that is not finite: such a state is not kept."""
        for key, value in self.state().items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                message = (
                    f"step {self.step}: {key} holds a number that is not finite after the update. No "
                    "checkpoint is written; the last one stands. Lower the learning rate."
                )
                raise NonFiniteLoss(message)

    def _forget(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self.n_tokens, self.fingerprint = 0, 0, ""


def _key(spec: TrainSegment, vocab_size: int, is_compiled: bool) -> tuple[Any, ...]:
    return spec.model, spec.optimizer, spec.precision, vocab_size, is_compiled
