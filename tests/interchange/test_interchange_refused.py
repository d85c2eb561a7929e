"""Folders that cannot be imported: what is wrong is named."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelfactory.errors import SourceError
from modelfactory.interchange import export_hugging_face, import_model
from modelfactory.interchange.importing import files_of
from tests.interchange.material import SPECS, assert_equal_states, bpe, built

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    State = dict[str, torch.Tensor]


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[State], State]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[State], State]:
    return lambda state: state | {name: tensor}


def without_tensor(name: str) -> Callable[[State], State]:
    return lambda state: {key: tensor for key, tensor in state.items() if key != name}


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(SourceError) as caught:
        import_model(folder)
    for word in words:
        assert word in str(caught.value)


def test_it_is_imported_as_it_is(folder: Path) -> None:
    assert import_model(folder).tokenizer is not None


def test_an_unknown_architecture_lists_what_is_known(folder: Path) -> None:
    change_config(folder, architectures=["Lama3ForCausalLM"])
    known = ("GPT2LMHeadModel", "BambaForCausalLM", "Did you mean 'LlamaForCausalLM'?")
    refused(folder, "Lama3ForCausalLM", *known)


def test_no_architecture(folder: Path) -> None:
    change_config(folder, architectures=None)
    refused(folder, "architectures", "found nothing")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_act": "gelu"}, ["hidden_act", '"gelu"', '"silu"']),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            ["rope_type", "'dynamic'", "yarn"],
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, ["rope_scaling", "low_freq_factor"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["rope_scaling.factor", "found nothing"]),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "gain": 3}},
            ["rope_scaling.gain", "found 3", "yarn has none"],
        ),
        ({"residual_multiplier": 0.5}, ["residual_multiplier", "0.5", "does not know"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"hidden_size": None}, ["hidden_size", "found nothing"]),
        ({"num_attention_heads": 3}, ["n_kv_heads", "divisor"]),
    ],
)
def test_a_field_that_cannot_be_represented(folder: Path, fields: dict[str, Any], words: list[str]) -> None:
    change_config(folder, **fields)
    refused(folder, "config.json", *words)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", "32"), ("num_attention_heads", 0), ("num_hidden_layers", 1.0), ("vocab_size", "many")],
)
def test_a_size_that_is_no_count(folder: Path, name: str, value: Any) -> None:
    change_config(folder, **{name: value})
    refused(folder, f"config.json: {name}: found {json.dumps(value)}", "wanted a whole number from 1")


def test_an_empty_field_is_no_fault(folder: Path) -> None:
    change_config(folder, residual_multiplier=None, some_flag=False, rope_scaling=None)
    import_model(folder)


def test_a_missing_tensor(folder: Path) -> None:
    change_weights(folder, without_tensor("model.layers.1.self_attn.k_proj.weight"))
    refused(folder, "no tensor model.layers.1.self_attn.k_proj.weight")


def test_an_extra_tensor(folder: Path) -> None:
    change_weights(folder, with_tensor("model.layers.1.self_attn.q_proj.bias", torch.zeros(64)))
    refused(folder, "model.layers.1.self_attn.q_proj.bias", "no place")


def test_a_tensor_under_another_name(folder: Path) -> None:
    change_weights(folder, without_tensor("model.norm.weight"))
    change_weights(folder, with_tensor("model.normal.weight", torch.ones(64)))
    refused(folder, "no tensor model.norm.weight but model.normal.weight")


def test_a_tensor_of_another_shape(folder: Path) -> None:
    change_weights(folder, with_tensor("model.norm.weight", torch.ones(63)))
    refused(folder, "model.norm.weight", "[63]", "[64]")


def test_a_tensor_of_whole_numbers(folder: Path) -> None:
    change_weights(folder, with_tensor("model.norm.weight", torch.ones(64, dtype=torch.int8)))
    refused(folder, "model.norm.weight", "I8", "unquantised")


def test_constants_of_older_files_are_passed_over(folder: Path) -> None:
    before = import_model(folder).state
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, with_tensor(name, torch.ones(8)))
    assert_equal_states(import_model(folder).state, before)


def test_a_file_that_is_cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refused(folder, "model.safetensors", "copy it again")


@pytest.mark.parametrize("content", [b"", b"\x10", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_file_that_is_none(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "model.safetensors", f"{len(content):,} bytes")


def test_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "pickled", "safetensors")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "no weights", "config.json")


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, None, tmp_path / "model", max_shard_bytes=100_000)
    lost = min((tmp_path / "model").glob("*.safetensors"))
    lost.unlink()
    refused(tmp_path / "model", lost.name, "no file")


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, None, tmp_path / "model", max_shard_bytes=100_000)
    path = tmp_path / "model" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    last = max(index["weight_map"].values())
    index["weight_map"]["model.embed_tokens.weight"] = last
    path.write_text(json.dumps(index))
    refused(tmp_path / "model", "model.embed_tokens.weight", last, "does not hold")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({}, ["weight_map", "nothing"]),
        ({"weight_map": []}, ["weight_map", "list"]),
        ({"weight_map": {}}, ["weight_map", "empty"]),
        ({"weight_map": {"model.norm.weight": 3}}, ["weight_map.model.norm.weight", "3"]),
        (
            {"weight_map": {"model.norm.weight": "../other/a.safetensors"}},
            ["../other", "beside the index"],
        ),
        ({"weight_map": {"model.norm.weight": "/model.safetensors"}}, ["/model", "beside the index"]),
        ({"weight_map": {"model.norm.weight": "sub/model.safetensors"}}, ["sub/model", "beside the index"]),
        ({"weight_map": {"model.norm.weight": "config.json"}}, ["config.json", "beside the index"]),
        ([1], ["no object"]),
    ],
)
def test_an_index_that_leads_astray(folder: Path, index: Any, words: list[str]) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model.safetensors.index.json", *words)
    with pytest.raises(SourceError, match="index"):
        files_of(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json"])
def test_a_folder_in_place_of_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, str(folder))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    change_weights(folder, with_tensor("model.norm.weight", torch.full((64,), value)))
    refused(folder, "model.norm.weight", "NaN or infinite")


def test_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    refused(folder, "config.json", "JSON")


def test_a_vocabulary_smaller_than_the_tokenizers(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec, 200), spec, None, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(bpe().to_json())
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    refused(tmp_path / "model", "a vocabulary of 200", f"{bpe().vocab_size} tokens")


def test_a_larger_vocabulary_is_padding(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec, 400), spec, bpe(), tmp_path / "model")
    assert import_model(tmp_path / "model").vocab_size == 400


def test_a_tokenizer_that_does_not_say_what_ends_a_text(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    change_config(folder, eos_token_id=None)
    refused(folder, "eos_token")
    assert import_model(folder, eos_token="<|endoftext|>").prefix_id == 0


NAMED = [{"name": "tools", "template": "{{ 1 }}"}, {"name": "default", "template": "{{ messages }}"}]


@pytest.mark.parametrize("template", ["{{ messages }}", NAMED])
def test_special_tokens_of_chats(folder: Path, template: Any) -> None:
    """A token may be an object, and several ids may end a turn; of several templates the default is kept."""
    config: dict[str, Any] = {"eos_token": {"content": "<|turn|>"}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    change_config(folder, bos_token_id=0, eos_token_id=[1, 0])
    imported = import_model(folder)
    assert imported.tokenizer is not None
    assert (imported.tokenizer.eos_id, imported.prefix_id) == (1, 0)
    assert imported.facts["chat_template"] == "{{ messages }}"


def test_a_token_for_the_beginning_counts_where_the_tokenizer_puts_it(folder: Path) -> None:
    """SmolLM2 and others name one that no text of their training began with."""
    (folder / "tokenizer.json").write_text(bpe().to_json())  # which puts none
    config = {"eos_token": "<|endoftext|>", "bos_token": "<|turn|>"}
    found = []
    for more in ({}, {"add_bos_token": False}, {"add_bos_token": True}):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | more))
        found.append(import_model(folder).prefix_id)
    assert found == [0, 0, 1]


def test_a_second_head_must_be_a_copy(tmp_path: Path) -> None:
    _, spec = SPECS["llama tied"]
    export_hugging_face(built(spec), spec, None, tmp_path / "model")
    embedding = load_file(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(tmp_path / "model", with_tensor("lm_head.weight", embedding.clone()))
    import_model(tmp_path / "model")
    change_weights(tmp_path / "model", with_tensor("lm_head.weight", embedding + 1))
    refused(tmp_path / "model", "lm_head.weight", "tied", "tie_word_embeddings")


def test_names_without_prefix_as_published_gpt2_has_them(tmp_path: Path) -> None:
    _, spec = SPECS["gpt2"]
    module = built(spec)
    export_hugging_face(module, spec, None, tmp_path / "model")

    def bare(state: State) -> State:
        named = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
        return named | {"h.0.attn.bias": torch.ones(1, 1, 48, 48)}

    change_weights(tmp_path / "model", bare)
    assert_equal_states(import_model(tmp_path / "model").state, module.state_dict())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.pt", b"PK\x03\x04", ["pickled"]),
        ("model.bin", b"\x80\x02}", ["pickled"]),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", ["Give the folder"]),
        ("notes.txt", b"hello", ["notes.txt", "GGUF"]),
    ],
)
def test_other_files(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, *words)


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "nothing")
