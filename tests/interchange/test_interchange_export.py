"""What an export writes, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modelfactory.errors import CommandError, DiskFull, SourceError, SpecError
from modelfactory.interchange import export_hugging_face, import_model
from modelfactory.models import BiasBalance, GatedFeedForward, MultiToken
from modelfactory.models.mup import at_width, mup
from tests.interchange.material import SPECS, VOCAB_SIZE, assert_equal_states, bpe, built

if TYPE_CHECKING:
    from pathlib import Path


def of(name: str) -> Any:
    return SPECS[name][1]


def test_all_files_and_nothing_else(tmp_path: Path) -> None:
    spec = of("llama")
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model", facts={"chat_template": "{{ x }}"})
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_shards_with_an_index(tmp_path: Path) -> None:
    spec = of("llama")
    module = built(spec)
    export_hugging_face(module, spec, None, tmp_path / "whole")
    export_hugging_face(module, spec, None, tmp_path / "cut", max_shard_bytes=100_000)
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "cut").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    for name in files:
        assert sum(tensor.nbytes for tensor in load_file(tmp_path / "cut" / name).values()) <= 100_000
    assert_equal_states(import_model(tmp_path / "cut").state, module.state_dict())


@pytest.mark.parametrize("name", ["gpt2", "llama tied", "gemma2"])
def test_a_tied_head_is_stored_once(name: str, tmp_path: Path) -> None:
    export_hugging_face(built(of(name)), of(name), None, tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - it is no dictionary


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # in torch itself
def test_names_of_compiled_modules_are_plain(tmp_path: Path) -> None:
    spec = of("llama")
    module: Any = built(spec)
    wanted = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.blocks[1] = torch.compile(module.blocks[1])
    assert any("_orig_mod" in name for name in module.state_dict())
    export_hugging_face(torch.compile(module), spec, None, tmp_path / "model")  # type: ignore[arg-type]
    assert_equal_states(import_model(tmp_path / "model").state, wanted)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(CommandError, match="nothing is overwritten"):
        export_hugging_face(built(of("gpt2")), of("gpt2"), None, tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modelfactory.interchange import exporting

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_tokenizer", full)
    with pytest.raises(DiskFull, match="No space"):
        export_hugging_face(built(of("gpt2")), of("gpt2"), bpe(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_model_card(tmp_path: Path) -> None:
    spec = of("llama")
    facts = {"training": {"trained for": "7 steps, 1,000 tokens"}, "lineage": "abc123"}
    export_hugging_face(built(spec), spec, None, tmp_path / "model", licence="apache-2.0", facts=facts)
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    n_parameters = f"{spec.n_parameters(VOCAB_SIZE):,}"
    for told in ("`LlamaForCausalLM`", n_parameters, "7 steps", "factory show abc123"):
        assert told in card
    export_hugging_face(built(spec), spec, None, tmp_path / "other")
    assert "none was given" in (tmp_path / "other" / "README.md").read_text()


def test_what_only_training_uses_stays_behind(tmp_path: Path) -> None:
    spec = of("llama")
    further = replace(spec, multi_token=MultiToken(n_extra=1, weight=0.3, block=spec.blocks[0]))
    module = built(further)
    export_hugging_face(module, further, None, tmp_path / "model")
    back = import_model(tmp_path / "model")
    assert back.spec == spec
    kept = {name: value for name, value in module.state_dict().items() if not name.startswith("multi_token")}
    assert_equal_states(back.state, kept)


def test_a_decoder_that_nothing_holds_is_refused_with_the_nearest(tmp_path: Path) -> None:
    spec = of("llama")
    mixer = replace(spec.blocks[0].mixer, softcap=30.0)
    odd = replace(spec, blocks=(replace(spec.blocks[0], mixer=mixer),))
    with pytest.raises(SpecError, match=r"LlamaForCausalLM comes nearest.*softcap: null there, 30"):
        export_hugging_face(built(odd), odd, None, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_bias_that_chooses_experts_is_refused(tmp_path: Path) -> None:
    spec = of("mixtral")
    experts = replace(spec.blocks[0].feed_forward, balance=BiasBalance(rate=0.001))
    odd = replace(spec, blocks=(replace(spec.blocks[0], feed_forward=experts),))
    with pytest.raises(SpecError, match="balance"):
        export_hugging_face(built(odd), odd, None, tmp_path / "model")


def test_a_module_of_another_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"blocks\.0\.feed_forward\.down"):
        export_hugging_face(built(of("llama")), of("llama tied"), None, tmp_path / "model")


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(tmp_path: Path) -> None:
    spec, tokenizer = of("llama"), bpe()
    with pytest.raises(SourceError, match=f"of 200 beside a tokenizer with {tokenizer.vocab_size}"):
        export_hugging_face(built(spec, 200), spec, tokenizer, tmp_path / "model")


@pytest.mark.parametrize("width", [96, 128, 224])
def test_what_mup_makes_of_a_llama_is_a_granite(width: int, tmp_path: Path) -> None:
    gated = GatedFeedForward(d_ff=128, activation="silu", bias=False)
    base = replace(of("llama tied"), blocks=(replace(of("llama tied").blocks[0], feed_forward=gated),))
    wide = mup(at_width(base, width), base=base)
    module = built(wide)
    assert export_hugging_face(module, wide, None, tmp_path / "model") == "GraniteForCausalLM"
    assert import_model(tmp_path / "model").spec.logit_scale == wide.logit_scale != 1.0
