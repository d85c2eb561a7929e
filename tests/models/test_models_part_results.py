"""What parts of a user's own return is looked at where it is used."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import Llama
from modelfactory.models.part_results import PartFault, counted
from tests.models.own_parts import COUNTS, Faulty, Unlike

BASE = Llama(n_layers=2, d_model=16, n_heads=2, max_seq_len=8, tied=True)
N_OF_ATTENTION = 4 * 16 * 16


def with_mixer(mixer: Any, *, base: Any = BASE) -> Any:
    return replace(base, blocks=(base.blocks[0], replace(base.blocks[0], mixer=mixer)))


@pytest.mark.parametrize("kind", COUNTS)
def test_a_count_that_is_none(kind: str) -> None:
    wanted = r"found .*, wanted a whole number, 0 or more\. Mend Faulty\."
    with pytest.raises(PartFault, match=rf"^Faulty\.n_parameters: {wanted}") as caught:
        with_mixer(Faulty(parameters=kind)).n_parameters(32)
    assert caught.value.found == repr(COUNTS[kind])
    with pytest.raises(PartFault, match=rf"^Faulty\.flops_per_token: {wanted}"):
        with_mixer(Faulty(flops=kind)).flops_per_token(32, 8)


def test_a_whole_number_that_is_written_as_a_real_one_counts() -> None:
    found = with_mixer(Faulty(parameters="whole")).n_parameters(32)
    assert type(found) is int
    assert found == BASE.n_parameters(32) - N_OF_ATTENTION + 16 * 16
    assert with_mixer(Faulty(parameters="whole")).n_active_parameters(32) == found


def test_methods_that_are_missing_or_of_another_form() -> None:
    with pytest.raises(PartFault, match=r"object\.flops_per_token: found no such method, wanted one that"):
        counted(object(), "flops_per_token", 32, 8)
    model = with_mixer(Unlike())
    with pytest.raises(
        PartFault, match=r"Unlike\.n_parameters: found TypeError: .*wanted one that takes 1 arg"
    ):
        model.n_parameters(32)
    with pytest.raises(PartFault, match=r"Unlike\.build: found TypeError"):
        model.build(32, seed=0)


def test_a_type_error_within_a_count_stays_what_it_is() -> None:
    class Adding:
        def n_parameters(self, d_model: int) -> Any:
            return d_model + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        counted(Adding(), "n_parameters", 8)


def test_a_build_without_a_module() -> None:
    with pytest.raises(PartFault, match=r"^Faulty\.build: found None, wanted a torch\.nn\.Module"):
        with_mixer(Faulty(module="none")).build(32, seed=0)


def test_a_matrix_that_nobody_fills() -> None:
    with pytest.raises(SpecError, match=r"^model\.blocks\.1\.mixer\.out: found Linear.*modules\.Linear"):
        with_mixer(Faulty(module="bare")).build(32, seed=0)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("short", r"a tensor of shape \(2, 7, 16\)"),
        ("mean", r"a tensor of shape \(2, 1, 16\)"),  # which could be added, and trained
        ("pair", "a tuple of 2"),
        ("nothing", "None"),
        ("routed", "a Routed of 4"),
    ],
)
@pytest.mark.parametrize("placement", ["pre", "output", "sandwich", "post"])
def test_a_mixer_that_gives_another_shape(fault: str, found: str, placement: Any) -> None:
    base = replace(BASE, blocks=(replace(BASE.blocks[0], placement=placement),))
    module = with_mixer(Faulty(module=fault), base=base).build(32, seed=0)
    wanted = rf"^FaultyModule\.forward: found {found}, wanted a tensor of shape \(2, 8, 16\)"
    with pytest.raises(PartFault, match=wanted) as caught:
        module(torch.zeros(2, 8, dtype=torch.long))
    assert caught.value.part is module.blocks[1].mixer


def test_a_fault_crosses_from_a_worker_without_its_part() -> None:
    fault = PartFault(place="p", found="f", wanted="w", remedy="r", part=Faulty())
    again = pickle.loads(pickle.dumps(fault))
    assert (type(again), str(again), again.part) == (PartFault, str(fault), None)
