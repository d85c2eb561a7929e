"""How large the models of a study are, before and after their tokenizers are there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from modelfactory.cli.planning import plan_json, print_plan
from modelfactory.cli.showing import model_facts, titled
from modelfactory.data import MemoryCache
from modelfactory.findings.models import model_sizes
from modelfactory.findings.report_data import used_for
from modelfactory.models import Adapted, Llama, LoRA, Mixtral
from modelfactory.plan import Plan, pin_sources, plan_experiments
from modelfactory.train import FromRun
from tests.test_experiment import experiment

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory import Experiment

LLAMA = Llama(n_layers=1, d_model=8, n_heads=1, max_seq_len=16)
SPARSE = Mixtral(
    n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=16, n_experts=4, n_active=2, max_seq_len=16
)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"text {number} " * 10)
    monkeypatch.chdir(tmp_path)
    whole = replace(experiment("whole/seed=1"), model=LLAMA)
    start = replace(whole.training, start=FromRun(experiment=whole))
    adapted = Adapted(base=LLAMA, lora=LoRA(rank=2, alpha=4.0))
    return planned(
        whole,
        replace(whole, name="whole/seed=2", training=replace(whole.training, seed=2)),
        replace(whole, name="adapted/seed=1", model=adapted, training=start),
        replace(whole, name="sparse/seed=1", model=SPARSE),
    )


def planned(*experiments: Experiment) -> Plan:
    return plan_experiments(experiments, pin_sources(experiments, MemoryCache()), None, jobs=1, threads=1)


def test_each_variant_once_with_what_is_trained_and_what_a_token_meets(plan: Plan) -> None:
    sizes = model_sizes(plan, None)
    assert list(sizes) == ["whole", "adapted", "sparse"]
    asked = plan.experiments[0].tokenizer.vocab_size  # type: ignore[union-attr]
    n_parameters = LLAMA.n_parameters(asked)
    whole, adapted, sparse = sizes.values()
    assert (whole.vocab_size, whole.n_parameters, whole.n_trainable) == (asked, n_parameters, n_parameters)
    assert whole.n_active == n_parameters
    assert whole.flops_per_token == LLAMA.flops_per_token(asked, 16)
    matrices = {"qkv": (8, (8, 8, 8)), "out": (8, (8,)), "gate_up": (8, (64, 64)), "down": (64, (8,))}
    added = sum(2 * (len(rows) * n_in + sum(rows)) for n_in, rows in matrices.values())
    assert adapted.n_trainable == added
    assert adapted.n_parameters == adapted.n_active == n_parameters + added
    assert sparse.n_parameters - sparse.n_active == 2 * 3 * 8 * 16  # two idle experts of three matrices


def test_the_plan_says_so(plan: Plan) -> None:
    sizes = model_sizes(plan, None)
    data = plan_json(plan, sizes.values())
    assert [model["variant"] for model in data["models"]] == ["whole", "adapted", "sparse"]
    assert data["models"][1]["n_trainable"] == sizes["adapted"].n_trainable
    out = printed(plan, sizes)
    (line,) = [line for line in out if line.startswith("adapted ")]
    assert f"{sizes['adapted'].n_parameters:,}" in line
    assert f" {sizes['adapted'].n_trainable:,} " in line
    (head,) = [line for line in out if line.startswith("variant")]
    assert head.split("  ")[0] == "variant"
    assert "trained" in head
    assert "active" in head


def test_columns_without_news_are_left_out(plan: Plan) -> None:
    sizes = {"whole": model_sizes(plan, None)["whole"]}
    (head,) = [line for line in printed(plan, sizes) if line.startswith("variant")]
    assert head.split() == ["variant", "parameters", "FLOPs", "a", "token"]


def printed(plan: Plan, sizes: dict[str, Any]) -> list[str]:
    console = Console(width=200)
    with console.capture() as captured:
        print_plan(console, plan, sizes.values(), every=False)
    return captured.get().splitlines()


def test_a_stage_says_how_large_its_model_is(tmp_path: Path) -> None:
    assert list(model_facts(tmp_path)) == []
    facts = {"n_parameters": 12_345, "flops_per_token": 74_070}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    assert list(model_facts(tmp_path)) == ["12,345 parameters; 74.1 kFLOP for each token trained on"]
    (tmp_path / "model.json").write_text(json.dumps(facts | {"n_trainable": 1_024}))
    (line,) = model_facts(tmp_path)
    assert line.startswith("12,345 parameters, 1,024 of them trained; ")


@pytest.mark.parametrize(
    ("kind", "label", "title"),
    [
        ("tokenizer", "tokenizer of tiny", "tokenizer of tiny"),
        ("tokenizer", "byte-pair encoding of 320 on python", "tokenizer byte-pair encoding of 320 on python"),
        ("train", "training/seed=1 to step 8", "train training/seed=1 to step 8"),
    ],
)
def test_a_kind_is_said_once(kind: str, label: str, title: str) -> None:
    assert titled(kind, label) == title


def test_a_dataset_of_all_variants_does_not_list_them(plan: Plan) -> None:
    (trained_on,) = [s for s in plan.stages if s.kind == "documents" and s.spec.split.part == "train"]
    users = list(plan.experiments)
    assert used_for(trained_on, users, 3) == "trained on by all variants"
    assert used_for(trained_on, users[:3], 3) == "trained on by whole; adapted"
    assert used_for(trained_on, users[:2], 1) == "trained on by whole"
