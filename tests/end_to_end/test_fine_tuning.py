"""A model is trained, exported, and trained on from the folder and from the run, whole and by adapters."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.interchange import import_model
from modelfactory.spec import from_json
from modelfactory.train import load_model
from modelfactory.train.stage import open_stream
from tests.end_to_end.factory import Line, forget, small_files

if TYPE_CHECKING:
    from pathlib import Path

BASE = '''\
"""A model to start from."""

from modelfactory import Experiment
from modelfactory.data import Dataset, Files, Split
from modelfactory.evaluate import BitsPerByte
from modelfactory.models import Llama
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import AdamW, Cosine, Training


def texts(name: str, part: str) -> Dataset:
    source = Files(root=name, pattern="**/*", not_utf8="drop")
    return Dataset(name=name, sources=(source,), split=Split(part=part, held_out_share=0.25))


def judged(name: str) -> tuple[BitsPerByte, ...]:
    return (BitsPerByte(dataset=texts(name, "held_out"), max_documents=2, max_bytes=300),)


def mixture(name: str) -> Mixture:
    return Mixture(parts=(Part(dataset=texts(name, "train"), weight=1.0),))


def training(lr: float, seed: int, **more: object) -> Training:
    return Training(
        n_tokens=16 * 256,
        batch_tokens=256,
        optimizer=AdamW(lr=lr, weight_decay=0.0),
        schedule=Cosine(warmup_steps=2),
        seed=seed,
        precision="fp32",
        n_checkpoints=2,
        **more,
    )


BEFORE = Experiment(
    name="base/seed=1",
    tokenizer=BPE(vocab_size=320, dataset=texts("corpus", "train")),
    mixture=mixture("corpus"),
    model=Llama(n_layers=1, d_model=32, n_heads=2, max_seq_len=32, d_ff=64),
    training=training(1e-2, 1),
    evaluations=judged("corpus"),
)


def experiments() -> list[Experiment]:
    return [BEFORE]
'''
TUNED = '''\
"""Which way of training on is best?"""

from dataclasses import replace

from base_study import BEFORE, judged, mixture, training

from modelfactory import Experiment
from modelfactory.interchange import architecture_of
from modelfactory.models import Adapted, LoRA
from modelfactory.tokens import TokenizerFile
from modelfactory.train import FromRun, Pretrained

FOLDER = Pretrained(path="exported")
THEIRS = TokenizerFile(path="exported/tokenizer.json", eos_token="<|endoftext|>")
WHOLE = architecture_of("exported")
LORA = Adapted(base=WHOLE, lora=LoRA(rank=8, alpha=16.0))


def tuned(name: str, lr: float, start: object, tokenizer: object, model: object) -> Experiment:
    return Experiment(
        name=f"{name}/seed=2",
        tokenizer=tokenizer,
        mixture=mixture("numbers"),
        model=model,
        training=training(lr, 2, start=start),
        evaluations=judged("numbers"),
    )


def experiments() -> list[Experiment]:
    return [
        tuned("folder", 3e-3, FOLDER, THEIRS, WHOLE),
        tuned("LoRA", 1e-2, FOLDER, THEIRS, LORA),
        tuned("run", 3e-3, FromRun(experiment=BEFORE), BEFORE.tokenizer, BEFORE.model),
    ]
'''
NAMES = ("folder", "LoRA", "run")


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, dict[str, Any]]:
    line = Line(tmp_path_factory.mktemp("tuning") / "line")
    line.corpus.mkdir(parents=True)
    for path in small_files(24):
        shutil.copyfile(path, line.corpus / path.name)
    (line.folder / "numbers").mkdir()
    for n in range(24):
        rows = (f"{m} times {m} is {m * m}\n" for m in range(40 * n, 40 * n + 40))
        (line.folder / "numbers" / f"{n}.txt").write_text("".join(rows))
    base, tuned = line.folder / "base_study.py", line.folder / "tuned_study.py"
    base.write_text(BASE)
    tuned.write_text(TUNED)
    answer = line.ask("run", base, "--json")
    assert answer.code == 0, answer.err
    answer = line.call("export", "base/seed=1", "--to", line.folder / "exported", "--json")
    assert answer.code == 0, answer.err
    before = plan(line)
    answer = line.ask("run", tuned, "--json")
    assert answer.code == 0, answer.err
    return line, before


def plan(line: Line, name: str = "tuned_study.py") -> dict[str, Any]:
    forget("base_study", "tuned_study")
    answer = line.call("plan", line.folder / name, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def stages(line: Line, name: str) -> list[dict[str, Any]]:
    """Return the training stages of an experiment's own run."""
    return [
        stage
        for stage in plan(line)["stages"]
        if stage["kind"] == "train" and stage["label"].startswith(name)
    ]


def directory(line: Line, fingerprint: str) -> Path:
    (found,) = (path for path in line.workspace.rglob(fingerprint) if path.is_dir())
    return found


def loss_at_first(stage: Path) -> float:
    return float(json.loads((stage / "metrics.jsonl").read_text("utf-8").splitlines()[0])["loss"])


def test_only_what_is_new_is_planned(carried_out: tuple[Line, dict[str, Any]]) -> None:
    line, before = carried_out
    to_run = [stage for stage in before["stages"] if stage["state"] != "stored"]
    kinds = sorted(stage["kind"] for stage in to_run)
    assert kinds.count("import") == 1  # for both experiments that start from the folder
    assert kinds.count("train") == 3 * 2
    assert not [stage for stage in to_run if stage["label"].startswith("base")]
    assert {stage["state"] for stage in plan(line)["stages"]} == {"stored"}


def test_every_run_begins_where_the_base_ended_and_gets_better(
    carried_out: tuple[Line, dict[str, Any]],
) -> None:
    line, _ = carried_out
    (last,) = (s for s in stages(line, "base/seed=1") if s["label"].endswith("16"))
    base = load_model(directory(line, last["id"]))
    found = {name: [directory(line, stage["id"]) for stage in stages(line, name)] for name in NAMES}
    record = line.call("show", stages(line, "run")[0]["id"], "--json").json
    inputs = {name: directory(line, parent) for name, parent in record["inputs"].items()}
    spec = from_json(record["spec"])
    batch = open_stream(spec, inputs).batch(1)
    rows, valid = torch.from_numpy(batch.tokens).long(), torch.from_numpy(batch.valid)
    with torch.no_grad():
        wanted = float(base.loss_sum(rows[:, :-1], rows[:, 1:], valid)) / batch.n_valid  # type: ignore[operator]
        for name in NAMES:
            assert loss_at_first(found[name][0]) == pytest.approx(wanted, abs=1e-5), name
            after = load_model(found[name][-1])
            loss = float(after.loss_sum(rows[:, :-1], rows[:, 1:], valid)) / batch.n_valid  # type: ignore[operator]
            assert loss < wanted - 0.3, name


def test_lineage_names_the_start(carried_out: tuple[Line, dict[str, Any]]) -> None:
    line, _ = carried_out
    for stage in stages(line, "LoRA"):
        assert "start: import" in line.call("show", stage["id"]).out
    last = stages(line, "run")[-1]
    assert "start: train" in line.call("show", last["id"]).out
    (base,) = (s for s in stages(line, "base/seed=1") if s["label"].endswith("16"))
    assert last["label"] in line.call("show", base["id"]).out


def test_the_folder_is_what_the_verb_import_makes_of_it(carried_out: tuple[Line, dict[str, Any]]) -> None:
    line, _ = carried_out
    (start,) = (stage for stage in plan(line)["stages"] if stage["kind"] == "import")
    answer = line.call("import", line.folder / "exported", "--name", "known", "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["stages"]["import"], answer.json["was_there"]) == (start["id"], True)


def test_what_adapters_learned_is_exported_merged(carried_out: tuple[Line, dict[str, Any]]) -> None:
    line, _ = carried_out
    to = line.folder / "merged"
    answer = line.call("export", "LoRA/seed=2", "--to", to, "--json")
    assert answer.code == 0, answer.err
    card = (to / "README.md").read_text()
    assert "| started from | LlamaForCausalLM of " in card
    assert "| adapters | LoRA of rank " in card
    imported, before = import_model(to), import_model(line.folder / "exported")
    assert replace(imported.spec, initial=before.spec.initial) == before.spec
    tokens = torch.arange(32)[None] + 40
    with torch.no_grad():
        logits = imported.build()(tokens)
        trained = load_model(directory(line, stages(line, "LoRA")[-1]["id"]))(tokens)
        assert torch.equal(logits, trained)
        assert (logits - before.build()(tokens)).abs().max() > 1e-2


def test_another_byte_of_the_start_makes_all_that_follows_new(
    carried_out: tuple[Line, dict[str, Any]],
) -> None:
    line, _ = carried_out
    file = line.folder / "exported" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        left = [stage for stage in plan(line)["stages"] if stage["state"] != "stored"]
    finally:
        file.write_bytes(content)
    assert sorted(stage["kind"] for stage in left) == ["evaluate"] * 4 + ["import"] + ["train"] * 4
    assert not [stage for stage in left if stage["label"].startswith("run")]
    assert {stage["state"] for stage in plan(line)["stages"]} == {"stored"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("base=WHOLE", "base=replace(WHOLE, tied=True)", "tied is false, not true"),
        ("tokenizer=tokenizer", "tokenizer=BEFORE.tokenizer", "a tokenizer that is trained anew"),
        (
            'path="exported")',
            'path="nowhere")',
            "training.start: nowhere (in 2 of 3 experiments: folder/seed=2, LoRA/seed=2): found nothing",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_work(
    old: str, new: str, message: str, carried_out: tuple[Line, dict[str, Any]]
) -> None:
    line, _ = carried_out
    other = line.folder / "tuned_otherwise.py"
    assert TUNED.count(old) >= 1
    other.write_text(TUNED.replace(old, new))
    forget("base_study", "tuned_otherwise")
    answer = line.call("plan", other)
    assert answer.code == 2
    assert message in answer.err
