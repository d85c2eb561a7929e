"""What a user's own layers, optimizers and schedules raise is told with their place, class and line."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import NonFiniteLoss, SpecError
from modelfactory.train.own_parts import own_parts_named
from tests.train.material import LLAMA, spec, train, training
from tests.train.own_layers import Broken, BrokenSchedule, BrokenSGD

if TYPE_CHECKING:
    from pathlib import Path

LUCK = r"found ZeroDivisionError: no luck \(own_layers\.py:\d+\), wanted .* Mend Broken\."


def with_broken(where: str) -> Any:
    first, second = LLAMA.blocks[0], replace(LLAMA.blocks[0], feed_forward=Broken(folder=".", where=where))
    return replace(LLAMA, blocks=(first, second))


@pytest.mark.parametrize("where", ["build", "n_parameters", "flops_per_token"])
def test_a_layer_whose_spec_raises(inputs: dict[str, Path], tmp_path: Path, where: str) -> None:
    place = rf"^model\.blocks\[1\]\.feed_forward, Broken\._raise: {LUCK}"
    with pytest.raises(SpecError, match=place) as caught:
        train(spec(model=with_broken(where), to_step=1), inputs, tmp_path / "run")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_layer_that_raises_while_it_computes(
    inputs: dict[str, Path], tmp_path: Path, checkpointing: Any
) -> None:
    wanted = (
        r"^model\.blocks\.1\.feed_forward, BrokenModule\.forward: found RuntimeError: .*shapes.*"
        r"\(own_layers\.py:\d+\)"
    )
    with pytest.raises(SpecError, match=wanted):
        train(
            spec(model=with_broken("forward"), to_step=1),
            inputs,
            tmp_path / "run",
            checkpointing=checkpointing,
        )


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("build", r"^optimizer, BrokenSGD\.build: found KeyError: 'no group' \(own_layers\.py:\d+\)"),
        ("step", r"^optimizer, StumblingSGD\.\w+: found RuntimeError: stumbled \(own_layers\.py:\d+\)"),
    ],
)
def test_an_optimizer_that_raises(inputs: dict[str, Path], tmp_path: Path, where: str, wanted: str) -> None:
    with pytest.raises(SpecError, match=wanted):
        train(spec(optimizer=BrokenSGD(where=where), to_step=1), inputs, tmp_path / "run")


def test_a_schedule_that_raises() -> None:
    with pytest.raises(SpecError, match=r"^schedule, BrokenSchedule\.min_steps: found NotImplementedError"):
        training(schedule=BrokenSchedule())


@pytest.mark.parametrize("lr", [0.0, -1.0])
def test_an_optimizer_without_a_rate(lr: float) -> None:
    with pytest.raises(SpecError, match=r"BrokenSGD\.lr: found .*, wanted a finite number above 0"):
        training(optimizer=BrokenSGD(lr=lr, where=""))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        OSError(errno.ENOSPC, "full"),
        NonFiniteLoss("step 3"),
    ],
)
def test_what_is_no_fault_of_the_part_stays_what_it_is(error: Exception) -> None:
    class Part(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise error

    part = Part()
    with pytest.raises(type(error)) as caught, own_parts_named(model=part):
        part(1)
    assert caught.value is error


def test_an_error_of_the_packages_own_stays_bare() -> None:
    layer = LLAMA.build(97, seed=0)
    with pytest.raises(AttributeError), own_parts_named(model=layer, spec=LLAMA):
        layer(None)
