"""What is exported from an imported model makes of every text what transformers makes with the original."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import tokenizers
import torch
import transformers
from tests.interchange.material import SIZES, bpe, built
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from modelfactory.data import MemoryCache, pin_file
from modelfactory.interchange import export_gguf, export_hugging_face, export_stage, import_model
from modelfactory.interchange import stage as import_stage
from modelfactory.interchange.starting import imported_model, pin_model
from modelfactory.models import Llama
from modelfactory.stage import Site
from modelfactory.tokens import TokenizerFile, tokenizer_stage
from modelfactory.train.starting import kept_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = Llama(**SIZES)
BOS, EOS, PAD, BEGIN, END = "<|bos|>", "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
TEXTS = [
    "Once upon a time",
    "",
    " two  spaces\n\n",
    f"said {END} and {BOS}{EOS}<|turn|> then",
    "\N{OTTER} caf\N{LATIN SMALL LETTER E WITH ACUTE}",
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [{"role": "user", "content": "Once?"}, {"role": "assistant", "content": "Upon a time."}]


def first(inner: tokenizers.Tokenizer, *, ends: bool = False) -> None:
    """Put bos before every text, and eos after it if wanted, as published tokenizers do."""
    after = [EOS] if ends else []
    inner.post_processor = tokenizers.processors.Sequence(
        [
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(
                single=[BOS, "$A", *after],
                pair=[BOS, "$A", *after, BOS, "$B:1"],
                special_tokens=[(BOS, inner.token_to_id(BOS)), (EOS, inner.token_to_id(EOS))],
            ),
        ]
    )


def plain(inner: tokenizers.Tokenizer) -> None:
    inner.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)


def padded(inner: tokenizers.Tokenizer) -> None:
    first(inner)
    inner.enable_padding(pad_token=PAD, pad_id=inner.token_to_id(PAD))
    inner.enable_truncation(7)


FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
NAMED = FAST | {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "model_max_length": 77}
OBJECTS = FAST | {"bos_token": {"content": BOS, "__type": "AddedToken"}, "eos_token": EOS}
ORIGINS: dict[str, tuple[Callable[[Any], None], dict[str, Any], dict[str, Any]]] = {
    "without bos": (plain, FAST | {"bos_token": None, "eos_token": END, "pad_token": EOS}, {}),
    "bos that nothing adds": (plain, NAMED | {"add_bos_token": False}, {}),
    "bos first": (first, NAMED, {"eos_token_id": [0, 1], "temperature": 0.6, "do_sample": True}),
    "bos first, eos last": (lambda inner: first(inner, ends=True), OBJECTS, {}),
    "padding in the file": (padded, FAST | {"bos_token": BOS, "eos_token": EOS}, {}),
    "a class of its own": (first, NAMED | {"tokenizer_class": "GPT2TokenizerFast"}, {}),
    "names elsewhere": (first, FAST, {"pad_token_id": 3}),
}


def written(name: str, folder: Path) -> Path:
    """Write a folder as published ones are."""
    setting, config, generation = ORIGINS[name]
    export_hugging_face(built(SPEC, 400), SPEC, None, folder)
    inner = tokenizers.Tokenizer.from_str(bpe().to_json())
    special = [tokenizers.AddedToken(token, special=True, normalized=False) for token in (PAD, BEGIN, END)]
    inner.add_special_tokens([tokenizers.AddedToken(BOS, special=True, normalized=False), *special])
    setting(inner)
    inner.save(str(folder / "tokenizer.json"))
    ids = {"bos_token_id": inner.token_to_id(BOS), "eos_token_id": 0}
    fields = json.loads((folder / "config.json").read_text()) | ids
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    (folder / "generation_config.json").unlink()
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if name == "names elsewhere":
        told = {"bos_token": {"content": BOS}, "eos_token": EOS, "pad_token": PAD}
        (folder / "special_tokens_map.json").write_text(json.dumps(told))
    return folder


def staged(source: Path, eos: str, at: Path) -> tuple[Path, Path]:
    """Run the stages of tokenizer and weights; return their folders."""
    site = Site(lake=at, threads=1)
    for name in ("tokenizer", "model"):
        (at / name).mkdir(parents=True)
    file = source / "tokenizer.json"
    pin_file(file, MemoryCache()).write(at / "tokenizer_pin")
    pin_model(source, MemoryCache()).write(at / "model_pin")
    spoken = TokenizerFile(path=str(file), eos_token=eos)
    tokenizer_stage.run(spoken, {"tokenizer_file": at / "tokenizer_pin"}, at / "tokenizer", site)
    inputs = {"source": at / "model_pin", "tokenizer": at / "tokenizer"}
    import_stage.run(imported_model(source), inputs, at / "model", site)
    return at / "model", at / "tokenizer"


def trained_on(model: Path, at: Path) -> Path:
    """Return a stage as training from an import leaves it."""
    shutil.copytree(model, at)
    facts = json.loads((model / "model.json").read_text())
    kept = kept_facts(facts, [])
    whole = {name: value for name, value in facts.items() if name not in ("imported", "origin")} | kept
    (at / "model.json").write_text(json.dumps(whole | {"step": 3, "n_tokens_seen": 768}))
    return at


def assert_same_tokenizer(found: Path, wanted: Path) -> None:
    one, other = (transformers.AutoTokenizer.from_pretrained(path) for path in (found, wanted))
    assert one.special_tokens_map == other.special_tokens_map
    assert (one.model_max_length, one.pad_token_id) == (other.model_max_length, other.pad_token_id)
    for text in TEXTS:
        for added in (True, False):
            assert one(text, add_special_tokens=added) == other(text, add_special_tokens=added), text
        assert one(text, "and more") == other(text, "and more")
        assert one.decode(one(text)["input_ids"]) == other.decode(other(text)["input_ids"])
    if one.pad_token is not None:
        assert one(TEXTS, padding=True) == other(TEXTS, padding=True)
    for told in ({}, {"add_generation_prompt": True}):
        assert one.apply_chat_template(TALK, **told) == other.apply_chat_template(TALK, **told)


@pytest.mark.parametrize("name", ORIGINS)
def test_every_text_is_the_tokens_of_the_original(name: str, tmp_path: Path) -> None:
    source = written(name, tmp_path / "original")
    eos = str(ORIGINS[name][1].get("eos_token", EOS))
    model, tokenizer = staged(source, eos, tmp_path / "stages")
    for checkpoint in (model, trained_on(model, tmp_path / "trained")):
        to = tmp_path / f"{checkpoint.name} exported"
        export_stage(checkpoint, tokenizer, to)
        assert_same_tokenizer(to, source)
        told = import_model(to).facts
        assert told["chat_template"] == TEMPLATE
        assert {key: told["origin"][key] for key in ("names", "around")} == {
            key: import_model(source).facts["origin"][key] for key in ("names", "around")
        }
    ids = json.loads((to / "generation_config.json").read_text())
    ends = {"without bos": [303, 0], "bos first": [0, 303, 1]}  # 303 is <|im_end|>, which the template writes
    assert ids["eos_token_id"] == ends.get(name, [0, 303])


def test_generation_ends_where_the_origin_or_the_template_says(tmp_path: Path) -> None:
    source = written("bos first", tmp_path / "original")
    known = import_model(source)
    assert known.tokenizer is not None
    end = known.tokenizer.token_id(END)
    to = tmp_path / "exported"
    export_hugging_face(known.build(), known.spec, known.tokenizer, to, facts=known.facts)
    told = json.loads((to / "generation_config.json").read_text())
    assert told["eos_token_id"] == [0, end, 1]
    assert (told["temperature"], told["do_sample"]) == (0.6, True)  # the rest as it was
    assert transformers.GenerationConfig.from_pretrained(to).eos_token_id == [0, end, 1]
    facts = {**known.facts, "chat_template": None}
    export_hugging_face(known.build(), known.spec, known.tokenizer, tmp_path / "without", facts=facts)
    assert json.loads((tmp_path / "without" / "generation_config.json").read_text())["eos_token_id"] == [0, 1]


def test_a_model_trained_here_ends_its_turn(tmp_path: Path) -> None:
    """The names that its template was given in training go with it."""
    tokenizer = bpe()
    template = (
        "{% for m in messages %}{{ m['content'] + (sep_token if m['role'] == 'user' else '<|turn|>') }}"
    )
    facts = {"chat_template": template + "{% endfor %}", "chat_names": {"sep_token": EOS}}
    export_hugging_face(built(SPEC), SPEC, tokenizer, tmp_path / "model", facts=facts)
    ids = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert ids == {"bos_token_id": 0, "eos_token_id": [0, 1], "pad_token_id": None}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs.apply_chat_template(TALK, tokenize=False) == f"Once?{EOS}Upon a time.<|turn|>"
    assert theirs("a")["input_ids"][0] == theirs.bos_token_id == 0


def test_a_template_that_writes_a_bos_of_its_own(tmp_path: Path) -> None:
    """Texts begin as in training, with the end-of-text token; conversations with the template's own."""
    tokenizer = bpe()
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    facts = {"chat_template": template, "chat_names": {"bos_token": "<|turn|>"}}
    export_hugging_face(built(SPEC), SPEC, tokenizer, tmp_path / "model", facts=facts)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs.apply_chat_template(TALK, tokenize=False) == "<|turn|>Once?Upon a time."
    assert theirs("a")["input_ids"][0] == 0
    assert import_model(tmp_path / "model").prefix_id == 0
    export_gguf(built(SPEC), SPEC, tokenizer, tmp_path / "model.gguf", facts=facts)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["tokenizer.ggml.bos_token_id"] == 1
    assert fields["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize("name", ["without bos", "bos that nothing adds", "bos first", "bos first, eos last"])
def test_gguf_puts_around_a_text_what_the_original_does(name: str, tmp_path: Path) -> None:
    source = written(name, tmp_path / "original")
    known = import_model(source)
    model, tokenizer = staged(source, str(ORIGINS[name][1]["eos_token"]), tmp_path / "stages")
    export_stage(model, tokenizer, tmp_path / "model.gguf", format="gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    theirs = transformers.AutoTokenizer.from_pretrained(source)
    ids = theirs("a")["input_ids"]
    assert fields["tokenizer.ggml.add_bos_token"] == (ids[0] == theirs.bos_token_id)
    assert fields.get("tokenizer.ggml.add_eos_token", False) == (ids[-1] == theirs.eos_token_id)
    for kind, theirs_id in (("eos", theirs.eos_token_id), ("padding", theirs.pad_token_id)):
        assert fields.get(f"tokenizer.ggml.{kind}_token_id") == theirs_id
    if theirs.bos_token_id is not None:
        assert fields["tokenizer.ggml.bos_token_id"] == theirs.bos_token_id
    assert known.tokenizer is not None
    assert fields["tokenizer.ggml.eot_token_id"] == known.tokenizer.token_id(END)
    back = import_model(tmp_path / "model.gguf")
    assert back.prefix_id == known.prefix_id
    if name == "bos first, eos last":
        return  # a second hand on the way: a folder made of a GGUF file says nothing of what ends texts
    export_hugging_face(back.build(), back.spec, back.tokenizer, tmp_path / "again", facts=back.facts)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in TEXTS:
        assert again(text)["input_ids"] == theirs(text)["input_ids"]
    assert (again.eos_token, again.pad_token) == (theirs.eos_token, theirs.pad_token)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_a_model_trained_here_through_gguf(tied: bool, tmp_path: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    spec = Llama(n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, max_seq_len=32, tied=tied)
    tokenizer = bpe()
    module = spec.build(tokenizer.vocab_size, seed=3)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    text = "Once upon a time there was an otter who lived by the sea and liked to swim. " * 4
    tokens = torch.tensor([tokenizer.encode(text)[:32]])
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(module(tokens)[0, :-1], tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 2
    path = tmp_path / "model.gguf"
    export_gguf(module.eval(), spec, tokenizer, path)
    config = transformers.LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    theirs = transformers.LlamaForCausalLM(config)  # as from_pretrained does, which wants another package
    state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=theirs)["tensors"]
    lost = theirs.load_state_dict(state, strict=False)
    assert (lost.missing_keys, lost.unexpected_keys) == (["lm_head.weight"] if tied else [], [])
    theirs.tie_weights()
    with torch.no_grad():
        found, wanted = theirs.float().eval()(tokens).logits, module(tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
