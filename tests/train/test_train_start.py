from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.experiment import check_together
from modelfactory.models import GPT2, Adapted, Llama, LoRA
from modelfactory.spec import from_json, identity_json, to_json
from modelfactory.tokens import Mixture, Part
from modelfactory.train import AdamW, FromRun, Muon, Pretrained, Training, load_model, model_facts
from modelfactory.train import checkpoint as checkpoint_module
from modelfactory.train.loading import load_architecture
from modelfactory.train.stage import open_stream
from modelfactory.train.start import unlike
from tests.test_experiment import TRAINING, dataset, experiment
from tests.train.material import LLAMA, chain, deterministic_files, spec, train
from tests.train.world import Case, run_world

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory import Experiment

ADAPTED = Adapted(base=LLAMA, lora=LoRA(rank=4, alpha=8.0))
OTHER_LORA = replace(ADAPTED, lora=LoRA(rank=2, alpha=8.0))
MODELS: dict[str, Any] = {"full": LLAMA, "LoRA": ADAPTED}


@pytest.fixture(scope="module")
def base(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(spec(), inputs, tmp_path_factory.mktemp("base") / "stage")


@pytest.fixture(scope="module")
def tuned(inputs: dict[str, Path], base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    started = {**inputs, "start": base}
    return train(spec(model=ADAPTED, seed=4), started, tmp_path_factory.mktemp("tuned") / "stage")


def losses(stage: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (stage / "metrics.jsonl").read_text("utf-8").splitlines()]


def weights(stage: Path) -> dict[str, torch.Tensor]:
    return checkpoint_module.load(stage / "checkpoint", "model/")


def loss_of(model: torch.nn.Module, stage_spec: Any, inputs: dict[str, Path]) -> float:
    batch = open_stream(stage_spec, inputs).batch(1)
    rows, valid = torch.from_numpy(batch.tokens).long(), torch.from_numpy(batch.valid)
    with torch.no_grad():
        loss: Any = model.loss_sum(rows[:, :-1], rows[:, 1:], valid)  # type: ignore[operator]
    return float(loss) / batch.n_valid


@pytest.mark.parametrize("name", MODELS)
def test_it_begins_with_the_weights_of_the_start_and_nothing_else(
    name: str, inputs: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    part = spec(model=MODELS[name], to_step=10, seed=4, optimizer=AdamW(lr=3e-2, weight_decay=0.0))
    stage = train(part, {**inputs, "start": base}, tmp_path / "run")
    found = losses(stage)
    assert found[0] == pytest.approx(loss_of(load_model(base), part, inputs), abs=1e-5)
    assert loss_of(load_model(stage), part, inputs) < found[0]
    facts = model_facts(stage)
    assert (facts["step"], facts["n_tokens_seen"]) == (10, 1252)
    steps = checkpoint_module.load(stage / "checkpoint", "optimizer/")
    assert {float(value) for key, value in steps.items() if key.endswith("/step")} == {10.0}


def test_only_adapters_move_and_have_optimizer_state(tuned: Path, base: Path) -> None:
    before, after = weights(base), weights(tuned)
    assert all(torch.equal(after[key], value) for key, value in before.items())
    added = after.keys() - before.keys()
    assert len(added) == 2 * 4 * 2
    assert all(bool(after[key].any()) for key in added)
    states = checkpoint_module.load(tuned / "checkpoint", "optimizer/")
    assert {key.rpartition("/")[0].replace("optimizer/", "model/") for key in states} == added
    assert model_facts(tuned)["n_trainable"] == sum(after[key].numel() for key in added)


def test_a_checkpoint_is_loaded_with_its_adapters_merged(tuned: Path) -> None:
    assert load_architecture(tuned) == LLAMA
    adapted = ADAPTED.build(384, seed=0)
    adapted.load_state_dict({key.removeprefix("model/"): value for key, value in weights(tuned).items()})
    tokens = torch.randint(384, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(load_model(tuned)(tokens), adapted(tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_that_was_stopped_goes_on_from_its_own_checkpoint(
    name: str, inputs: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    started = {**inputs, "start": base}
    whole = chain([10], started, tmp_path / "whole", warm=False, model=MODELS[name])
    parts = chain([3, 10], started, tmp_path / "parts", warm=False, model=MODELS[name])
    alive = chain([3, 10], started, tmp_path / "alive", warm=True, model=MODELS[name])
    of_state = {key: value for key, value in deterministic_files(whole).items() if "metrics" not in key}
    for stage in (parts, alive):
        assert {key: deterministic_files(stage)[key] for key in of_state} == of_state


@pytest.mark.parametrize(
    ("model", "goes_on"),
    [(LLAMA, False), (OTHER_LORA, False), (ADAPTED, True)],
    ids=["merged into the whole", "merged below other adapters", "the same adapters go on"],
)
def test_a_start_with_adapters(
    model: Any, goes_on: bool, inputs: dict[str, Path], tuned: Path, tmp_path: Path
) -> None:
    part = spec(model=model, to_step=1, seed=5)
    stage = train(part, {**inputs, "start": tuned}, tmp_path / "run")
    assert losses(stage)[0] == pytest.approx(loss_of(load_model(tuned), part, inputs), abs=1e-5)
    name = "model/blocks.0.mixer.qkv.weight"
    is_frozen = isinstance(model, Adapted)
    merged = load_model(tuned).state_dict()[name.removeprefix("model/")]
    assert torch.equal(weights(stage)[name], weights(tuned)[name]) == goes_on
    assert torch.equal(weights(stage)[name], merged) == (is_frozen and not goes_on)


def test_another_model_or_tokenizer_is_refused_by_the_stage(
    inputs: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    wide = Llama(n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, max_seq_len=32, tied=True)
    with pytest.raises(SpecError, match=r"another model: d_model is 32, not 64; .*d_ff is 128, not 192"):
        train(spec(model=wide), {**inputs, "start": base}, tmp_path / "run")
    facts = model_facts(base) | {"vocab_size": 400}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(SpecError, match="a model of 400 tokens beside a tokenizer of 384"):
        train(spec(), {**inputs, "start": tmp_path}, tmp_path / "again")


def test_spare_rows_and_what_is_known_of_a_start_are_kept(
    inputs: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    state = {f"model/{name}": value for name, value in LLAMA.build(400, seed=0).state_dict().items()}
    checkpoint_module.save(state, tmp_path / "import" / "checkpoint")
    told = {"tokenizer_vocab_size": 384, "prefix_id": 7, "origin": {"names": {"pad_token": "<pad>"}}}
    imported = {"architecture": "Llama", "format": "gguf", "chat_template": "{{ messages }}"}
    facts = model_facts(base) | told | {"vocab_size": 400, "imported": imported}
    (tmp_path / "import" / "model.json").write_text(json.dumps(facts))
    before, started = tmp_path / "import", {**inputs, "start": tmp_path / "import"}
    for n in range(2):  # what is made of a start can be one itself
        stage = train(spec(to_step=1), {**started, "start": before}, tmp_path / f"run{n}")
        found = model_facts(stage)
        assert found["vocab_size"] == 400
        assert {key: found[key] for key in told} == told
        assert found["chat_template"] == "{{ messages }}"
        assert found["started_from"].endswith(
            "after 1 steps and 128 tokens" if n else "parameters, imported from gguf"
        )
        before = stage
    assert weights(before)["model/embedding.weight"].shape == (400, 32)


def test_conversations_hand_their_template_on_before_that_of_a_start(
    inputs: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    chats = shutil.copytree(inputs["tokens0"], tmp_path / "chats")
    own = {"chat_template": "{{ own }}", "chat_names": {"bos_token": "<own>"}}
    told = json.loads((chats / "tokens.json").read_text()) | own
    (chats / "tokens.json").write_text(json.dumps(told))
    start = shutil.copytree(base, tmp_path / "start")
    older = {"chat_template": "{{ older }}", "chat_names": {"bos_token": "<older>"}}
    facts = model_facts(base) | older
    (start / "model.json").write_text(json.dumps(facts))
    for given, wanted in (({"tokens0": chats, "start": start}, "own"), ({"start": start}, "older")):
        stage = train(spec(to_step=1), {**inputs, **given}, tmp_path / wanted)
        assert model_facts(stage)["chat_template"] == f"{{{{ {wanted} }}}}"
        assert model_facts(stage)["chat_names"] == {"bos_token": f"<{wanted}>"}
    assert "chat_template" not in model_facts(base)


def test_what_a_weight_depends_on() -> None:
    initial = GPT2(n_layers=9, d_model=8, n_heads=1, max_seq_len=2).initial
    short = replace(LLAMA, max_seq_len=16, initial=initial)
    assert unlike(LLAMA, short) == []
    assert unlike(ADAPTED, short) == unlike(LLAMA, OTHER_LORA) == []
    assert [change.path for change in unlike(short, LLAMA)] == ["max_seq_len"]
    learned = GPT2(n_layers=2, d_model=32, n_heads=2, max_seq_len=32)
    assert [change.path for change in unlike(learned, replace(learned, max_seq_len=16))] == ["max_seq_len"]
    assert [change.path for change in unlike(LLAMA, replace(LLAMA, tied=False))] == ["tied"]


BEFORE = experiment("before/seed=1", training=replace(TRAINING, n_checkpoints=2))
STARTED = replace(TRAINING, start=FromRun(experiment=BEFORE))
ADAPTED_GPT = Adapted(base=BEFORE.model, lora=LoRA(rank=1, alpha=1.0))


def test_a_start_stays_out_of_the_name_of_what_has_none() -> None:
    assert "start" not in identity_json(TRAINING)
    whole = experiment(training=STARTED)
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": replace(BEFORE.model, tied=False)}, "weights of another model: tied is true, not false"),
        ({"tokenizer": replace(BEFORE.tokenizer, vocab_size=301)}, "another than that of before/seed=1"),
        ({"model": ADAPTED_GPT, "training": TRAINING}, "only adapters are trained, wanted weights to adapt"),
        (
            {
                "model": ADAPTED_GPT,
                "training": replace(STARTED, optimizer=Muon(lr=0.1, adamw_lr=0.1, weight_decay=0.0)),
            },
            "found Muon for adapters",
        ),
    ],
)
def test_a_start_that_does_not_fit_is_refused_at_declaration(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        experiment(**({"training": STARTED} | changes))


def test_documents_of_the_start_may_not_be_judged_either() -> None:
    mixture = Mixture(parts=(Part(dataset=dataset("train", salt="x"), weight=1.0),))
    judged = dataset("held_out", salt="x")
    with pytest.raises(SpecError, match="on which the mixture trains"):
        experiment(judged=judged, mixture=mixture, training=STARTED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FromRun(experiment=BEFORE, step=3),
            "found 3, wanted a checkpoint of before/seed=1: 2, 4",
        ),
        (lambda: FromRun(experiment=TRAINING), "FromRun.experiment"),
        (lambda: Pretrained(path=""), "Pretrained.path"),
        (lambda: replace(TRAINING, start="base"), "Training.start"),
    ],
)
def test_bad_starts_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        make()


def test_replicates_may_start_from_replicates() -> None:
    def child(seed: int) -> Experiment:
        before = experiment(f"before/seed={seed}", seed=10 + seed)
        training: Training = replace(TRAINING, seed=seed, start=FromRun(experiment=before))
        return experiment(f"after/seed={seed}", training=training)

    assert check_together([child(1), child(2)]) == []


def test_two_processes_begin_and_go_on_as_one(inputs: dict[str, Path], base: Path, tmp_path: Path) -> None:
    started = {**inputs, "start": base}
    cases = [
        Case(name=f"{name}-{parallel[:-2]}", spec=spec(model=model, to_step=4), parallel=parallel)
        for name, model in MODELS.items()
        for parallel in ("data=2", "shard=2")
    ]
    world = run_world(2, cases, started, tmp_path / "world")
    for name, model in MODELS.items():
        alone = train(spec(model=model, to_step=4), started, tmp_path / name)
        for parallel in ("data", "shard"):
            together = world / f"{name}-{parallel}"
            torch.testing.assert_close(losses(together), losses(alone), rtol=0, atol=1e-5)
            found, wanted = weights(together), weights(alone)
            assert found.keys() == wanted.keys()
            for key, value in wanted.items():
                torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4, msg=f"{together.name} {key}")
