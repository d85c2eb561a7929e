"""A tiny real run: a tokenizer and a shard of standard-library sources, and specs that train in seconds."""

from __future__ import annotations

import json
import sysconfig
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from modelfactory.data import Dataset, Files, Split
from modelfactory.models import GPT2, Llama
from modelfactory.stage import Site
from modelfactory.tokens import Mixture, Part
from modelfactory.tokens.shard_stage import write_shard
from modelfactory.tokens.tokenizer import FACTS, TOKENIZER, load_tokenizer
from modelfactory.tokens.tokenizer_stage import train_bpe
from modelfactory.train import AdamW, Cosine, Training, TrainSegment, segment
from modelfactory.train import stage as train_stage

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = ("abc.py", "bisect.py", "copy.py", "heapq.py", "keyword.py", "queue.py")
EOS = "<|endoftext|>"

LLAMA = Llama(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=32, tied=True)
GPT = GPT2(n_layers=2, d_model=32, n_heads=2, max_seq_len=32)


def training(**changes: Any) -> Training:
    """Return 10 steps of 4 sequences of 32; the last step holds only 100 of its 128 labels."""
    base = Training(
        n_tokens=9 * 128 + 100,
        batch_tokens=128,
        optimizer=AdamW(lr=3e-3, weight_decay=0.1),
        schedule=Cosine(warmup_steps=2),
        seed=3,
        precision="fp32",
    )
    return replace(base, **changes)


def mixture(max_epochs: float = 4.0) -> Mixture:
    split = Split(part="train", held_out_share=0.0)
    dataset = Dataset(name="stdlib", sources=(Files(root=".", pattern="*.py"),), split=split)
    return Mixture(parts=(Part(dataset=dataset, weight=1.0, max_epochs=max_epochs),))


def write_inputs(folder: Path) -> dict[str, Path]:
    """Write what a tokenizer stage and a tokens stage make, from six sources of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / name).read_text("utf-8") for name in SOURCES]
    inputs = {"tokenizer": folder / "tokenizer", "tokens0": folder / "tokens"}
    for each in inputs.values():
        each.mkdir(parents=True)
    tokenizer = train_bpe([texts], 384, (EOS,))
    (inputs["tokenizer"] / TOKENIZER).write_text(tokenizer.to_str(), "utf-8")
    facts = {"vocab_size": tokenizer.get_vocab_size(), "eos_id": tokenizer.token_to_id(EOS), "bos_id": None}
    (inputs["tokenizer"] / FACTS).write_text(json.dumps(facts), "utf-8")
    columns = {
        "document_id": [f"{n:064x}" for n in range(len(texts))],
        "source": ["stdlib"] * len(texts),
        "path": list(SOURCES),
        "text": texts,
    }
    write_shard([pa.RecordBatch.from_pydict(columns)], load_tokenizer(inputs["tokenizer"]), inputs["tokens0"])
    return inputs


def spec(*, from_step: int = 0, to_step: int = 10, model: Any = LLAMA, **changes: Any) -> TrainSegment:
    return segment(training(**changes), model, mixture(), from_step=from_step, to_step=to_step)


def site(folder: Path, **changes: Any) -> Site:
    return Site(lake=folder / "lake", threads=1, **changes)


def train(spec: TrainSegment, inputs: dict[str, Path], output_dir: Path, **changes: Any) -> Path:
    """Run one segment into `output_dir`, which is made."""
    output_dir.mkdir(parents=True)
    train_stage.run(spec, inputs, output_dir, site(output_dir.parent, **changes))
    return output_dir


def chain(steps: list[int], inputs: dict[str, Path], folder: Path, *, warm: bool, **changes: Any) -> Path:
    """Run the segments that end at `steps`, one after the other; return the last one's directory."""
    before, stage, kept = 0, folder, dict[str, Any]()
    for step in steps:
        here = inputs if before == 0 else {**inputs, "checkpoint": stage}
        part = spec(from_step=before, to_step=step, **changes)
        name = f"stage-{step}"
        stage = train(part, here, folder / name, fingerprint=name, warm=kept if warm else {})
        before = step
    return stage


def deterministic_files(stage: Path) -> dict[str, bytes]:
    """Return every file that may not depend on wall time."""
    return {
        path.relative_to(stage).as_posix(): path.read_bytes()
        for path in sorted(stage.rglob("*"))
        if path.is_file() and "observed" not in path.parts
    }


def most_grown(step: Callable[[], None]) -> int:
    """Return the most bytes of tensors in a step beside those held before it, by torch's own account."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
