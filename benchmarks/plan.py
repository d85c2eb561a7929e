"""How long a plan of 1,000 experiments of 5 stages takes, nothing stored and all stored.

The experiments share their inputs: one corpus, one tokenizer, one table of tokens; each trains and evaluates
a run of its own. Measured is the whole command `factory plan FILE --json` in a process of its own, with its
largest memory, against the limits of the design: 2 s and 300 MB for a plan, 1 s beyond start-up for a plan
of which all is stored. There is no peer: a ratio is the limit over what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from modelfactory.data import MemoryCache
from modelfactory.engine.protocol import Finished
from modelfactory.loading import load_study
from modelfactory.plan import Plan, pin_sources, plan_experiments
from modelfactory.run.making import record_of
from modelfactory.spec import canonical_json
from modelfactory.store import Store, this_process

N_EXPERIMENTS = 1_000
TRIALS = 5
LIMIT_S, LIMIT_BYTES, LIMIT_STORED_S = 2.0, 300e6, 1.0
STUDY = '''\
"""How far does the learning rate matter?"""

from modelfactory import Experiment
from modelfactory.data import Dataset, Files, Split
from modelfactory.evaluate import BitsPerByte
from modelfactory.models import Llama
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import WSD, AdamW, Training

SOURCE = Files(root={root!r}, pattern="*.txt", not_utf8="drop")


def texts(part: str) -> Dataset:
    split = Split(part=part, held_out_share=0.5)
    return Dataset(name="texts", sources=(SOURCE,), filters=(), dedup=(), split=split)


TRAIN, HELD_OUT = texts("train"), texts("held_out")


def experiments() -> list[Experiment]:
    return [
        Experiment(
            name=f"lr={{n}}e-6/seed={{seed}}",
            tokenizer=BPE(vocab_size=4_096, dataset=TRAIN),
            mixture=Mixture(parts=(Part(dataset=TRAIN, weight=1.0),)),
            model=Llama(n_layers=6, d_model=384, n_heads=6, max_seq_len=512),
            training=Training(
                n_tokens=20_000_000,
                batch_tokens=32_768,
                optimizer=AdamW(lr=n * 1e-6, weight_decay=0.1),
                schedule=WSD(warmup_steps=10, decay_steps=60),
                seed=seed,
                n_checkpoints=1,
            ),
            evaluations=(BitsPerByte(dataset=HELD_OUT, max_documents=100, max_bytes=4_096),),
        )
        for n in range(1, {n_variants} + 1)
        for seed in range(5)
    ]
'''


def made_study(folder: Path) -> Path:
    texts = folder / "texts"
    texts.mkdir()
    for number in range(64):
        (texts / f"{number}.txt").write_text(f"text {number}\n" * 20, encoding="utf-8")
    study = folder / "planning_study.py"
    text = STUDY.format(root=str(texts), n_variants=N_EXPERIMENTS // 5)
    study.write_text(text, encoding="utf-8")
    return study


def measured(words: list[str]) -> tuple[float, float]:
    """Return seconds and the largest memory in bytes of a command: the median of several runs."""
    command = [sys.executable, "-c", "from modelfactory.cli import main; main()", *words]
    found, unit = [], 1 if sys.platform == "darwin" else 1_024
    for _ in range(TRIALS):
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        found.append((time.perf_counter() - began, usage.ru_maxrss * unit))
        assert status == 0, f"{words} failed"
    return statistics.median(seconds for seconds, _ in found), max(n_bytes for _, n_bytes in found)


def fill(study: Path, workspace: Path) -> int:
    """Store every stage of the study, each with a small file in place of its bytes."""
    with Store.open(workspace) as store:
        loaded = load_study(study)
        sources = pin_sources(loaded.experiments, MemoryCache())
        plan = plan_experiments(loaded.experiments, sources, store, jobs=1, threads=1)
        for experiment in loaded.experiments:
            stages = plan.roles[experiment.name]
            store.name_experiment(experiment.name, str(study), canonical_json(experiment), stages)
        publish_all(plan, store)
        return len(plan.stages)


def publish_all(plan: Plan, store: Store) -> None:
    holder, contents = this_process(), dict[str, str]()
    for stage in plan.stages:
        claim = store.claim(stage.id, holder)
        assert claim is not None
        aside = store.new_aside(stage.id)
        (aside / "made").write_text(stage.id, encoding="utf-8")
        sealed = store.seal(aside)
        contents[stage.id] = sealed.content_sha256
        result = Finished(
            fingerprint=stage.id, content_sha256=sealed.content_sha256, n_bytes=64, started=0.0, seconds=1.0
        )
        log = store.log_path(stage.id)
        store.publish(claim, aside, record_of(stage, result, contents, host="here", log=log, attempt=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        study, workspace = made_study(Path(name)), Path(name) / "workspace"
        words = ["plan", str(study), "--json", "--workspace", str(workspace)]
        start_up, _ = measured(["--version"])
        new_s, new_bytes = measured(words)
        n_stages = fill(study, workspace)
        stored_s, stored_bytes = measured(words)
    figures = {
        "n_experiments": N_EXPERIMENTS,
        "n_stages": n_stages,
        "start_up_seconds": start_up,
        "new_seconds": new_s,
        "new_bytes": new_bytes,
        "stored_seconds": stored_s,
        "stored_seconds_beyond_start_up": stored_s - start_up,
        "stored_bytes": stored_bytes,
    }
    ratios = {
        "plan_1000_time_limit": LIMIT_S / new_s,
        "plan_1000_memory_limit": LIMIT_BYTES / max(new_bytes, stored_bytes),
        "plan_all_stored_time_limit": LIMIT_STORED_S / max(stored_s - start_up, 1e-9),
    }
    machine = {"cpu": platform.processor() or platform.machine(), "n_cpus": os.cpu_count()}
    for figure, value in figures.items():
        print(f"{figure:32} {value:>16,.6g}")
    if arguments.json:
        print(json.dumps({"ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
