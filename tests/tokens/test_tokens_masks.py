"""Labels that do not count: those that begin another document, and those that nobody is to learn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelfactory.errors import SourceError
from modelfactory.tokens import Stream, TokenShard
from modelfactory.tokens.indexed import IndexedWriter
from modelfactory.tokens.labels import documents_within

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (5, 1, 0, 7, 12, 3, 9, 4)
SEQ_LEN = 8


@pytest.fixture
def shard(tmp_path: Path) -> TokenShard:
    """Return documents whose tokens all are the document's number, so that a row shows whose they are."""
    with IndexedWriter(tmp_path / "tokens", 100) as writer:
        writer.add([np.full(length, n, dtype=np.int32) for n, length in enumerate(LENGTHS)])
    return TokenShard.open(tmp_path)


def stream(shard: TokenShard, **changes: Any) -> Stream:
    options: dict[str, Any] = {
        "weights": [1.0],
        "seq_len": SEQ_LEN,
        "batch_sequences": 3,
        "seed": 0,
        "n_tokens": 7 * SEQ_LEN + 3,
        "document_masks": True,
    }
    return Stream([shard], **(options | changes))


def test_documents_are_numbered_from_0_and_empty_ones_have_no_number(shard: TokenShard) -> None:
    assert documents_within(shard, 0, 8).tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    assert documents_within(shard, 5, 4).tolist() == [0, 1, 1, 1]
    assert documents_within(shard, 7, 3).tolist() == [0, 0, 0]
    assert documents_within(shard, 37, 4).tolist() == [0, 0, 0, 0]


def test_a_label_counts_if_it_is_of_the_document_of_its_token(shard: TokenShard) -> None:
    masked = stream(shard)
    for step in range(1, masked.n_steps + 1):
        batch, free = masked.batch(step), stream(shard, document_masks=False).batch(step)
        assert batch.documents is not None
        assert free.documents is None
        np.testing.assert_array_equal(batch.tokens, free.tokens)
        same = batch.tokens[:, 1:] == batch.tokens[:, :-1]
        np.testing.assert_array_equal(batch.valid, free.valid & same)
        for row, (source, _, _) in enumerate(batch.sequence_ids.tolist()):
            seen = batch.tokens[row, :-1][free.valid[row]]
            numbers = batch.documents[row][free.valid[row]]
            order = list(dict.fromkeys(seen.tolist()))
            assert numbers.tolist() == [order.index(token) for token in seen.tolist()]
            assert source == 0 or not free.valid[row].any()


def test_what_is_delivered_does_not_depend_on_masks(shard: TokenShard) -> None:
    masked, free = stream(shard), stream(shard, document_masks=False)
    steps = range(1, masked.n_steps + 1)
    assert masked.n_steps == free.n_steps
    assert [masked.n_tokens_to(step) for step in steps] == [free.n_tokens_to(step) for step in steps]
    assert [masked.n_valid(step) for step in steps] == [masked.batch(step).n_valid for step in steps]
    assert [free.n_valid(step) for step in steps] == [24, 24, 11]
    assert sum(map(masked.n_valid, steps)) < sum(map(free.n_valid, steps))


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_together_see_the_batch(shard: TokenShard, world_size: int) -> None:
    masked = stream(shard)
    for step in range(1, masked.n_steps + 1):
        whole = masked.batch(step)
        ranks = [masked.batch(step, rank, world_size) for rank in range(world_size)]
        for name in ("tokens", "valid", "documents"):
            joined = np.concatenate([getattr(rank, name) for rank in ranks])
            np.testing.assert_array_equal(joined, getattr(whole, name))
        assert sum(rank.n_valid for rank in ranks) == masked.n_valid(step)


def with_mask(shard: TokenShard, learnt: np.ndarray[Any, Any]) -> TokenShard:
    folder = shard.directory
    (folder / "loss_mask.bin").write_bytes(learnt.tobytes())
    facts = {"n_tokens": shard.n_tokens, "n_documents": shard.n_documents, "dtype": "uint16"}
    (folder / "tokens.json").write_text(json.dumps(facts | {"n_learnt": int(learnt.sum())}))
    return TokenShard.open(folder)


@pytest.mark.parametrize("document_masks", [True, False])
def test_a_token_that_is_not_learnt_is_no_label(shard: TokenShard, document_masks: bool) -> None:
    learnt = np.arange(shard.n_tokens) % 3 == 0
    told = stream(with_mask(shard, learnt), document_masks=document_masks)
    bare = stream(shard, document_masks=document_masks)
    for step in range(1, told.n_steps + 1):
        batch, other = told.batch(step), bare.batch(step)
        for row, (source, _, sequence) in enumerate(batch.sequence_ids.tolist()):
            if source >= 0:
                labels = np.arange(SEQ_LEN) + sequence * SEQ_LEN + 1
                np.testing.assert_array_equal(batch.valid[row], other.valid[row] & (labels % 3 == 0))
        assert told.n_valid(step) == batch.n_valid < other.n_valid


def test_a_mask_that_is_gone_cut_off_or_too_many_is_refused(shard: TokenShard) -> None:
    told = with_mask(shard, np.ones(shard.n_tokens, dtype=np.bool_))
    mask = told.directory / "loss_mask.bin"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"found 40 bytes of loss_mask\.bin.*wanted one of 41 bytes"):
        TokenShard.open(told.directory)
    mask.unlink()
    with pytest.raises(SourceError, match=r"no loss_mask\.bin"):
        TokenShard.open(told.directory)
    mask.write_bytes(bytes(shard.n_tokens))
    facts = told.directory / "tokens.json"
    facts.write_text(json.dumps({k: v for k, v in json.loads(facts.read_text()).items() if k != "n_learnt"}))
    with pytest.raises(SourceError, match="wanted none"):
        TokenShard.open(told.directory)
    facts.unlink()
    assert TokenShard.open(told.directory).loss_mask is not None, "a shard of others, with a mask"
    mask.write_bytes(bytes(3))
    with pytest.raises(SourceError, match=r"found 3 bytes of loss_mask\.bin"):
        TokenShard.open(told.directory)
