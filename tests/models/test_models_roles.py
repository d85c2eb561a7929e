"""A part that lacks a method, or stands where another one belongs, is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import QKNorm
from modelfactory.models.modules import Linear
from modelfactory.models.part_results import PartFault
from tests.models.own_parts import Faulty, FaultyModule
from tests.models.test_models_counts import BLOCK, EVERY, LLAMA

if TYPE_CHECKING:
    from modelfactory.models import BuildContext, Decoder

PARTS = {
    name: {type(getattr(block, name)).__name__: getattr(block, name) for spec in EVERY.values()
           for block in spec.blocks}
    for name in ("mixer", "feed_forward", "norm")
}  # fmt: skip
WANTED = {"mixer": "a mixer", "feed_forward": "a feed-forward", "norm": "a norm"}
MISPLACED = [
    pytest.param(place, part, id=f"{name} as {place}")
    for place in PARTS
    for other, parts in PARTS.items()
    for name, part in parts.items()
    if other != place
]


def test_every_class_of_the_package_is_tried() -> None:
    assert {name: sorted(parts) for name, parts in PARTS.items()} == {
        "mixer": ["Attention", "GatedDelta", "LatentAttention", "Mamba2"],
        "feed_forward": ["Experts", "FeedForward", "GatedFeedForward"],
        "norm": ["LayerNorm", "RMSNorm"],
    }


@pytest.mark.parametrize(("place", "part"), MISPLACED)
def test_a_part_in_the_place_of_another(place: str, part: Any) -> None:
    with pytest.raises(SpecError) as caught:
        replace(BLOCK, **{place: part})
    assert caught.value.place == f"Block.{place}"
    assert caught.value.found.startswith(f"{type(part).__name__}(")
    if place == "norm" or not type(part).__name__.endswith("Norm"):
        assert caught.value.wanted == WANTED[place]
    else:  # which has no FLOPs
        assert caught.value.wanted.startswith("a Layer, which has ")


def test_a_whole_block_and_a_whole_model_are_no_layers() -> None:
    for whole in (BLOCK, LLAMA):
        with pytest.raises(SpecError, match=r"Block\.mixer: found .*wanted a mixer"):
            replace(BLOCK, mixer=whole)


@pytest.mark.parametrize("part", PARTS["mixer"].values(), ids=PARTS["mixer"])
def test_a_norm_elsewhere_that_is_a_mixer(part: Any) -> None:
    with pytest.raises(SpecError, match=r"Decoder\.final_norm: found .*, wanted a norm"):
        replace(LLAMA, final_norm=part)
    with pytest.raises(SpecError, match=r"QKNorm\.norm: found .*, wanted a norm"):
        QKNorm(norm=part, over="head")
    with pytest.raises(SpecError, match=r"LatentAttention\.norm: found .*, wanted a norm"):
        replace(PARTS["mixer"]["LatentAttention"], norm=part)


@dataclass(frozen=True, kw_only=True)
class Unbuilt:
    def n_parameters(self, d_model: int) -> int:
        return 0

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class Uncounted:
    def build(self, context: BuildContext) -> Any:
        return torch.nn.Identity()


@pytest.mark.parametrize("place", ["mixer", "feed_forward"])
@pytest.mark.parametrize(
    ("layer", "missing"),
    [(Unbuilt(), "build"), (Uncounted(), "flops_per_token, n_parameters")],
)
def test_a_layer_without_a_method(place: str, layer: Any, missing: str) -> None:
    with pytest.raises(
        SpecError, match=rf"^Block\.{place}: found .*, wanted a Layer, which has {missing}\.$"
    ):
        replace(BLOCK, **{place: layer})


def test_a_norm_and_a_model_without_a_method() -> None:
    with pytest.raises(SpecError, match=r"^Block\.norm: .*wanted a Norm, which has build\.$"):
        replace(BLOCK, norm=Unbuilt())


@dataclass(frozen=True, kw_only=True)
class Fed(Faulty):
    """A feed-forward of the user's own."""

    def build(self, context: BuildContext) -> Any:
        return Linear(context.d_model, context.d_model, bias=False, std=0.02)


@dataclass(frozen=True, kw_only=True)
class Greedy(Faulty):
    """Builds a module that is called with more than there is."""

    def build(self, context: BuildContext) -> Any:
        return GreedyModule("", context)


class GreedyModule(FaultyModule):
    new_cache = None  # type: ignore[assignment]

    def forward(self, x_BTD: torch.Tensor, z_BTD: torch.Tensor) -> Any:  # type: ignore[override]
        return x_BTD + z_BTD


def test_layers_of_the_users_own_where_they_belong() -> None:
    spec = with_layers(mixer=Faulty(), feed_forward=Fed())
    assert spec.build(32, seed=0)(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 32)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (
            {"feed_forward": Faulty()},
            r"Faulty\.build: found new_cache, .*wanted the module of a feed-forward",
        ),
        ({"mixer": Fed()}, r"Fed\.build: found a Linear with forward\(.*wanted .*\(x_BTD, cache, packing\)"),
        ({"feed_forward": Greedy()}, r"Greedy\.build: found a GreedyModule with .*wanted .*forward\(x_BTD\)"),
    ],
)
def test_layers_of_the_users_own_where_they_do_not(layers: dict[str, Any], told: str) -> None:
    with pytest.raises(PartFault, match=rf"^{told}"):
        with_layers(**layers).build(32, seed=0)


def with_layers(**layers: Any) -> Decoder:
    return replace(LLAMA, blocks=(BLOCK, replace(BLOCK, **layers)))
