"""Fields of config.json of any type: a decoder comes of them, or the field is named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange import export_gguf, export_hugging_face, import_model
from modelfactory.interchange.config import read_json
from modelfactory.interchange.families import FAMILIES
from modelfactory.interchange.family import family_of
from modelfactory.interchange.hugging_face import outline
from modelfactory.interchange.weights import shapes_of
from modelfactory.models import GPT2, Bamba, Decoder, Gemma2, Llama, Qwen3
from tests.interchange.material import SIZES, SPECS, VOCAB_SIZE, bpe, built

if TYPE_CHECKING:
    from pathlib import Path

ODD: tuple[Any, ...] = ("x", "4", 3, 0, -1, 1.5, True, False, None, [], {}, ["x"], {"a": 1}, 1e308, 10**400)

NAMES = {"rope_theta": r"(rope_theta|Rope\.theta)"}


@pytest.mark.parametrize("name", SPECS)
def test_every_field_with_odd_values(name: str, tmp_path: Path) -> None:
    _, spec = SPECS[name]
    family, written = family_of(spec, FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    extra = ("rope_scaling", "rope_parameters", "rope_theta", "sliding_window", "layer_types")
    tried, refused = 0, []
    for field in sorted({*fields, *extra, "max_window_layers", "partial_rotary_factor"}):
        for value in ODD:
            tried += 1
            (tmp_path / "config.json").write_text(json.dumps(fields | {field: value}))
            try:
                found, vocab_size, _ = outline(tmp_path)
                shapes_of(found, vocab_size)
            except SourceError as error:  # any other error is a fault
                refused.append(error.place)
    assert tried > 15 * 15
    assert len(refused) > 100
    assert all(place.startswith(f"{tmp_path / 'config.json'}: ") for place in refused)


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    "key", ["rope_type", "factor", "low_freq_factor", "rope_theta", "truncate", "mscale"]
)
def test_every_field_of_a_scaling_with_odd_values(field: str, key: str, tmp_path: Path) -> None:
    family, written = family_of(SPECS["llama 3"][1], FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    scaling = fields.pop("rope_scaling")
    for value in ODD:
        changed = {field: scaling | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(fields | changed))
        if value is None and key != "truncate":
            continue  # as good as missing
        if key in ("low_freq_factor", "factor", "rope_theta") and value in (3, 1.5, 1e308):
            continue
        with pytest.raises(SourceError, match=rf"config.json: .*{NAMES.get(key, key)}"):
            outline(tmp_path)


def test_a_file_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match=r"config\.json: found no file that can be read"):
        read_json(tmp_path / "config.json")


def test_more_layers_than_any_file_has(tmp_path: Path) -> None:
    family, written = family_of(SPECS["llama"][1], FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 10_000_000}))
    with pytest.raises(SourceError, match="num_hidden_layers: found 10000000, wanted a whole number"):
        outline(tmp_path)


NULLS = {
    "llama": ("rms_norm_eps", "tie_word_embeddings", "hidden_act", "mlp_bias", "rope_theta"),
    "gemma2": ("sliding_window", "query_pre_attn_scalar"),
    "granite": ("logits_scaling", "attention_multiplier"),
    "mixtral": ("num_local_experts", "num_experts_per_tok"),
    "bamba": ("mamba_conv_bias", "mamba_expand"),
}
"""Fields of which transformers has a default where they are missing, but takes no null."""


@pytest.mark.parametrize("name", NULLS)
def test_null_is_not_missing(name: str) -> None:
    family, fields = family_of(SPECS[name][1], FAMILIES)
    for field in NULLS[name]:
        family.read({key: value for key, value in fields.items() if key != field}, "config.json")
        with pytest.raises(SourceError, match=f"config.json: {field}: found null"):
            family.read(fields | {field: None}, "config.json")


def test_null_that_means_something(tmp_path: Path) -> None:
    def read(name: str, **changed: Any) -> Any:
        family, fields = family_of(SPECS[name][1], FAMILIES)
        return family.read(fields | changed, "config.json")

    assert read("mistral", sliding_window=None).blocks[0].mixer.window is None
    assert read("gemma2", final_logit_softcapping=None).logit_softcap is None
    assert read("llama", num_key_value_heads=None).blocks[0].mixer.n_kv_heads == SIZES["n_heads"]
    assert read("qwen3", head_dim=None).blocks[0].mixer.head_dim == SIZES["d_model"] // SIZES["n_heads"]
    assert read("gpt2", n_inner=None).blocks[0].feed_forward.d_ff == 4 * SIZES["d_model"]
    assert read("qwen3 moe", mlp_only_layers=None) == SPECS["qwen3 moe"][1]


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"rope_type": "linear", "factor": 1, "gain": 2}, "rope_scaling.gain"),
        ({"rope_type": "yarn", "factor": 1.0, "low_freq_factor": 1.0}, "rope_scaling.low_freq_factor"),
        ({"rope_type": "llama3", "factor": 1.0, "high_freq_factor": 4.0}, "rope_scaling.low_freq_factor"),
        ({"rope_type": None}, "rope_scaling.rope_type"),
        ({"type": False}, "rope_scaling.type"),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0},
            "YaRN.original_max_seq_len",
        ),
    ],
)
def test_a_scaling_by_1_and_without_a_kind(scaling: dict[str, Any], told: str) -> None:
    family, fields = family_of(SPECS["llama"][1], FAMILIES)
    with pytest.raises(SourceError, match=f"config.json: {told}: found"):
        family.read(fields | {"rope_scaling": scaling}, "config.json")


@pytest.mark.parametrize(("name", "n_active"), [("mixtral", 1), ("mixtral", 4), ("qwen3 moe", 6)])
def test_one_expert_of_many_or_all_of_them(name: str, n_active: int) -> None:
    family, fields = family_of(SPECS[name][1], FAMILIES)
    with pytest.raises(SourceError, match=f"num_experts_per_tok: found {n_active}, wanted .*router"):
        family.read(fields | {"num_experts_per_tok": n_active}, "config.json")


def with_plain_feed_forward() -> Decoder:
    (block,) = Llama(**SIZES).blocks
    return replace(
        Llama(**SIZES), blocks=(replace(block, feed_forward=GPT2(**SIZES).blocks[0].feed_forward),)
    )


def differing(spec: Decoder, name: str, **fields: Any) -> Decoder:
    """Return the decoder with fields of a part of its second layer changed."""
    first, second, *others = spec.layers()
    second = replace(second, **{name: replace(getattr(second, name), **fields)})
    return replace(spec, blocks=(first, second, *others))


LLAMA = Llama(**SIZES, d_ff=64)
ALIKE = "LlamaForCausalLM comes nearest, its layers alike, but for"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (differing(LLAMA, "mixer", window=8), rf"{ALIKE} blocks\[1\].mixer.window: null there, 8 here, w"),
        (
            differing(LLAMA, "mixer", rope=None),
            rf"{ALIKE} blocks\[1\].mixer.rope: Rope.* there, null here, w",
        ),
        (
            differing(LLAMA, "feed_forward", d_ff=96),
            rf"{ALIKE} blocks\[1\].feed_forward.d_ff: 64 there, 96 here, w",
        ),
        (
            replace(LLAMA, blocks=(LLAMA.blocks[0], replace(LLAMA.blocks[0], placement="post"))),
            rf'{ALIKE} blocks\[1\].placement: "pre" there, "post" here, w',
        ),
        (
            replace(LLAMA, blocks=(*LLAMA.blocks, *with_plain_feed_forward().blocks)),
            rf"{ALIKE} blocks\[1\].feed_forward: GatedFeedForward.* there, FeedForward.* here",
        ),
        (
            differing(
                Bamba(**SIZES, attention_layers=(1,), mamba_heads=4, mamba_head_dim=16, state_dim=16),
                "feed_forward",
                d_ff=96,
            ),
            r"BambaForCausalLM comes nearest.* but for blocks\[1\].feed_forward.d_ff: \d+ there, 96 here, w",
        ),
        (
            Bamba(**SIZES, attention_layers=(1,), mamba_heads=3, mamba_head_dim=16, state_dim=16),
            "BambaForCausalLM comes nearest, but for mamba_d_head .* 3 heads of 16, only .* = 64",
        ),
        (
            Bamba(**SIZES, attention_layers=(1,), mamba_heads=10, mamba_head_dim=16, state_dim=16),
            "BambaForCausalLM comes nearest, but for mamba_d_head .* 10 heads of 16, only .* = 128",
        ),
        (
            Gemma2(**SIZES, d_ff=96, window=8, scale=0.3),
            "Gemma2ForCausalLM comes nearest, but for query_pre_attn_scalar .* 11.1.*whole number",
        ),
        (
            replace(Qwen3(**SIZES), logit_softcap=20.0),
            "Qwen3ForCausalLM comes nearest, but for logit_softcap: null there, 20.0 here, wanted",
        ),
        (with_plain_feed_forward(), r"these layers together: Attention \+ FeedForward \+ RMSNorm, wanted"),
    ],
)
def test_an_export_names_the_nearest_and_what_it_lacks(spec: Decoder, told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"no architecture of transformers known here holds; .*{told}"):
        export_hugging_face(built(spec), spec, None, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_export_to_gguf_names_what_gguf_holds(tmp_path: Path) -> None:
    spec = replace(Qwen3(**SIZES), logit_softcap=20.0)
    told = "of GGUF known here holds; Qwen3.* logit_softcap.* to a LlamaFor.*, Qwen2For.*, Qwen3ForCausalLM. "
    with pytest.raises(SpecError, match=told):
        export_gguf(built(spec), spec, None, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_an_export_to_gguf_names_the_layer_that_differs(tmp_path: Path) -> None:
    spec = differing(LLAMA, "mixer", window=8)
    told = rf"of GGUF known here holds; {ALIKE} blocks\[1\].mixer.window: null there, 8 here, wanted"
    with pytest.raises(SpecError, match=told):
        export_gguf(built(spec), spec, None, tmp_path / "model.gguf")


def test_a_gguf_file_without_the_width_of_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows from the model's, as in llama.cpp, and is not what the class of transformers has."""
    add = gguf.GGUFWriter.add_uint32

    def add_others(writer: gguf.GGUFWriter, name: str, value: int) -> None:
        if not name.endswith("_length") or not name.startswith("qwen3.attention"):
            add(writer, name, value)

    monkeypatch.setattr(gguf.GGUFWriter, "add_uint32", add_others)
    spec = Qwen3(**SIZES, head_dim=16)
    export_gguf(built(spec), spec, bpe(), tmp_path / "model.gguf")
    assert import_model(tmp_path / "model.gguf").spec == spec
