"""`factory import` and `factory export`, and what is done between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli import main
from modelfactory.data import MemoryCache, pin_file
from modelfactory.errors import SourceError
from modelfactory.generate import Sampling, load_language_model
from modelfactory.interchange import ImportedModel, export_hugging_face, import_model
from modelfactory.interchange.stage import run
from modelfactory.interchange.starting import pin_model
from modelfactory.stage import Site
from modelfactory.store import Store
from modelfactory.tokens import TokenizerFile, tokenizer_stage
from modelfactory.train import load_model
from tests.interchange.material import FILES, SPECS, assert_equal_states, bpe, built
from tests.limits import files_of_at_most

if TYPE_CHECKING:
    from pathlib import Path

STORIES = ["import", str(FILES / "stories260K.bin"), "--tokenizer", str(FILES / "tok512.bin")]


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    return str(tmp_path / "workspace")


def factory(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_an_imported_model_is_sampled_exported_and_imported_again(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--workspace", workspace)
    made = factory(capsys, *STORIES, "--name", "stories", *at)
    assert made["n_parameters"] == 260_032
    assert not made["was_there"]
    told = factory(capsys, "sample", "stories", "", "--temperature", "0", "--max-new-tokens", "200", *at)
    assert told["text"].encode() == (FILES / "stories260K.greedy200.txt").read_bytes()
    to = tmp_path / "out"
    written = factory(capsys, "export", "stories", "--to", str(to), "--licence", "mit", *at)
    assert written["architecture"] == "LlamaForCausalLM"
    assert "license: mit" in (to / "README.md").read_text()
    assert made["stages"]["import"] in (to / "README.md").read_text()
    assert_equal_states(import_model(to).state, import_model(FILES / "stories260K.bin").state)
    factory(capsys, "import", str(to), "--name", "again", *at)
    same = factory(capsys, "sample", "again", "", "--temperature", "0", "--max-new-tokens", "200", *at)
    assert same["text"] == told["text"]


def test_equal_files_are_one_stage(workspace: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--workspace", workspace)
    first = factory(capsys, *STORIES, "--name", "one", *at)
    second = factory(capsys, *STORIES, "--name", "two", *at)
    assert second["was_there"]
    assert first["stages"] == second["stages"]


def test_what_is_imported_is_kept_and_forgotten(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--workspace", workspace)
    made = factory(capsys, *STORIES, "--name", "stories", *at)
    factory(capsys, "gc", *at)
    with Store.open(tmp_path / "workspace") as store:
        assert set(store.states(made["stages"].values())) == set(made["stages"].values())
        assert not any(store.verify(stage, deep=True) for stage in made["stages"].values())
        assert store.record(made["stages"]["import"]).kind == "import"  # type: ignore[union-attr]
        assert not store.running()
    assert factory(capsys, "show", "stories", *at)["stages"]["import"]["state"] == "stored"
    factory(capsys, "gc", "--forget", "stories", *at)
    with Store.open(tmp_path / "workspace") as store:
        assert not store.states(made["stages"].values())


def test_an_import_that_fails_leaves_no_name(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model", max_shard_bytes=100_000)
    min((tmp_path / "model").glob("*.safetensors")).unlink()
    words = ("import", str(tmp_path / "model"), "--name", "x", "--workspace", workspace)
    told = factory(capsys, *words, code=2)
    assert "model-00001-of" in told["error"]
    with Store.open(tmp_path / "workspace") as store:
        assert not store.experiments()
        assert not store.running()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["import", str(FILES / "stories260K.bin"), "--name", "x"], "--tokenizer FILE"),
        (["import", str(FILES / "README.md"), "--name", "x"], "Hugging Face"),
        ([*STORIES, "--name", "x", "--eos-token", "</end>"], "eos_token"),
        ([*STORIES, "--name", " "], "--name: found ' '"),
    ],
)
def test_refused(words: list[str], told: str, workspace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in factory(capsys, *words, "--workspace", workspace, code=2)["error"]


def test_a_folder_of_links_is_pinned_by_their_names(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "blobs")
    (tmp_path / "model").mkdir()
    for n, file in enumerate(sorted((tmp_path / "blobs").iterdir())):
        blob = file.rename(tmp_path / "blobs" / f"hash{n}")
        (tmp_path / "model" / file.name).symlink_to(blob)
    made = factory(capsys, "import", str(tmp_path / "model"), "--name", "x", "--workspace", workspace)
    assert made["imported"]["architecture"] == "LlamaForCausalLM"


@pytest.mark.parametrize("licence", ["mit\nmodel: other", " "])
def test_a_licence_is_one_line(
    licence: str, tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    factory(capsys, *STORIES, "--name", "stories", "--workspace", workspace)
    words = ("export", "stories", "--to", str(tmp_path / "out"), "--licence", licence)
    assert "--licence" in factory(capsys, *words, "--workspace", workspace, code=2)["error"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_of_an_import(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(tmp_path / "workspace", create=True):
        pass
    with files_of_at_most(700_000):  # fewer than the weights have
        told = factory(capsys, *STORIES, "--name", "x", "--workspace", workspace, code=2)
    assert "ulimit -f" in told["error"]
    assert list((tmp_path / "workspace" / "aside").iterdir()) == []


def test_an_export_of_nothing(workspace: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    factory(capsys, *STORIES, "--name", "stories", "--workspace", workspace)
    words = ("--to", str(tmp_path / "out"), "--workspace", workspace)
    assert "stories" in factory(capsys, "export", "storys", *words, code=2)["error"]
    mixed = ("export", "stories", "--format", "gguf", "--max-shard-mb", "1")
    assert "--max-shard-mb" in factory(capsys, *mixed, *words, code=2)["error"]


def test_the_template_of_chats_goes_through(
    tmp_path: Path, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, spec = SPECS["llama"]
    facts = {"chat_template": "{{ messages[0] }}"}
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model", facts=facts)
    at = ("--workspace", workspace)
    factory(capsys, "import", str(tmp_path / "model"), "--name", "chat", *at)
    factory(capsys, "export", "chat", "--to", str(tmp_path / "out"), *at)
    factory(capsys, "export", "chat", "--to", str(tmp_path / "out.gguf"), "--format", "gguf", *at)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages[0] }}"
    assert import_model(tmp_path / "out.gguf").facts["chat_template"] == "{{ messages[0] }}"


def staged(folder: Path, tmp_path: Path, bos_token: str | None) -> tuple[Path, Path]:
    """Run the stages of tokenizer and weights without the factory; return their folders."""
    site = Site(lake=tmp_path, threads=1)
    pin_file(folder / "tokenizer.json", MemoryCache()).write(tmp_path / "tokenizer_pin")
    pin_model(folder, MemoryCache()).write(tmp_path / "model_pin")
    for name in ("tokenizer", "model"):
        (tmp_path / f"{name}_stage").mkdir()
    spoken = TokenizerFile(path=str(folder / "tokenizer.json"), eos_token="<|endoftext|>")
    tokenizer_stage.run(
        spoken, {"tokenizer_file": tmp_path / "tokenizer_pin"}, tmp_path / "tokenizer_stage", site
    )
    inputs = {"source": tmp_path / "model_pin", "tokenizer": tmp_path / "tokenizer_stage"}
    run(ImportedModel(path=str(folder), bos_token=bos_token), inputs, tmp_path / "model_stage", site)
    return tmp_path / "model_stage", tmp_path / "tokenizer_stage"


def test_the_stage_makes_what_training_makes(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    module = built(spec, 400)
    export_hugging_face(module, spec, bpe(), tmp_path / "model")
    made, tokenizer = staged(tmp_path / "model", tmp_path, "<|turn|>")
    assert_equal_states(load_model(made).state_dict(), module.state_dict())
    model = load_language_model(made, tokenizer)  # 400 rows, fewer tokens
    assert model.prefix_id == 1
    assert model.max_seq_len == spec.max_seq_len
    (beyond,) = model.generate(["Once"], Sampling(max_new_tokens=30, temperature=5.0))
    assert max(beyond.ids) >= model.tokenizer.vocab_size  # a row without a token says nothing
    assert beyond.text == model.tokenizer.decode([i for i in beyond.ids if i < model.tokenizer.vocab_size])


def test_a_file_that_changed_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model")
    take = tokenizer_stage.run

    def take_and_touch(*arguments: Any) -> None:
        take(*arguments)
        with (tmp_path / "model" / "model.safetensors").open("ab") as file:
            file.write(b"\0")

    monkeypatch.setattr(tokenizer_stage, "run", take_and_touch)
    with pytest.raises(SourceError, match="other content than when the import began"):
        staged(tmp_path / "model", tmp_path, None)


def test_a_file_that_came_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model")
    take = tokenizer_stage.run

    def take_and_add(*arguments: Any) -> None:
        take(*arguments)
        (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")

    monkeypatch.setattr(tokenizer_stage, "run", take_and_add)
    with pytest.raises(SourceError, match="a file that was not there when the import began"):
        staged(tmp_path / "model", tmp_path, None)
