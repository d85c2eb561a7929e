"""Real documents, tokenizers and shards, all tiny."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.data import Dataset, Files, MemoryCache, Split, pin
from modelfactory.data import stage as documents_stage
from modelfactory.stage import Site
from modelfactory.tokens import BPE, Shards, shard_stage, tokenizer_stage

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {
    "a.py": "def add(a, b):\n    return a + b\n" * 4,
    "b.txt": "The end is written <|endoftext|> here, and <|endoftext|> there.\n",
    "c.txt": "Grüße, 世界! \U0001f600 zero\x00byte and\r\nline ends\t\n",
    "d.txt": "the cat and the dog and the bird and the cat\n" * 5,
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(lake=tmp_path / "lake", threads=1)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def dataset(corpus: Path) -> Dataset:
    split = Split(part="train", held_out_share=0.0)
    return Dataset(name="tiny", sources=(Files(root=str(corpus), pattern="**/*"),), split=split)


@pytest.fixture
def texts() -> dict[str, str]:
    return TEXTS


@pytest.fixture
def documents(dataset: Dataset, site: Site, tmp_path: Path) -> Path:
    made = tmp_path / "documents"
    made.mkdir()
    pin_path = tmp_path / "pin.json"
    pin(dataset.sources[0], MemoryCache()).write(pin_path)
    documents_stage.run(dataset, {"source0": pin_path}, made, site)
    return made


@pytest.fixture
def tokenizer_dir(dataset: Dataset, documents: Path, site: Site, tmp_path: Path) -> Path:
    made = tmp_path / "tokenizer"
    made.mkdir()
    spec = BPE(vocab_size=290, dataset=dataset)
    tokenizer_stage.run(spec, {"documents": documents}, made, site)
    return made


@pytest.fixture
def shard_dir(documents: Path, tokenizer_dir: Path, site: Site, tmp_path: Path) -> Path:
    made = tmp_path / "tokens"
    made.mkdir()
    inputs = {"documents": documents, "tokenizer": tokenizer_dir}
    shard_stage.run(Shards(), inputs, made, site)
    return made
