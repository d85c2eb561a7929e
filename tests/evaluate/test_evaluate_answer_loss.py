"""The loss on held-out answers is that of training, on the same rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from modelfactory.data import Dataset, Files, MemoryCache, Split, pin_file
from modelfactory.errors import SourceError, SpecError
from modelfactory.evaluate import AnswerLoss, Evaluate
from modelfactory.evaluate import stage as evaluate_stage
from modelfactory.evaluate.answer_loss import _pairs
from modelfactory.models import Llama
from modelfactory.spec import from_json, to_json
from modelfactory.stage import Site
from modelfactory.tokens import TokenizerFile, TokenShard, chat_files
from modelfactory.tokens.stream import Stream
from modelfactory.train import checkpoint
from tests.evaluate.conftest import document
from tests.tokens.chats import BARE, CHATS, EOS, MARKED, UNMARKED, encoder, text, tokenizer, write_tokenizer
from tests.tokens.test_tokens_chats import chats_dataset, made

if TYPE_CHECKING:
    from pathlib import Path

MODEL = Llama(n_layers=2, d_model=32, n_heads=2, max_seq_len=400)


def task(tmp_path: Path, **changes: Any) -> AnswerLoss:
    return replace(AnswerLoss(dataset=chats_dataset(tmp_path / "talk"), max_documents=10), **changes)


def initial(model: Any, vocab_size: int, folder: Path, **facts: Any) -> Any:
    """Write a checkpoint of the initial weights; return the module."""
    module = model.build(vocab_size, seed=5)
    state = {f"model/{name}": value for name, value in module.state_dict().items()}
    checkpoint.save(state, folder / "checkpoint")
    told = {"architecture": to_json(model), "vocab_size": vocab_size, **facts}
    (folder / "model.json").write_text(json.dumps(told))
    return module


@pytest.mark.parametrize("template", [MARKED, UNMARKED, BARE], ids=["marked", "unmarked", "bare"])
def test_it_is_the_loss_of_training_on_the_same_rows(template: str, tmp_path: Path) -> None:
    site = Site(lake=tmp_path / "lake", threads=1)
    path = write_tokenizer(tmp_path / "t", template, bos_token=EOS)
    given = TokenizerFile(path=str(path), eos_token=EOS)
    asked = task(tmp_path)
    (tmp_path / "made").mkdir()
    shard = TokenShard.open(made(tmp_path / "made", asked.dataset, given, site))
    (tmp_path / "model").mkdir()
    vocab_size = tokenizer().vocab_size
    module = initial(MODEL, vocab_size, tmp_path / "model", prefix_id=7)  # not before a conversation

    whole = shard.n_tokens - 1
    stream = Stream(
        [shard], weights=[1.0], seq_len=whole, batch_sequences=1, seed=0, n_tokens=whole, document_masks=True
    )
    batch = stream.batch(1)
    tokens, valid, documents = (
        torch.from_numpy(np.array(each)) for each in (batch.tokens, batch.valid, batch.documents)
    )
    tokens, labels = tokens[:, :-1].long(), tokens[:, 1:].long()
    with torch.no_grad():
        sums = module.training_sums(tokens, labels, valid, documents[:, :whole])
    wanted = sums.loss.item() / int(valid.sum())

    inputs = {"checkpoint": tmp_path / "model"}
    inputs |= {name: tmp_path / "made" / name for name in ("documents", "tokenizer")}
    for name, file in chat_files(asked.dataset, given).items():
        pin_file(file, MemoryCache()).write(tmp_path / name)
        inputs[name] = tmp_path / name
    (tmp_path / "result").mkdir()
    evaluate_stage.run(Evaluate(task=asked), inputs, tmp_path / "result", site)
    told = json.loads((tmp_path / "result" / "result.json").read_text())
    assert told["metrics"]["answer_loss"]["value"] == pytest.approx(wanted, abs=1e-5)
    assert told["facts"] == {"n_labels": int(valid.sum()), "n_cut": 0}
    assert told["n_items"] == len(CHATS)
    items = pq.read_table(tmp_path / "result" / "items.parquet").to_pylist()
    assert sum(item["weight"] for item in items) == int(valid.sum())


def test_runs_of_labels_and_what_is_before_them() -> None:
    ids = np.array([5, 6, 7, 8, 9, 10], dtype=np.int32)
    learnt = np.array([True, True, False, True, True, False])
    found = [(pair.context, pair.continuation) for pair in _pairs(ids, learnt)]
    assert found == [((5,), (6,)), ((5, 6, 7), (8, 9))]  # nothing is before the first
    assert _pairs(ids[:1], learnt[:1]) == ()


def test_conversations_without_labels_are_skipped(tmp_path: Path) -> None:
    asked = task(tmp_path)
    said = "{% if messages|length > 2 %}{{ messages[0]['content'] }}{% endif %}"
    silent = "{% generation %}" + said + "{% endgeneration %}"
    chats = [document(text(chat), f"{n}.jsonl") for n, chat in enumerate(CHATS)]
    prepared = asked.prepare(chats, encoder("." + silent))
    assert (len(prepared.items), prepared.skipped) == (2, {"without an answer": 1})
    with pytest.raises(SourceError, match="0 conversations in 1 held-out documents"):
        asked.prepare(chats[:1], encoder("." + silent))


def test_it_is_a_spec_of_conversations(tmp_path: Path) -> None:
    asked = task(tmp_path)
    assert from_json(json.loads(json.dumps(to_json(asked)))) == asked
    assert (asked.primary_metric, asked.unit, asked.higher_is_better) == ("answer_loss", "nats/token", False)
    pages = Dataset(
        name="pages",
        sources=(Files(root="pages", pattern="*"),),
        split=Split(part="held_out", held_out_share=0.5),
    )
    with pytest.raises(SpecError, match=r"AnswerLoss.dataset: found \['Files'\], wanted conversations"):
        replace(asked, dataset=pages)
    with pytest.raises(SpecError, match="max_documents"):
        replace(asked, max_documents=0)
