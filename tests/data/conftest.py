"""A stage run as the factory runs it: pinned first, then told where its inputs are."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from modelfactory.data import Dataset, Files, MemoryCache, Split, pin, read_documents
from modelfactory.data.stage import run
from modelfactory.stage import Site

ALL = Split(part="train", held_out_share=0.0)


class Workplace:
    """A folder with sources, a lake and stage directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir()
        self.lake = root / "lake"
        self.cache = MemoryCache()

    def put(self, path: str, content: str | bytes) -> Path:
        file = self.source / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def files(self, pattern: str = "**/*", **options) -> Files:
        return Files(root=str(self.source), pattern=pattern, **options)

    def dataset(self, *sources, filters=(), dedup=(), split=ALL) -> Dataset:
        return Dataset(
            name="pages", sources=sources or (self.files(),), filters=filters, dedup=dedup, split=split
        )

    def pins(self, dataset: Dataset) -> dict[str, Path]:
        inputs = {}
        for n, source in enumerate(dataset.sources):
            inputs[f"source{n}"] = self.root / f"pin{n}.json"
            pin(source, self.cache).write(inputs[f"source{n}"])
        return inputs

    def run(self, dataset: Dataset, name: str = "stage", **site) -> "Made":
        return self.run_pinned(dataset, self.pins(dataset), name, **site)

    def run_pinned(self, dataset: Dataset, inputs, name: str = "stage", **site) -> "Made":
        out = self.root / name
        out.mkdir()
        run(dataset, inputs, out, Site(**{"lake": self.lake, "threads": 1, "fingerprint": "ab" * 32, **site}))
        return self.made(name)

    def made(self, name: str) -> "Made":
        return Made(self.root / name, self.lake)


class Made:
    """What a stage made."""

    def __init__(self, folder: Path, lake: Path) -> None:
        self.folder = folder
        self.lake = lake

    @property
    def account(self) -> dict:
        return json.loads((self.folder / "documents.json").read_text("utf-8"))

    @property
    def drops(self) -> dict[str, int]:
        return json.loads((self.folder / "drops.json").read_text("utf-8"))

    @property
    def samples(self) -> list[dict]:
        return pq.read_table(self.folder / "drops.parquet").to_pylist()

    @property
    def rows(self) -> list[dict]:
        return [row for batch in read_documents(self.folder, self.lake) for row in batch.to_pylist()]

    @property
    def texts(self) -> dict[str, str]:
        return {row["path"]: row["text"] for row in self.rows}

    @property
    def hashes(self) -> dict[str, str]:
        """Of every file that is part of what the stage is, and of the lake's files."""
        own = [path for path in self.folder.iterdir() if path.is_file()]
        table = json.loads((self.folder / "observed/lake.json").read_text("utf-8"))
        stored = [self.lake / file["path"] for file in table["files"]]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in own + stored}


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path)
