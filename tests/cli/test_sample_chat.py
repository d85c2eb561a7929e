"""`factory sample --chat`: a model that learnt one answer gives it, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from modelfactory.cli import main
from modelfactory.errors import InvalidInput
from modelfactory.generate import LanguageModel, Sampling, load_chat
from modelfactory.interchange import export_hugging_face
from modelfactory.models import Llama
from modelfactory.store import Store
from tests.models.own_parts import Faulty
from tests.tokens.chats import BEGIN, END, EOS, UNMARKED, encoder, text, tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MODEL = Llama(n_layers=1, d_model=64, n_heads=2, max_seq_len=96)
ASKED, SAID, SYSTEM = "Sum 2 and 3?", "It is 5.", "Be kind."
SPELLED = f"Hello {END}"
ANSWERS = {(None, ASKED): SAID, (SYSTEM, ASKED): "Sure.", (None, SPELLED): "Hi!"}


def chat_of(system: str | None, asked: str, said: str) -> list[tuple[str, str]]:
    before = [] if system is None else [("system", system)]
    return [*before, ("user", asked), ("assistant", said)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model that has learnt the answers, and one that has no template."""
    root = tmp_path_factory.mktemp("chat")
    of = encoder(UNMARKED)
    chats = [text(chat_of(*known, said)) for known, said in ANSWERS.items()]
    rows = [ids.tolist() for ids, _ in of.encode(chats, [str(n) for n in range(len(chats))])]
    module = MODEL.build(tokenizer().vocab_size, seed=1)
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        for row in rows:
            line = torch.tensor([row])
            torch.nn.functional.cross_entropy(module(line[:, :-1])[0], line[0, 1:]).backward()
        optimizer.step()
    facts = {"chat_template": UNMARKED}
    export_hugging_face(module.eval(), MODEL, tokenizer(), root / "chat", facts=facts)
    export_hugging_face(module.eval(), MODEL, tokenizer(), root / "texts")
    return root


@pytest.fixture(scope="module")
def workspace(folder: Path) -> str:
    place = str(folder / "workspace")
    for name in ("chat", "texts"):
        assert main(["import", str(folder / name), "--name", name, "--workspace", place, "--json"]) == 0
    return place


def sample(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["sample", *words, "--temperature", "0", "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("known", ANSWERS)
def test_the_answer_alone(
    known: tuple[str | None, str], workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a message spells out a special token: it is characters there, as in training."""
    system, asked = known
    more = [] if system is None else ["--system", system]
    told = sample(capsys, "chat", asked, "--chat", *more, "--workspace", workspace)
    assert told["text"] == ANSWERS[known]
    assert (told["prompt"], told["system"]) == (asked, system)


def test_what_is_printed(workspace: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["sample", "chat", ASKED, "--chat", "--temperature", "0", "--workspace", workspace]) == 0
    assert capsys.readouterr().out == f"{SAID}\n"


def test_names_of_special_tokens_in_a_plain_prompt_are_text(
    workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template written out by hand is no chat: the model does not see its tokens."""
    prompt = f"{BEGIN}user\n{ASKED}{END}\n{BEGIN}assistant\n"
    told = sample(capsys, "chat", prompt, "--workspace", workspace)
    assert not told["text"].startswith(SAID)
    assert "plain text" in _help(capsys)


def _help(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["sample", "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["texts", ASKED, "--chat"], "without a chat template"),
        (["chat", ASKED, "--system", SYSTEM], "--chat with it"),
        (["chat", "  ", "--chat"], "wanted what the user says"),
        (["chat", "long " * 60, "--chat"], "fewer than the 96 of the model's context"),
    ],
)
def test_refused(words: list[str], told: str, workspace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in sample(capsys, *words, "--workspace", workspace, code=2)["error"]


def test_the_same_from_python(folder: Path, workspace: str) -> None:
    """Prompts are those of transformers, and the answer that of its own generation."""
    with Store.open(folder / "workspace") as store:
        (named,) = (known for known in store.experiments() if known.name == "chat")
        checkpoint, spoken = (store.stage_dir(named.stages[role]) for role in ("import", "tokenizer"))
    from modelfactory.generate import load_language_model

    chat = load_chat(checkpoint, spoken)
    messages = [{"role": "user", "content": ASKED}]
    ids = chat.prompt(messages)
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "chat")
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == wanted
    assert chat.end_of_turn == theirs.convert_tokens_to_ids(END) != theirs.convert_tokens_to_ids(EOS)
    model: LanguageModel = load_language_model(checkpoint, spoken)
    sampling = chat.until_end_of_turn(Sampling(max_new_tokens=40))
    (answer,) = model.generate_from([ids], sampling, prefixed=False)
    assert (answer.text, answer.finish) == (SAID, "eos")
    other = transformers.AutoModelForCausalLM.from_pretrained(folder / "chat")
    line = torch.tensor([ids])
    written = other.generate(line, attention_mask=torch.ones_like(line), max_new_tokens=40, do_sample=False)
    assert written[0, len(ids) :].tolist() == [*answer.ids, chat.end_of_turn]
    with pytest.raises(InvalidInput, match="no message"):
        chat.prompt([])
    with pytest.raises(InvalidInput, match="'assistant' at the end"):
        chat.prompt([*messages, {"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(("option", "value"), [("--min-p", "0.1"), ("--repetition-penalty", "0")])
def test_settings_without_effect_are_refused(
    option: str, value: str, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sample", "chat", ASKED, "--temperature", "0", option, value, "--workspace", workspace]
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"Sampling.{option[2:].replace('-', '_')}: found {float(value)}")


@pytest.mark.parametrize("more", [(), ("--chat",)])
def test_a_layer_that_raises_is_told_on_a_line_of_its_own(
    more: tuple[str, ...], workspace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: Any, **__: Any) -> Any:
        block = MODEL.blocks[0]
        layer = replace(block, mixer=Faulty(module="evaluation"))
        module = replace(MODEL, blocks=(layer,)).build(tokenizer().vocab_size, seed=1)
        return LanguageModel(module, tokenizer(), max_seq_len=96)

    monkeypatch.setattr("modelfactory.generate.load_language_model", raising)
    capsys.readouterr()
    assert main(["sample", "chat", ASKED, *more, "--workspace", workspace]) == 2
    told = capsys.readouterr()
    assert told.out == ("\n" if more else f"{ASKED}\n")
    assert told.err.startswith(
        "model.blocks.0.mixer, FaultyModule.forward: found ValueError: no luck (own_parts"
    )
    assert "Traceback" not in told.err
