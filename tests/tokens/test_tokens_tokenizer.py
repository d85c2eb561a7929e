"""Text never yields special tokens; what is asked for and what is found is said."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from modelfactory.data import Dataset, MemoryCache, pin, pin_file
from modelfactory.errors import FactoryError, SourceError, SpecError, Stopped
from modelfactory.stage import Progress, Site
from modelfactory.tokens import BPE, TokenizerFile, load_tokenizer, tokenizer_stage, tokenizer_threads
from modelfactory.tokens import tokenizer as tokenizer_module
from modelfactory.tokens.tokenizer import Tokenizer, pieces
from modelfactory.tokens.tokenizer_stage import train_bpe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

END = "<|endoftext|>"


def facts(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "tokenizer_facts.json").read_text("utf-8"))
    return found


def test_text_never_yields_special_tokens(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    for text in (END, f"a{END}b", f" {END}\n", f"{END}{END}", "<|endof" + "text|>"):
        ids = tokenizer.encode(text)
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.token_id(END) == tokenizer.eos_id == 0


def test_every_text_comes_back(tokenizer_dir: Path, texts: dict[str, str]) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    odd = [*texts.values(), "", " ", "\x00", "\ufeffmark", "e\u0301 é", "\U0001f469\u200d\U0001f680"]
    for text, ids in zip(odd, tokenizer.encode_batch(odd), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.n_bytes(ids) == len(text.encode())
        assert ids == tokenizer.encode(text)


def test_special_tokens_count_no_bytes(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    assert tokenizer.n_bytes([*tokenizer.encode("abc"), tokenizer.eos_id]) == 3
    assert tokenizer.n_bytes([]) == 0


def test_a_long_text_is_cut_where_the_pattern_cuts_anyway(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    text = "def add(a, b):\n\n    return a + b\n  \n" * 40
    whole = tokenizer.encode(text)
    monkeypatch.setattr(tokenizer_module, "MAX_PIECE", 50)
    assert len(list(pieces(text))) > 20
    assert max(map(len, pieces(text))) <= 50
    assert tokenizer.encode(text) == whole


def test_a_line_without_end_is_cut_and_comes_back(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_PIECE", 64)
    tokenizer = load_tokenizer(tokenizer_dir)
    for text in ("x" * 1000, " " * 1000, "\n" * 1000, "ü" * 999):
        assert "".join(pieces(text)) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_vocabulary_that_the_corpus_supports_is_reported(
    dataset: Dataset, documents: Path, site: Site, tmp_path: Path
) -> None:
    spec = BPE(vocab_size=5000, dataset=dataset)
    made = tmp_path / "big"
    made.mkdir()
    tokenizer_stage.run(spec, {"documents": documents}, made, site)
    found = facts(made)
    assert found["asked"] == 5000
    assert found["vocab_size"] == load_tokenizer(made).vocab_size < 400
    assert found["n_merges"] == found["vocab_size"] - 257
    assert "in place of the 5,000 asked for" in found["note"]


def test_facts_of_a_vocabulary_that_is_full(tokenizer_dir: Path) -> None:
    found = facts(tokenizer_dir)
    assert found["vocab_size"] == found["asked"] == 290
    assert found["note"] == ""
    assert found["bos_id"] is None
    assert 1 < found["bytes_per_token"] < 5


def test_further_special_tokens_get_the_next_ids() -> None:
    inner = train_bpe([["a b c"]], 259, ("<end>", "<pad>", "<sep>"))
    tokenizer = Tokenizer(inner, 0)
    assert [tokenizer.token_id(name) for name in ("<end>", "<pad>", "<sep>")] == [0, 1, 2]
    assert not {0, 1, 2} & set(tokenizer.encode("<pad><sep> <end>"))


def test_training_gives_equal_bytes_in_every_process_with_any_threads(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from modelfactory.tokens import tokenizer_threads\n"
        "from modelfactory.tokens.tokenizer_stage import train_bpe\n"
        "text = open(sys.argv[1]).read().splitlines()\n"
        "with tokenizer_threads(int(sys.argv[2])):\n"
        "    print(train_bpe([text[:900], text[900:]], 700, ('<e>',)).to_str())\n"
    )
    source = tmp_path / "text"
    source.write_text(Path(os.__file__).read_text("utf-8"), "utf-8")
    argv = [sys.executable, "-c", code, str(source)]
    made = {
        subprocess.run(
            [*argv, threads],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": threads},
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(made) == 1


def test_stopping_ends_training(dataset: Dataset, documents: Path, site: Site, tmp_path: Path) -> None:
    asked = replace(site, stopping=lambda: True)
    with pytest.raises(Stopped):
        tokenizer_stage.run(BPE(vocab_size=290, dataset=dataset), {"documents": documents}, tmp_path, asked)


def test_progress_counts_documents(dataset: Dataset, documents: Path, site: Site, tmp_path: Path) -> None:
    heard: list[Progress] = []
    made = tmp_path / "t"
    made.mkdir()
    spec = BPE(vocab_size=290, dataset=dataset)
    tokenizer_stage.run(spec, {"documents": documents}, made, replace(site, report=heard.append))
    assert (heard[-1].done, heard[-1].total, heard[-1].unit) == (4, 4, "documents")


def test_threads_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with tokenizer_threads(1):
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert os.environ["RAYON_NUM_THREADS"] == "1"
    assert os.environ["RAYON_NUM_THREADS"] == "7"
    assert "TOKENIZERS_PARALLELISM" not in os.environ


# An existing tokenizer.json


def saved(inner: tokenizers.Tokenizer, tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    return path


def taken(path: Path, eos_token: str, tmp_path: Path) -> Tokenizer:
    spec = TokenizerFile(path=str(path), eos_token=eos_token)
    spec.check()
    pin_path = tmp_path / "pin_of_tokenizer.json"
    pin_file(path, MemoryCache()).write(pin_path)
    made = tmp_path / "taken"
    made.mkdir()
    tokenizer_stage.run(spec, {"tokenizer_file": pin_path}, made, Site(lake=tmp_path / "no lake", threads=1))
    return load_tokenizer(made)


def test_an_existing_file_is_taken_without_truncation_padding_or_template(tmp_path: Path) -> None:
    inner = train_bpe([["hello hello world world"]], 280, (END, "<s>"))
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = taken(saved(inner, tmp_path), END, tmp_path)
    text = "hello world, " * 9
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert not {0, 1} & set(tokenizer.encode(f"<s>{END}"))


def test_an_end_of_text_token_that_is_not_special_becomes_so(tmp_path: Path) -> None:
    inner = train_bpe([["hello hello"]], 270, ("<other>",))
    inner.add_tokens([tokenizers.AddedToken("</end>", special=False)])
    number = inner.token_to_id("</end>")
    assert number in inner.encode("a</end>b").ids
    tokenizer = taken(saved(inner, tmp_path), "</end>", tmp_path)
    assert tokenizer.eos_id == number
    assert number not in tokenizer.encode("a</end>b")
    assert tokenizer.decode(tokenizer.encode("a</end>b")) == "a</end>b"


def test_added_tokens_that_are_text_stay_text(tmp_path: Path) -> None:
    inner = train_bpe([["hello hello"]], 270, (END,))
    inner.add_tokens([tokenizers.AddedToken("    ", special=False, normalized=False)])
    tokenizer = taken(saved(inner, tmp_path), END, tmp_path)
    ids = tokenizer.encode("a    ü")
    assert inner.token_to_id("    ") in ids
    assert tokenizer.n_bytes(ids) == len("a    ü".encode())


def test_holes_in_the_ids_are_part_of_the_vocabulary_size(tmp_path: Path) -> None:
    inner = train_bpe([["hello hello"]], 262, (END,))
    content = json.loads(inner.to_str())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 999, "content": "<far>"})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), "utf-8")
    tokenizer = taken(path, END, tmp_path)
    assert tokenizer.vocab_size == 1 + max(tokenizer.token_id("<far>") or 0, 261)


def test_a_missing_end_of_text_token_is_named_with_close_names(tmp_path: Path) -> None:
    path = saved(train_bpe([["hello"]], 260, (END,)), tmp_path)
    spec = TokenizerFile(path=str(path), eos_token="<|endoftxt|>")
    with pytest.raises(SpecError, match=r"eos_token: found '<\|endoftxt\|>'.*Did you mean '<\|endoftext\|>'"):
        spec.check()


def unigram(*extra: tuple[str, float]) -> tokenizers.Tokenizer:
    letters = [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz/<>▁"]
    inner = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *letters, *extra], unk_id=0))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return inner


def test_a_model_that_makes_special_tokens_from_text_is_refused(tmp_path: Path) -> None:
    inner = unigram(("</s>", -1.0))
    inner.add_special_tokens(["</s>"])
    spec = TokenizerFile(path=str(saved(inner, tmp_path)), eos_token="</s>")
    with pytest.raises(SourceError, match="encoded to the special token '</s>'"):
        spec.check()


def test_a_tokenizer_that_is_not_byte_level_counts_decoded_bytes(tmp_path: Path) -> None:
    inner = unigram()
    inner.add_special_tokens(["</s>"])
    tokenizer = taken(saved(inner, tmp_path), "</s>", tmp_path)
    ids = tokenizer.encode("hello world")
    assert tokenizer.n_bytes([*ids, tokenizer.eos_id]) == len("hello world")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "Nothing"}}'])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"cannot read"):
        TokenizerFile(path=str(path), eos_token="x").check()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found no file"):
        TokenizerFile(path=str(tmp_path / "none.json"), eos_token="x").check()


def test_the_file_is_a_source_that_can_be_pinned(tmp_path: Path) -> None:
    path = tmp_path / "odd [name] *.json"
    path.write_bytes(b"{}")
    (tmp_path / "other.json").write_bytes(b"{}")
    found = pin(TokenizerFile(path=str(path), eos_token="x").source, MemoryCache())
    assert [file.path for file in found.files] == [path.name]
    assert found.files[0].sha256 == hashlib.sha256(b"{}").hexdigest()


def _deleted(path: Path) -> None:
    path.unlink()


def _changed(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize("change", [_deleted, _changed])
def test_a_file_that_changed_after_the_plan_is_refused(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path = saved(train_bpe([["hello"]], 260, (END,)), tmp_path)
    pin_path = tmp_path / "pin.json"
    pin_file(path, MemoryCache()).write(pin_path)
    change(path)
    spec = TokenizerFile(path=str(path), eos_token=END)
    with pytest.raises(SourceError, match=r"tokenizer\.json"):
        tokenizer_stage.run(spec, {"tokenizer_file": pin_path}, tmp_path, Site(lake=tmp_path, threads=1))


def _truncated(directory: Path) -> Iterator[Path]:
    for name in ("tokenizer.json", "tokenizer_facts.json"):
        yield directory / name


def test_damaged_stages_are_refused(tokenizer_dir: Path) -> None:
    for path in _truncated(tokenizer_dir):
        whole = path.read_bytes()
        path.write_bytes(whole[:50])
        with pytest.raises(FactoryError, match="no tokenizer that can be read"):
            load_tokenizer(tokenizer_dir)
        path.write_bytes(whole)
    load_tokenizer(tokenizer_dir)
