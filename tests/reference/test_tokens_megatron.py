"""Shards against the definition of Megatron's indexed format, by a reader that shares no code with ours.

Written from the description of `megatron/core/datasets/indexed_dataset.py` (Megatron-LM, core 0.12).
"""

from __future__ import annotations

import io
import itertools
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from modelfactory.tokens import TokenShard
from modelfactory.tokens.indexed import IndexedWriter

if TYPE_CHECKING:
    import pytest

DTYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 6: "d", 7: "f", 8: "H"}
DOCUMENTS = st.lists(st.lists(st.integers(0, 299), max_size=9), max_size=12)


def megatron_documents(prefix: Path) -> tuple[str, list[list[int]]]:
    """Return dtype code and documents, each the tokens of its sequences."""
    index = io.BytesIO(prefix.with_suffix(".idx").read_bytes())
    assert index.read(9) == b"MMIDIDX\x00\x00"
    assert struct.unpack("<Q", index.read(8)) == (1,)
    form = DTYPES[struct.unpack("<B", index.read(1))[0]]
    n_sequences, n_indices = struct.unpack("<QQ", index.read(16))
    lengths = struct.unpack(f"<{n_sequences}i", index.read(4 * n_sequences))
    pointers = struct.unpack(f"<{n_sequences}q", index.read(8 * n_sequences))
    indices = struct.unpack(f"<{n_indices}q", index.read(8 * n_indices))
    assert index.read() == b""
    content = prefix.with_suffix(".bin").read_bytes()
    sequences = [
        list(struct.unpack_from(f"<{length}{form}", content, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    documents = [
        [token for sequence in sequences[first:last] for token in sequence]
        for first, last in itertools.pairwise(indices)
    ]
    assert indices[0] == 0
    assert indices[-1] == n_sequences
    return form, documents


def test_megatron_reads_a_shard_of_real_text(tmp_path: Path) -> None:
    lines = Path(__file__).read_text("utf-8").splitlines()
    documents = [list(line.encode()) for line in lines]
    with IndexedWriter(tmp_path / "tokens", 256) as writer:
        for start in range(0, len(documents), 7):
            writer.add(documents[start : start + 7])
    assert megatron_documents(tmp_path / "tokens") == ("H", documents)


@given(documents=DOCUMENTS, is_large=st.booleans())
def test_megatron_reads_what_we_write(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], is_large: bool
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    with IndexedWriter(folder / "tokens", 100_000 if is_large else 300) as writer:
        writer.add(documents)
    assert megatron_documents(folder / "tokens") == ("i" if is_large else "H", documents)


@given(documents=st.lists(st.lists(st.lists(st.integers(0, 70_000), max_size=5), max_size=3), max_size=6))
def test_we_read_what_megatron_writes(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]]
) -> None:
    """A document of Megatron may have several sequences."""
    folder = tmp_path_factory.mktemp("shard")
    sequences = [sequence for document in documents for sequence in document]
    lengths = [len(sequence) for sequence in sequences]
    indices = [sum(map(len, documents[:n])) for n in range(len(documents) + 1)]
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(sequences), len(indices))
    pointers = [4 * sum(lengths[:n]) for n in range(len(lengths))]
    tail = struct.pack(f"<{len(indices)}q", *indices)
    body = struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *pointers)
    (folder / "tokens.idx").write_bytes(header + body + tail)
    flat = [token for sequence in sequences for token in sequence]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(flat)}i", *flat))
    shard = TokenShard.open(folder)
    found = [shard.document_tokens(row).tolist() for row in range(shard.n_documents)]
    assert found == [[token for sequence in document for token in sequence] for document in documents]
