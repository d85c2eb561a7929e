"""Programs as held-out documents, a byte tokenizer, and small finished stages."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from modelfactory.data import Dataset, Files, MemoryCache, Split, pin
from modelfactory.data import stage as documents_stage
from modelfactory.evaluate import Document
from modelfactory.models import Llama
from modelfactory.stage import Site
from modelfactory.tokens import BPE, Mixture, Part, Shards, shard_stage, tokenizer_stage
from modelfactory.train import AdamW, Cosine, Training, segment
from modelfactory.train import stage as train_stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ByteTokenizer:
    """Token n is byte n; 256 ends texts."""

    eos_id = 256
    vocab_size = 257

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < 256).decode("utf-8", errors="replace")


def program(number: int) -> str:
    """A file with several functions, a class, comments and a docstring of several lines."""
    functions = "\n\n".join(
        f'''def {name}_{number}(first, second_{number}):
    """Do {name} of two.

    This line looks_like(code, {number}) but lies in a string.
    """
    # a comment, however long it may be, is no answer
    value_{name} = first + second_{number} * {number}
    if value_{name} > {number}:
        return value_{name} - {len(name)}
    return first  # {name}'''
        for name in ("add", "subtract", "multiply")
    )
    return f"""import os


{functions}


class Holder{number}:
    def method(self, other_{number}):
        self.first = other_{number}
        self.second = os.getcwd()
        return self.first
"""


def document(text: str, path: str = "x.py") -> Document:
    return Document(hashlib.sha256(text.encode()).hexdigest(), text, path)


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def programs() -> list[Document]:
    return [document(program(number), f"p{number}.py") for number in range(12)]


@pytest.fixture
def held_out() -> Dataset:
    """A dataset for specs; tasks read the documents they are given."""
    return Dataset(
        name="held out",
        sources=(Files(root="somewhere", pattern="**/*.py"),),
        split=Split(part="held_out", held_out_share=0.5),
    )


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Documents, tokenizer, tokens and a checkpoint, and `lake`."""
    root = tmp_path_factory.mktemp("stages")
    (root / "files").mkdir()
    for number in range(12):
        (root / "files" / f"p{number}.py").write_text(program(number), encoding="utf-8")
    source = Files(root=str(root / "files"), pattern="*.py")
    dataset = Dataset(name="all", sources=(source,), split=Split(part="train", held_out_share=0.0))
    made = {name: root / name for name in ("documents", "tokenizer", "tokens", "checkpoint", "lake")}
    for name in ("documents", "tokenizer", "tokens", "checkpoint"):
        made[name].mkdir()
    site = Site(lake=made["lake"], threads=1)
    pin(source, MemoryCache()).write(root / "pin.json")
    documents_stage.run(dataset, {"source0": root / "pin.json"}, made["documents"], site)
    tokenizer_stage.run(BPE(vocab_size=300, dataset=dataset), made, made["tokenizer"], site)
    shard_stage.run(Shards(), made, made["tokens"], site)
    training = Training(
        n_tokens=1_024,
        batch_tokens=256,
        optimizer=AdamW(lr=1e-2, weight_decay=0.0),
        schedule=Cosine(warmup_steps=1),
        seed=0,
        precision="fp32",
        n_checkpoints=1,
    )
    model = Llama(n_layers=1, d_model=32, n_heads=2, max_seq_len=64)
    mixture = Mixture(parts=(Part(dataset=dataset, weight=1.0),))
    spec = segment(training, model, mixture, from_step=0, to_step=training.n_steps)
    inputs = {"tokens0": made["tokens"], "tokenizer": made["tokenizer"]}
    train_stage.run(spec, inputs, made["checkpoint"], site)
    return made
