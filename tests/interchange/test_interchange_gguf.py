"""GGUF files, written and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from modelfactory.errors import CommandError, SourceError, SpecError
from modelfactory.interchange import export_gguf, gguf_library, import_model
from modelfactory.interchange.rotary_order import to_halves, to_neighbours
from modelfactory.models import LinearScaling, Llama, YaRN
from modelfactory.tokens.tokenizer import Tokenizer
from tests.interchange.material import LLAMA_3, SIZES, SPECS, assert_equal_states, bpe, built

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.models import Decoder

LIKE_LLAMA = {
    "llama": SPECS["llama"][1],
    "llama tied": SPECS["llama tied"][1],
    "llama 3": Llama(**SIZES, rope_theta=500_000.0, rope_scaling=LLAMA_3),
    "llama 3 of its own": SPECS["llama 3"][1],
    "llama 3 of short heads": Llama(
        **{**SIZES, "n_heads": 32}, rope_scaling=replace(LLAMA_3, factor=7.3, original_max_seq_len=20)
    ),
    "llama linear": Llama(**SIZES, rope_scaling=LinearScaling(factor=4.0)),
    "llama yarn": Llama(**SIZES, rope_scaling=YaRN(factor=4.0, original_max_seq_len=12)),
    "qwen2": SPECS["qwen2"][1],
    "qwen3": SPECS["qwen3"][1],
}


@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    spec, tokenizer = LIKE_LLAMA[name], bpe()
    module = built(spec)
    assert export_gguf(module, spec, tokenizer, tmp_path / "model.gguf") == name.partition(" ")[0]
    back = import_model(tmp_path / "model.gguf")
    assert back.spec == spec
    assert_equal_states(back.state, module.state_dict())
    assert back.tokenizer is not None
    text = "Once upon a time,\n\n  there were 12 otters \N{OTTER} <|turn|>"
    assert back.tokenizer.encode(text) == tokenizer.encode(text)
    assert (back.tokenizer.eos_id, back.prefix_id) == (0, 0)
    assert back.tokenizer.special_ids == tokenizer.special_ids
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_matrices(dtype: Any, tmp_path: Path) -> None:
    spec = SPECS["llama"][1]
    module = built(spec)
    export_gguf(module, spec, None, tmp_path / "model.gguf", dtype=dtype)
    narrow = getattr(torch, dtype)
    wanted = {
        name: tensor if tensor.ndim == 1 else tensor.to(narrow).float()
        for name, tensor in module.state_dict().items()
    }
    back = import_model(tmp_path / "model.gguf")
    assert_equal_states(back.state, wanted)
    assert back.tokenizer is None


def test_rows_of_llama_are_in_the_order_of_llama_cpp(tmp_path: Path) -> None:
    """The published order: what turns together lies side by side."""
    spec = SPECS["llama"][1]
    module = built(spec)
    export_gguf(module, spec, None, tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    ours = module.state_dict()["blocks.0.mixer.qkv.weight"].numpy()
    theirs = np.array(tensors["blk.0.attn_k.weight"].data)
    n_q, head_dim = 64, 16
    for n in range(head_dim // 2):  # of the first key head
        np.testing.assert_array_equal(theirs[2 * n], ours[n_q + n])
        np.testing.assert_array_equal(theirs[2 * n + 1], ours[n_q + n + head_dim // 2])


def test_orders_are_inverse() -> None:
    rows = torch.arange(48.0)[:, None] * torch.ones(3)
    assert torch.equal(to_neighbours(to_halves(rows, 4), 4), rows)
    assert to_halves(rows, 4)[:3, 0].tolist() == [0.0, 2.0, 4.0]


def test_padding_of_the_vocabulary_is_no_token(tmp_path: Path) -> None:
    spec, tokenizer = SPECS["llama"][1], bpe()
    export_gguf(built(spec, 400), spec, tokenizer, tmp_path / "model.gguf")
    back = import_model(tmp_path / "model.gguf")
    assert back.vocab_size == 400
    assert back.tokenizer is not None
    assert back.tokenizer.vocab_size == tokenizer.vocab_size


def quantised(spec: Decoder, path: Path) -> Any:
    """Write a file whose matrices are Q8_0; return what their numbers stand for, by name in the file."""
    export_gguf(built(spec), spec, bpe(), path.with_suffix(".f32"))
    reader = gguf.GGUFReader(path.with_suffix(".f32"))
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    meant = {}
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) > 1
        kind = gguf.GGMLQuantizationType.Q8_0 if is_matrix else gguf.GGMLQuantizationType.F32
        values = gguf.quants.quantize(np.array(tensor.data), kind)
        meant[tensor.name] = gguf.quants.dequantize(values, kind)
        writer.add_tensor(tensor.name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def test_quantised_tensors_are_the_numbers_they_stand_for(tmp_path: Path) -> None:
    spec = SPECS["llama"][1]
    meant = quantised(spec, tmp_path / "model.gguf")
    back = import_model(tmp_path / "model.gguf")
    assert back.facts["dtype"] == "F32+Q8_0"
    assert back.spec == spec
    down = back.state["blocks.1.feed_forward.down.weight"].numpy()
    np.testing.assert_array_equal(down, meant["blk.1.ffn_down.weight"])
    q, _, _ = back.state["blocks.1.mixer.qkv.weight"].split((64, 32, 32))
    np.testing.assert_array_equal(to_neighbours(q, 4).numpy(), meant["blk.1.attn_q.weight"])


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "falcon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SourceError, match=r"'falcon', wanted one of llama, qwen2, qwen3"):
        import_model(tmp_path / "model.gguf")


@pytest.mark.parametrize("n_kept", [6, 2_000, -5_000])
def test_a_file_that_is_cut_off(n_kept: int, tmp_path: Path) -> None:
    spec = SPECS["llama"][1]
    export_gguf(built(spec), spec, bpe(), tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[:n_kept])
    with pytest.raises(SourceError, match="a whole GGUF file"):
        import_model(tmp_path / "cut.gguf")


def test_other_families_are_refused(tmp_path: Path) -> None:
    spec = SPECS["gemma2"][1]
    with pytest.raises(SpecError, match="like Gemma2ForCausalLM, wanted one like LlamaForCausalLM"):
        export_gguf(built(spec), spec, None, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_what_gguf_has_no_field_for_is_refused(tmp_path: Path) -> None:
    yarn = YaRN(factor=4.0, original_max_seq_len=12, attention_factor=1.5)
    stretched = Llama(**SIZES, rope_scaling=yarn)
    plain = SPECS["llama"][1]
    mixer: Any = plain.blocks[0].mixer
    mixer = replace(mixer, qkv_bias=True, out_bias=True)
    biased = replace(plain, blocks=(replace(plain.blocks[0], mixer=mixer),))
    for spec in (stretched, biased):
        with pytest.raises(SpecError, match="GGUF has no field for it"):
            export_gguf(built(spec), spec, None, tmp_path / "model.gguf")


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(tmp_path: Path) -> None:
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(bpe().to_json())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Whitespace(), inner.pre_tokenizer]
    )
    spec = SPECS["llama"][1]
    with pytest.raises(SpecError, match="in a way of its own"):
        export_gguf(built(spec), spec, Tokenizer(inner, 0), tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(gguf_library.importlib, "import_module", absent)
    spec = SPECS["llama"][1]
    with pytest.raises(CommandError, match=r"pip install 'modelfactory\[gguf\]'"):
        export_gguf(built(spec), spec, None, tmp_path / "model.gguf")
