from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from modelfactory.data import MemoryCache
from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange import architecture_of, export_gguf, export_hugging_face, import_model
from modelfactory.interchange.starting import check_tokenizer, pin_model
from modelfactory.tokens import TokenizerFile
from tests.interchange.material import SPECS, bpe, built

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = SPECS["llama"][1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "llama"
    export_hugging_face(built(LLAMA), LLAMA, bpe(), path)
    return path


def test_the_architecture_is_read_without_the_weights(folder: Path, tmp_path: Path) -> None:
    wanted = import_model(folder).spec
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    assert architecture_of(tmp_path) == wanted == replace(LLAMA, initial=wanted.initial)
    assert architecture_of(tmp_path, max_seq_len=24) == replace(wanted, max_seq_len=24)
    with pytest.raises(SpecError, match="max_seq_len"):
        architecture_of(tmp_path, max_seq_len=0)


def test_other_formats_are_read_whole(tmp_path: Path) -> None:
    export_gguf(built(LLAMA), LLAMA, bpe(), tmp_path / "llama.gguf")
    assert architecture_of(tmp_path / "llama.gguf") == import_model(tmp_path / "llama.gguf").spec


def test_every_file_that_is_read_is_pinned(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    pin = pin_model(folder, MemoryCache())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.path for file in pin.files}
    assert pin_model(tmp_path / "copy", MemoryCache()).digest == pin.digest
    for file in pin.files:
        path = tmp_path / "copy" / file.path
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        assert pin_model(tmp_path / "copy", MemoryCache()).digest != pin.digest
        path.write_bytes(before)


def test_a_tokenizer_with_other_ids_is_refused(folder: Path, tmp_path: Path) -> None:
    eos = "<|endoftext|>"
    given = TokenizerFile(path=str(folder / "tokenizer.json"), eos_token=eos)
    check_tokenizer(folder, given, "here")
    text = (folder / "tokenizer.json").read_text("utf-8")
    one, other = '"a": ', '"b": '
    assert text.count(one) == text.count(other) == 1
    swapped = text.replace(one, "SWAPPED").replace(other, one).replace("SWAPPED", other)
    (tmp_path / "tokenizer.json").write_text(swapped, "utf-8")
    found = replace(given, path=str(tmp_path / "tokenizer.json"))
    with pytest.raises(SourceError, match=r"here: found [0-9]+ tokens, of which 2 .*, such as 'a', 'b'"):
        check_tokenizer(folder, found, "here")
