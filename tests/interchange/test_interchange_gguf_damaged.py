"""GGUF files that are damaged or odd: imported, or refused by name; nothing else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from modelfactory.errors import SourceError
from modelfactory.interchange import export_gguf, import_model
from modelfactory.models import Llama
from tests.interchange.material import bpe, built

if TYPE_CHECKING:
    from pathlib import Path

TINY = Llama(n_layers=1, d_model=16, n_heads=2, max_seq_len=8, d_ff=16)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    export_gguf(built(TINY), TINY, bpe(), path, facts={"chat_template": "{{ messages }}"})
    return path.read_bytes()


def refusal(path: Path) -> SourceError | None:
    try:
        import_model(path)
    except SourceError as error:
        return error
    return None


def test_a_changed_byte_and_a_cut_file(content: bytes, tmp_path: Path) -> None:
    """Half of the changes fall on the header, where sizes and types are."""
    generator = random.Random(20)
    path = tmp_path / "model.gguf"
    header = content.index(b"token_embd.weight")
    errors = []
    for n in range(300):
        changed = bytearray(content)
        place = generator.randrange(header + 500 if n % 2 else len(content))
        changed[place] ^= generator.randrange(1, 256)
        path.write_bytes(changed)
        errors.append(refusal(path))
    refused = [error for error in errors if error is not None]
    assert 50 < len(refused) < 250  # weights and names may be anything
    assert all(str(path) in error.place and error.found and error.wanted for error in refused)
    for _ in range(30):
        path.write_bytes(content[: generator.randrange(len(content))])
        assert refusal(path) is not None


def rewritten(content: bytes, path: Path, change: Any) -> None:
    """Write the file again, its fields and tensors changed."""
    path.with_suffix(".whole").write_bytes(content)
    reader = gguf.GGUFReader(path.with_suffix(".whole"))
    fields = {
        name: (field.contents(), *field.types)
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.") and name != "general.architecture"
    }
    tensors: dict[str, Any] = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    change(fields, tensors)
    writer = gguf.GGUFWriter(path, "llama")
    for name, (value, kind, *inner) in fields.items():
        writer.add_key_value(name, value, kind, inner[0] if inner else None)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KIND = gguf.GGUFValueType
NUMBERS = (KIND.ARRAY, KIND.INT32)
ODD: dict[str, tuple[Any, str]] = {
    "no tokens": (lambda f, t: f.pop("tokenizer.ggml.tokens"), r"tokenizer.ggml.tokens: found nothing"),
    "no merges": (lambda f, t: f.pop("tokenizer.ggml.merges"), r"tokenizer.ggml.merges: found nothing"),
    "few types": (
        lambda f, t: f.update({"tokenizer.ggml.token_type": ([1, 1], *NUMBERS)}),
        r"token_type: found 2 items, wanted 300, one for each token",
    ),
    "end beyond": (
        lambda f, t: f.update({"tokenizer.ggml.eos_token_id": (300, KIND.UINT32)}),
        r"eos_token_id: found 300, wanted the id of one of 300 tokens",
    ),
    "no end": (lambda f, t: f.pop("tokenizer.ggml.eos_token_id"), r"eos_token_id: found nothing"),
    "no eps": (
        lambda f, t: f.pop("llama.attention.layer_norm_rms_epsilon"),
        r"layer_norm_rms_epsilon: found nothing, wanted a number",
    ),
    "no layers": (lambda f, t: f.pop("llama.block_count"), r"block_count: found nothing"),
    "many layers": (
        lambda f, t: f.update({"llama.block_count": (2**31, KIND.UINT32)}),
        r"block_count: found 2,147,483,648, wanted at most",
    ),
    "no heads": (lambda f, t: f.pop("llama.attention.head_count"), r"head_count: found nothing"),
    "heads as text": (
        lambda f, t: f.update({"llama.attention.head_count": ("2", KIND.STRING)}),
        r"head_count: found 2, wanted a number above 0",
    ),
    "heads by layer": (
        lambda f, t: f.update({"llama.attention.head_count_kv": ([2, 1], *NUMBERS)}),
        r"head_count_kv: found \[2, 1\], wanted a number above 0, the same for every layer",
    ),
    "no embedding": (lambda f, t: t.pop("token_embd.weight"), r"token_embd.weight: found nothing"),
    "whole numbers": (
        lambda f, t: t.update({"output.weight": t["output.weight"].astype(np.int32)}),
        r"output.weight: found the type I32",
    ),
    "double numbers": (
        lambda f, t: t.update({"output.weight": t["output.weight"].astype(np.float64)}),
        r"output.weight: found the type F64",
    ),
    "factors": (
        lambda f, t: t.update({"rope_freqs.weight": np.full(4, 3.0, np.float32)}),
        r"rope_freqs.weight: found factors of their own",
    ),
    "no factors": (
        lambda f, t: t.update({"rope_freqs.weight": np.ones(4, np.float32)}),
        r"rope_freqs.weight: found factors that stretch nothing",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    change, found = ODD[name]
    rewritten(content, tmp_path / "model.gguf", change)
    with pytest.raises(SourceError, match=found):
        import_model(tmp_path / "model.gguf")


def test_heads_told_for_every_layer_and_a_missing_base_are_read(content: bytes, tmp_path: Path) -> None:
    def change(fields: dict[str, Any], _: dict[str, Any]) -> None:
        fields["llama.attention.head_count_kv"] = ([2], *NUMBERS)
        del fields["llama.rope.freq_base"]  # 10,000 then, in llama.cpp as here

    rewritten(content, tmp_path / "model.gguf", change)
    assert import_model(tmp_path / "model.gguf").spec == TINY
