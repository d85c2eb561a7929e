"""stories260K, a real model in llama2.c's format: what its own program writes, to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.errors import SourceError
from modelfactory.generate import Sampling
from modelfactory.generate.language_model import LanguageModel
from modelfactory.interchange import export_gguf, import_model, tokenizer_of
from tests.interchange.material import FILES, assert_equal_states

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.interchange import Imported

MODEL, TOKENIZER = FILES / "stories260K.bin", FILES / "tok512.bin"
WINDOW = 512


@pytest.fixture(scope="module")
def stories() -> Imported:
    return import_model(MODEL, tokenizer=TOKENIZER)


def test_sizes(stories: Imported) -> None:
    assert stories.spec.n_parameters(stories.vocab_size) == 260_032
    assert stories.vocab_size == stories.tokenizer.vocab_size == 512  # type: ignore[union-attr]
    assert stories.prefix_id == 1


def test_greedy_text_is_that_of_llama2c(stories: Imported) -> None:
    assert stories.tokenizer is not None
    model = LanguageModel(stories.build(), stories.tokenizer, max_seq_len=512, prefix_id=stories.prefix_id)
    text = "".join(model.stream("", Sampling(max_new_tokens=200, temperature=0.0)))
    assert text.encode("utf-8") == (FILES / "stories260K.greedy200.txt").read_bytes()


def test_nats_per_token(stories: Imported) -> None:
    """Five stories, each after <s> and without white space at its ends, one row cut every 512 tokens."""
    import torch
    from torch.nn import functional

    assert stories.tokenizer is not None
    parted = (FILES / "tinystories_sample5.txt").read_text("utf-8").split("<|endoftext|>")
    texts = [text.strip() for text in parted if text.strip()]
    assert len(texts) == 5
    ids = torch.tensor([token for text in texts for token in (1, *stories.tokenizer.encode(text))])
    module, total = stories.build(), 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, WINDOW):
            row = ids[start : start + WINDOW + 1]
            logits = module(row[None, :-1])[0]
            total += functional.cross_entropy(logits, row[1:], reduction="sum").item()
    assert total / (len(ids) - 1) == pytest.approx(1.300, abs=5e-4)


def test_the_tokenizer_spells_everything(stories: Imported) -> None:
    assert stories.tokenizer is not None
    for text in ("Once upon a time", "“Wow!” said 日本 \N{OTTER}\n\ttab", "  two  spaces "):
        assert stories.tokenizer.decode(stories.tokenizer.encode(text)) == text
    assert not set(stories.tokenizer.encode("a <s> b </s>")) & {1, 2}


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(MODEL.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"1,056,440 bytes, wanted 1,056,540"):
        import_model(path)


def test_a_tokenizer_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "tok.bin"
    path.write_bytes(TOKENIZER.read_bytes()[:-1])
    with pytest.raises(SourceError, match="no tokenizer that can be read"):
        tokenizer_of(MODEL, tokenizer=path)


def test_by_way_of_gguf(stories: Imported, tmp_path: Path) -> None:
    """Tokenizers of sentencepiece's kind go along: scores for pairs, and pairs for scores."""
    facts = {"prefix_id": stories.prefix_id}
    export_gguf(stories.build(), stories.spec, stories.tokenizer, tmp_path / "stories.gguf", facts=facts)
    back = import_model(tmp_path / "stories.gguf")
    assert_equal_states(back.state, stories.state)
    assert back.spec == stories.spec
    assert back.prefix_id == 1
    assert back.tokenizer is not None
    assert stories.tokenizer is not None
    text = (FILES / "tinystories_sample5.txt").read_text("utf-8") + "\N{OTTER}"
    assert back.tokenizer.encode(text) == stories.tokenizer.encode(text)
