"""Our GGUF files and Hugging Face folders of real and small models, read by transformers' own readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from tests.interchange.material import FILES, SPECS, bpe, built, some_tokens
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from modelfactory.interchange import export_gguf, export_hugging_face, import_model

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", ["llama", "llama tied", "qwen2", "qwen3"])
def test_logits_of_our_gguf(name: str, tmp_path: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    _, spec = SPECS[name]
    module, path = built(spec), tmp_path / "model.gguf"
    export_gguf(module, spec, bpe(), path)
    told = load_gguf_checkpoint(str(path))["config"]
    more = {"head_dim": 32} if name == "qwen3" else {}  # which that reader leaves out
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**told, **more))
    state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=theirs)["tensors"]
    lost = theirs.load_state_dict(state, strict=False)
    assert lost.missing_keys == (["lm_head.weight"] if spec.tied else [])
    assert not lost.unexpected_keys
    theirs.tie_weights()
    tokens = some_tokens(spec)
    with torch.no_grad():
        found = theirs.float().eval()(tokens).logits
        torch.testing.assert_close(module(tokens), found, atol=TOLERANCE, rtol=0)


def test_the_tokenizer_of_our_gguf(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    tokenizer = bpe()
    export_gguf(built(spec), spec, tokenizer, tmp_path / "model.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    text = "Once upon a time, there were 12 otters."
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)


def test_stories_in_transformers(tmp_path: Path) -> None:
    """The known greedy text, written by transformers from our folder."""
    transformers.utils.logging.disable_progress_bar()
    stories = import_model(FILES / "stories260K.bin", tokenizer=FILES / "tok512.bin")
    assert stories.tokenizer is not None
    facts = {"prefix_id": stories.prefix_id}
    export_hugging_face(stories.build(), stories.spec, stories.tokenizer, tmp_path / "model", facts=facts)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    prompt = torch.tensor([[tokenizer.bos_token_id]])
    written = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=200, do_sample=False, pad_token_id=0
    )
    assert tokenizer("")["input_ids"] == [1]
    assert tokenizer("Once")["input_ids"] == [1, *stories.tokenizer.encode("Once")]
    text = tokenizer.decode(written[0, 1:])
    assert text.encode("utf-8") == (FILES / "stories260K.greedy200.txt").read_bytes()
