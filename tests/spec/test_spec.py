from __future__ import annotations

import math
import sys
import types
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelfactory.errors import SpecError
from modelfactory.spec import (
    canonical_json,
    collecting,
    difference,
    fingerprint,
    from_json,
    identity_json,
    load_object,
    names_in,
    to_json,
    where_paths,
)
from tests.spec.specs import Anything, Chosen, Mutable, Named, Optimizer, Sized, Train, Wrapped, keep_all

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = Train(optimizer=Optimizer(lr=0.1), n_steps=3, betas=(0.5, 1.0))


def test_golden_fingerprint() -> None:
    """Pinned: a change here would orphan every stored result."""
    assert identity_json(TRAIN) == (
        '{"betas":[0.5,1.0],"n_steps":3,"optimizer":{"lr":0.1,"type":"tests.spec.specs:Optimizer"},'
        '"type":"tests.spec.specs:Train"}'
    )
    assert fingerprint(TRAIN) == "6c4d501fae959b8c0ebb3808a06a9eb05b08f878db69afcb0be86420677e0a92"


@given(
    lr=st.floats(min_value=1e-300, max_value=1e300),
    n_steps=st.integers(),
    betas=st.lists(st.floats(allow_nan=False, allow_infinity=False)),
    folder=st.text(),
)
def test_round_trip(lr: float, n_steps: int, betas: list[float], folder: str) -> None:
    optimizer = Optimizer(lr=lr)
    value = Train(optimizer=optimizer, n_steps=n_steps, betas=tuple(betas), folder=folder, keep=keep_all)
    again = from_json(to_json(value))
    assert again == value
    assert canonical_json(again) == canonical_json(value)
    assert fingerprint(again) == fingerprint(value)


def test_whole_and_real_agree_in_a_float_field() -> None:
    one, real = Optimizer(lr=1), Optimizer(lr=1.0)  # type: ignore[arg-type]
    assert one == real
    assert type(one.lr) is float
    assert fingerprint(one) == fingerprint(real)


def test_negative_zero_is_zero() -> None:
    assert fingerprint(Anything(value=-0.0)) == fingerprint(Anything(value=0.0))


def test_where_is_no_identity() -> None:
    assert fingerprint(Train(optimizer=Optimizer(lr=1.0), n_steps=1, folder="a")) == fingerprint(
        Train(optimizer=Optimizer(lr=1.0), n_steps=1, folder="b")
    )
    assert list(where_paths(TRAIN)) == ["folder"]


def test_a_default_added_later_keeps_fingerprints() -> None:
    source = """
from dataclasses import dataclass
from modelfactory.spec import check_types
@dataclass(frozen=True, kw_only=True)
class Growing:
    x: float
    {more}
    def __post_init__(self):
        check_types(self)
"""
    prints = []
    for more, given_ in (("", {}), ("y: int = 3", {}), ("y: int = 3", {"y": 4})):
        module = types.ModuleType("growing")
        sys.modules["growing"] = module
        exec(source.format(more=more), module.__dict__)
        prints.append(fingerprint(module.Growing(x=1.0, **given_)))
    del sys.modules["growing"]
    assert prints[0] == prints[1]
    assert prints[1] != prints[2]


@pytest.mark.parametrize(
    ("make", "place", "wanted"),
    [
        (lambda: Optimizer(lr=math.nan), "Optimizer.lr", "finite"),
        (lambda: Optimizer(lr=math.inf), "Optimizer.lr", "finite"),
        (lambda: Optimizer(lr=True), "Optimizer.lr", "real number"),
        (lambda: Optimizer(lr="1"), "Optimizer.lr", "real number"),
        (lambda: Optimizer(lr=-1), "Optimizer.lr", "above 0"),
        (lambda: Optimizer(lr=1.0, kind="adm"), "Optimizer.kind", "'adam', 'sgd'"),
        (lambda: Train(optimizer=Optimizer(lr=1.0), n_steps=1.0), "Train.n_steps", "whole number"),
        (lambda: Train(optimizer=Optimizer(lr=1.0), n_steps=1, betas=[0.1]), "Train.betas", "cannot change"),
        (lambda: Train(optimizer=Optimizer(lr=1.0), n_steps=1, betas=(1.0, math.nan)), "betas[1]", "finite"),
        (lambda: Named(layer=Sized), "Named.layer", "a Measured"),
        (lambda: Train(optimizer=3, n_steps=1), "Train.optimizer", "a Optimizer"),
        (lambda: Train(optimizer=Optimizer(lr=1.0), n_steps=1, keep=lambda _: True), "keep", "importable"),
        (lambda: Anything(value={"a": 1}), "Anything.value", "cannot change"),
        (lambda: Anything(value=Mutable()), "Mutable", "frozen dataclass"),
        (lambda: Anything(value=object()), "Anything.value", "importable"),
        (lambda: Anything(value=(1.0, math.nan)), "Anything.value[1]", "finite"),
    ],
)
def test_refused(make: object, place: str, wanted: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()  # type: ignore[operator]
    assert place in caught.value.place
    assert wanted in caught.value.wanted


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (keep_all, "Write Wrapped(function=keep_all)."),
        (lambda _: True, "Write Wrapped(function=...)."),
        (Wrapped, "Call it: Wrapped(...)."),
        (Train, ""),
        (3, ""),
    ],
)
def test_a_bare_function_or_class_is_told_how_it_becomes_a_spec(value: object, remedy: str) -> None:
    for make in (lambda: Chosen(one=value), lambda: Chosen(many=(value,))):
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.remedy == remedy
        assert " at 0x" not in caught.value.found, "an address differs each time"


def test_main_is_refused_with_the_remedy() -> None:
    def double(x: int) -> int:
        return x

    double.__module__, double.__qualname__ = "__main__", "double"
    with pytest.raises(SpecError, match="Move it to a module"):
        Anything(value=double)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"optimiser": {}}, "optimiser: found an unknown field.*Did you mean 'optimizer'"),
        ({"optimizer": {"type": "tests.spec.specs:Optimizer", "lrr": 1}, "n_steps": 1}, "optimizer.lrr"),
        (
            {"optimizer": {"type": "tests.spec.specs:Optimizer", "lr": -1}, "n_steps": 1},
            "optimizer.lr: found",
        ),
        ({"optimizer": {"type": "tests.spec.specs:Optimizer"}, "n_steps": 1}, "optimizer.lr: found nothing"),
        ({"optimizer": {"type": "tests.spec.specs:Optimzer"}, "n_steps": 1}, "Did you mean 'Optimizer'"),
        ({"optimizer": {"type": "no_such_module:X"}, "n_steps": 1}, "module that can be imported"),
        ({"optimizer": {"lr": 1}, "n_steps": 1}, "names its class"),
    ],
)
def test_reading_names_the_place(data: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        from_json({"type": "tests.spec.specs:Train", **data})


def test_difference() -> None:
    other = Train(optimizer=Optimizer(lr=0.2), n_steps=3, betas=(0.5,), keep=keep_all)
    assert [str(change) for change in difference(TRAIN, other)] == [
        "optimizer.lr: 0.1 -> 0.2",
        "betas[1]: 1.0 -> nothing",
        'keep: null -> {"import":"tests.spec.specs:keep_all"}',
    ]
    assert difference(TRAIN, TRAIN) == []


def test_collecting_finds_all() -> None:
    with collecting() as faults:
        Optimizer(lr=-1, kind="no")  # type: ignore[arg-type]
        Train(optimizer=Optimizer(lr=math.nan), n_steps=0.5)  # type: ignore[arg-type]
    assert [fault.place for fault in faults] == [
        "Optimizer.kind",
        "Optimizer.lr",
        "Optimizer.lr",
        "Optimizer.lr",
        "Train.n_steps",
    ]


def test_names() -> None:
    value = Train(optimizer=Optimizer(lr=1.0), n_steps=1, keep=keep_all)
    assert names_in(value) == {
        "tests.spec.specs:Train",
        "tests.spec.specs:Optimizer",
        "tests.spec.specs:keep_all",
    }


def test_a_module_that_raises_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_edited.py").write_text("raise ValueError('no luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = "'half_edited:Own', whose module raises ValueError: no luck, wanted .* Mend half_edited"
    with pytest.raises(SpecError, match=found):
        load_object("half_edited:Own")
