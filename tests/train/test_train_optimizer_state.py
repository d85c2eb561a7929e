from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelfactory.train.optimizer_state import flat_state, restore_state


def optimizer_with(slots: dict[str, Any]) -> tuple[torch.optim.Optimizer, nn.Module]:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters())
    optimizer.state[module.weight].update(slots)
    return optimizer, module


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


SLOTS: list[dict[str, Any]] = [
    {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3)},
    {"step": 2**40 + 1, "beta": 0.1 + 1e-17, "is_new": True, "basis": None},
    {"Q": [torch.ones(2, 2), [], torch.zeros(0)], "GG": [], "deep": [[torch.ones(1), 3], [4.5]]},
    {"many": [torch.tensor(float(n)) for n in range(12)]},
]


@pytest.mark.parametrize("slots", SLOTS)
def test_everything_comes_back_as_what_it_was(slots: dict[str, Any]) -> None:
    optimizer, module = optimizer_with(slots)
    flat = flat_state(optimizer, module)
    assert all(isinstance(value, torch.Tensor) for value in flat.values())
    optimizer.state[module.bias]["step"] = 9  # of a state that is replaced
    restore_state(optimizer, module, {**flat, "model/weight": torch.ones(1), "step": torch.tensor(1)})
    assert list(optimizer.state) == [module.weight]
    found = optimizer.state[module.weight]
    assert found.keys() == slots.keys()
    for slot, value in slots.items():
        assert_same(found[slot], value)


def test_tensors_keep_the_keys_of_earlier_checkpoints() -> None:
    optimizer, module = optimizer_with({"exp_avg": torch.ones(2, 3)})
    flat = flat_state(optimizer, module)
    assert list(flat) == ["optimizer/weight/exp_avg"]
    assert flat["optimizer/weight/exp_avg"] is optimizer.state[module.weight]["exp_avg"]


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    optimizer, module = optimizer_with({"history": {1: 2}})
    with pytest.raises(TypeError, match="optimizer/weight/history: found dict, wanted tensors, numbers"):
        flat_state(optimizer, module)


class Pair(torch.Tensor):
    """A tensor made of two, as quantized states are."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def of(codes: torch.Tensor, scale: torch.Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(Pair, codes.shape)
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_a_tensor_made_of_tensors_is_put_together_by_its_optimizer() -> None:
    codes, scale = torch.arange(6, dtype=torch.uint8), torch.ones(2)
    optimizer, module = optimizer_with({"exp_avg": Pair.of(codes, scale)})
    flat = flat_state(optimizer, module)
    assert sorted(flat) == ["optimizer/weight/exp_avg{codes}", "optimizer/weight/exp_avg{scale}"]
    asked = []

    def tensor_of(parameter: Any, slot: str, parts: dict[str, torch.Tensor]) -> Pair:
        asked.append((parameter is module.weight, slot))
        return Pair.of(**parts)

    optimizer.tensor_of = tensor_of  # type: ignore[attr-defined]
    restore_state(optimizer, module, flat)
    found = optimizer.state[module.weight]["exp_avg"]
    assert asked == [(True, "exp_avg")]
    assert found.codes is codes
    assert found.scale is scale
