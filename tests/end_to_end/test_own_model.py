"""A model of the user's own: every verb that reads its checkpoint finds the module beside the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.store import Store
from tests.end_to_end.factory import Answered, Line, forget, new_line

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = '''\
"""A feed-forward of the user's own: the tokens' numbers through one matrix."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Matrix:
    def n_parameters(self, d_model):
        return d_model * d_model

    def flops_per_token(self, d_model, seq_len):
        return 6 * d_model * d_model

    def build(self, context):
        from modelfactory.models.modules import Linear

        return Linear(context.d_model, context.d_model, bias=False, std=0.02)
'''
MODEL = "GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=32)"
OWN = "replace(GPT, blocks=(replace(GPT.blocks[0], feed_forward=Matrix()),))"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """Return a study of one experiment with a layer of the user's own, carried out."""
    own = new_line(tmp_path_factory.mktemp("own") / "line", n_steps=4, n_checkpoints=1, n_files=12)
    (own.folder / "own_layers.py").write_text(LAYERS)
    own.edit(own.study, f"model={MODEL}", f"model={OWN}")
    imports = "from dataclasses import replace\n\nfrom own_layers import Matrix\nfrom keepers"
    own.edit(own.study, "from keepers", imports)
    own.edit(own.study, "\n\ndef variant(", f"\nGPT = {MODEL}\n\n\ndef variant(")
    own.edit(own.study, '{"low": 1e-3, "high": 3e-3}', '{"low": 1e-3}')
    own.edit(own.study, "for seed in (1, 2)", "for seed in (1,)")
    answer = own.run()
    assert answer.code == 0, answer.err
    return own


def called(own: Line, *words: object) -> Answered:
    """Carry out a verb as if nothing had been imported from beside the experiment."""
    forget("own_layers")
    try:
        return own.call(*map(str, words))
    finally:
        forget("own_layers")


def trained(own: Line) -> str:
    stages = called(own, "show", "low/seed=1", "--json").json["stages"]
    (found,) = (stage["id"] for role, stage in stages.items() if role.startswith("train@"))
    return str(found)


@pytest.mark.parametrize("name", ["low/seed=1", "its stage"])
def test_it_is_sampled(name: str, own: Line) -> None:
    checkpoint = trained(own) if name == "its stage" else name
    answer = called(own, "sample", checkpoint, "def ", "--max-new-tokens", 3, "--json")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("format_", ["hf", "gguf"])
def test_of_an_export_the_true_fault_is_told(format_: str, own: Line, tmp_path: Path) -> None:
    answer = called(own, "export", "low/seed=1", "--to", tmp_path / "out", "--format", format_)
    assert answer.code == 2
    assert "that no architecture of" in answer.err
    assert "Matrix" in answer.err


def test_its_module_is_found_where_the_name_has_another_meaning_by_now(own: Line, tmp_path: Path) -> None:
    stage = trained(own)
    with Store.open(own.workspace) as store:
        store.name_experiment("low/seed=1", str(tmp_path / "another.py"), "{}", {})
    answer = called(own, "sample", stage, "def ", "--max-new-tokens", 3, "--json")
    assert answer.code == 0, answer.err
