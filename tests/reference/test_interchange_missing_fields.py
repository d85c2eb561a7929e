"""A config.json of which fields are missing: they are what the class of transformers has them be."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from tests.interchange.material import VOCAB_SIZE, some_tokens

from modelfactory.errors import SourceError
from modelfactory.interchange import import_model
from modelfactory.interchange.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 32,
    "vocab_size": VOCAB_SIZE,
}
GIVEN: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB_SIZE},
    "qwen2": {**SIZES, "num_attention_heads": 32},
    "qwen3": {**SIZES, "num_attention_heads": 32},
    "bamba": {**SIZES, "attn_layer_indices": [1], "mamba_d_state": 16},
}
"""Sizes without which no model is small; all others are left out."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def written(kind: str, folder: Path, **fields: Any) -> Any:
    """Write large weights, so that caps and epsilons show, and a config.json of `fields` alone."""
    config = transformers.AutoConfig.for_model(kind, **copy.deepcopy(fields))  # it writes into what it gets
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        theirs.get_input_embeddings().weight.mul_(0.01)  # small beside an epsilon
    theirs.save_pretrained(folder)
    named = {"architectures": [type(theirs).__name__], "model_type": kind}
    (folder / "config.json").write_text(json.dumps(named | fields))
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def assert_equal(folder: Path, theirs: Any) -> None:
    imported = import_model(folder)
    tokens = some_tokens(imported.spec)
    with torch.no_grad():
        ours, wanted = imported.build()(tokens), theirs(tokens).logits
    torch.testing.assert_close(ours, wanted, atol=2e-5 * wanted.abs().max().item(), rtol=0)


@pytest.mark.parametrize("kind", [family.model_type for family in FAMILIES])
def test_what_is_missing(kind: str, tmp_path: Path) -> None:
    fields = GIVEN.get(kind, SIZES)
    assert_equal(tmp_path, written(kind, tmp_path, **fields))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_defaults_are_those_of_the_class(family: Any) -> None:
    theirs = transformers.AutoConfig.for_model(family.model_type)
    defaults = dict(family.defaults)
    theta = defaults.pop("rope_theta", 10_000.0)
    if family.model_type != "gpt2":
        assert theirs.rope_parameters["rope_theta"] == theta
        assert theirs.rms_norm_eps == defaults.pop("rms_norm_eps", 1e-6)
    window = defaults.pop("sliding_window", None)  # a class that does not use it keeps null in its place
    assert window in (None, getattr(type(theirs), "sliding_window", None))
    for name, value in defaults.items():
        assert getattr(theirs, name) == value, name


REQUIRED = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("max_position_embeddings", "n_embd", "n_layer", "n_head"),
}
"""Sizes that are refused where they are missing: such a file is damaged."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_any_field_of_the_class_may_be_missing(family: Any) -> None:
    """All defaults of the class, written down, and the same with each left out by turns."""
    fields = transformers.AutoConfig.for_model(family.model_type).to_dict()
    del fields["vocab_size"]
    if family.model_type in ("mistral", "gemma2"):
        assert fields["sliding_window"] < fields["max_position_embeddings"]  # else it would have no effect
    whole = family.read(fields, "config.json")
    assert whole.n_layers == fields.get("num_hidden_layers", fields.get("n_layer"))
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        if name in REQUIRED:
            with pytest.raises(SourceError, match=f"config.json: {name}: found nothing"):
                family.read(rest, "config.json")
        else:
            assert family.read(rest, "config.json") == whole, name


LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {"rope_theta": 100.0}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 100.0}, "rope_theta": 50.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "rope_theta": 50.0},
        {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": LLAMA_3 | {"rope_theta": 100.0}},
        {"rope_scaling": LLAMA_3, "rope_parameters": LLAMA_3, "rope_theta": 100.0},
        {"rope_scaling": {}, "rope_parameters": YARN},
        {"rope_scaling": YARN | {"attention_factor": 1.5}},
        {"rope_scaling": YARN | {"factor": 1.0}},
        {"rope_scaling": YARN | {"truncate": False, "beta_fast": 8}},
        {"rope_theta": 100.0, "partial_rotary_factor": 1.0},
    ],
)
@pytest.mark.parametrize("kind", ["llama", "olmo2"])
def test_positions(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert_equal(tmp_path, written(kind, tmp_path, **SIZES, **fields))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rope_scaling": LLAMA_3, "rope_parameters": YARN}, "rope_parameters.rope_type"),
        ({"rope_scaling": LLAMA_3, "rope_parameters": LLAMA_3 | {"factor": 2}}, "rope_parameters.factor"),
        ({"rope_scaling": LLAMA_3, "rope_parameters": "x"}, "rope_parameters"),
        ({"rope_scaling": LLAMA_3, "rope_parameters": {"a": 1}}, "rope_parameters"),
        ({"rope_scaling": YARN | {"factor": 1, "attention_factor": 2.0}}, "rope_scaling.attention_factor"),
        ({"rope_scaling": {"rope_type": "default", "factor": 8.0}}, "rope_scaling.factor"),
        ({"rope_parameters": {"full_attention": LLAMA_3}}, "rope_parameters.full_attention"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": LLAMA_3 | {"type": "yarn"}}, "rope_scaling.type"),
    ],
)
def test_positions_that_are_refused(fields: dict[str, Any], told: str, tmp_path: Path) -> None:
    named = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(named | SIZES | fields))
    with pytest.raises(SourceError, match=f"config.json: {told}: found"):
        import_model(tmp_path)
