"""What a user's own layers, optimizers and schedules raise is told with their place, class and line."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import NonFiniteLoss, SpecError
from modelfactory.models import BuildContext
from modelfactory.models.modules import Linear
from modelfactory.train import load_model
from modelfactory.train.building import sums_of
from modelfactory.train.own_parts import own_parts_named
from tests.models.own_parts import Faulty, FaultyModule, Unmixed
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
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
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


@pytest.mark.parametrize(
    "text", ["memory_size must be above 0", "the slots are out of memory", "can't allocate memory cells"]
)
@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_text_that_speaks_of_memory_is_told_with_its_place(text: str, kind: type[Exception]) -> None:
    class Part(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise kind(text)

    part = Part()
    with (
        pytest.raises(SpecError, match=rf"^model, Part\.forward: found {kind.__name__}: {text} \("),
        own_parts_named(model=part),
    ):
        part(1)


def mixed(layer: Any) -> Any:
    first = LLAMA.blocks[0]
    return replace(LLAMA, blocks=(first, replace(first, mixer=layer)))


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        (
            Faulty(module="initialise"),
            r"^model\.blocks\.1\.mixer, FaultyModule\.initialise: found ValueError: no luck \(own_parts\.py:",
        ),
        (
            Faulty(module="mean"),
            r"mixer, FaultyModule\.forward: found a tensor of shape \(4, 1, 32\), wanted a .* \(4, 32, 32\)",
        ),
        (
            Faulty(module="nothing"),
            r"^model\.blocks\.1\.mixer, FaultyModule\.forward: found None, wanted a tensor of shape",
        ),
        (
            Faulty(module="none"),
            r"^model\.blocks\[1\]\.mixer, Faulty\.build: found None, wanted a torch\.nn\.Module",
        ),
        (
            Faulty(parameters="one more"),
            r"^model\.blocks\[1\]\.mixer, Faulty\.n_parameters\(32\): found 1,025 by formula and 1,024 in",
        ),
        (
            Unmixed(),
            r"^model\.blocks\[1\]\.mixer, Unmixed\.build: found a UnmixedModule with forward\(x_BTD: .*\)",
        ),
    ],
)
def test_what_a_layer_gives_is_told_with_its_place(
    inputs: dict[str, Path], tmp_path: Path, layer: Any, wanted: str
) -> None:
    with pytest.raises(SpecError, match=wanted):
        train(spec(model=mixed(layer), to_step=1), inputs, tmp_path / "run")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at what it stopped at
def test_a_wrong_shape_is_told_by_a_compiled_model() -> None:
    module = mixed(Faulty(module="mean")).build(97, seed=0)
    compiled = torch.compile(module, backend="eager", dynamic=False)
    wanted = r"^model\.blocks\.1\.mixer, FaultyModule\.forward: found a tensor of shape \(2, 1, 32\)"
    with pytest.raises(SpecError, match=wanted), own_parts_named(model=module):
        compiled(torch.zeros(2, 8, dtype=torch.long))


def test_a_full_memory_of_a_device_is_no_fault_of_the_layer() -> None:
    module = mixed(Faulty(module="memory")).build(97, seed=0)
    with pytest.raises(torch.OutOfMemoryError), own_parts_named(model=module):
        module(torch.zeros(1, 4, dtype=torch.long))


def test_an_exit_within_a_layer_is_told() -> None:
    class Part(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise SystemExit(3)

    part = Part()
    with (
        pytest.raises(SpecError, match=r"^model, Part\.forward: found SystemExit: 3 "),
        own_parts_named(model=part),
    ):
        part(1)


class OfOnesOwn(FaultyModule):
    """A whole model whose loss has one number for each position."""

    def loss_sum(self, tokens: Any, labels: Any, valid: Any) -> Any:
        del labels, valid
        return torch.zeros(tokens.shape)


def test_a_loss_that_is_no_single_number() -> None:
    module = OfOnesOwn("", BuildContext(d_model=4, max_seq_len=4, initial=LLAMA.initial))
    tokens = torch.zeros(2, 4, dtype=torch.long)
    wanted = r"^model, OfOnesOwn\.loss_sum: found a tensor of shape \(2, 4\) as the loss, wanted a tensor of"
    with pytest.raises(SpecError, match=wanted), own_parts_named(model=module):
        sums_of(module)(tokens, tokens, tokens.bool())


def test_a_checkpoint_of_a_layer_that_was_changed_since(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = train(spec(model=mixed(Faulty()), to_step=1), inputs, tmp_path / "run")

    def wider(self: FaultyModule, fault: str, context: BuildContext) -> None:
        torch.nn.Module.__init__(self)
        self.fault = fault
        self.out = Linear(context.d_model, context.d_model + 1, bias=False, std=0.02)

    monkeypatch.setattr(FaultyModule, "__init__", wider)
    found = r"mixer\.out\.weight: found shape \(32, 32\) in the checkpoint and \(33, 32\) in the module"
    with pytest.raises(SpecError, match=found):
        load_model(stage)


def test_a_spec_that_refuses_what_it_was_trained_with(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = train(spec(model=mixed(Faulty()), to_step=1), inputs, tmp_path / "run")

    def refuse(self: Faulty) -> None:
        raise ValueError(f"no {self.parameters}")

    monkeypatch.setattr(Faulty, "__post_init__", refuse, raising=False)
    monkeypatch.setattr(Faulty, "__init__", lambda self, **_: self.__post_init__())
    with pytest.raises(
        SpecError, match=r"^Faulty\.refuse: found ValueError: no \(test_train_own_parts\.py:\d+\)"
    ):
        load_model(stage)
