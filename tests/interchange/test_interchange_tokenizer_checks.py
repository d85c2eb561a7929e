"""Special tokens, their ids and templates beside a tokenizer: what no library could use is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer

from modelfactory.errors import SourceError
from modelfactory.interchange import export_hugging_face, import_model
from modelfactory.interchange.importing import tokenizer_of

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = {"content": "<|endoftext|>", "lstrip": False, "special": True, "__type": "AddedToken"}


def change(folder: Path, file: str, **fields: Any) -> None:
    path = folder / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | fields))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("kind", ["bos_token", "eos_token", "pad_token", "unk_token", "mask_token"])
@pytest.mark.parametrize("value", [-1, 3, True, 1.5, [], ["<s>"], {}, {"text": "<s>"}, {"content": 3},
                                   {"content": "<s>", "lstrip": "no"}])  # fmt: skip
def test_a_special_token_that_is_no_text(folder: Path, file: str, kind: str, value: Any) -> None:
    change(folder, file, **{kind: value})
    with pytest.raises(SourceError) as caught:
        tokenizer_of(folder)
    wanted = f"{file}: {kind}: found {json.dumps(value)}, wanted the text of a token"
    assert wanted in str(caught.value)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", ["x", -2, True, 1.5, 999_999, [], [0, "a"], [0, 999_999], {}])
def test_an_id_that_is_no_token(folder: Path, file: str, name: str, value: Any) -> None:
    change(folder, file, **{name: value})
    for read in (import_model, tokenizer_of):
        with pytest.raises(SourceError) as caught:
            read(folder)
        assert f"{file}: {name}: found {json.dumps(value)}, wanted an id from 0 to " in str(caught.value)


def test_the_first_id_beyond_the_vocabulary_is_refused_and_the_last_within_is_not(folder: Path) -> None:
    n_tokens = json.loads((folder / "config.json").read_text())["vocab_size"]
    change(folder, "generation_config.json", eos_token_id=[0, n_tokens - 1])
    import_model(folder)
    change(folder, "generation_config.json", eos_token_id=[0, n_tokens])
    with pytest.raises(SourceError, match=rf"found \[0, {n_tokens}\], wanted an id from 0 to {n_tokens - 1}"):
        import_model(folder)


def test_ids_of_a_class_of_transformers_are_taken_where_there_is_no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    change(folder, "generation_config.json", bos_token_id=50256, eos_token_id=50256)
    assert import_model(folder).tokenizer is None


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("tokenizer_config.json", {"eos_token": TOKEN, "pad_token": None}),
        ("special_tokens_map.json", {"eos_token": TOKEN, "additional_special_tokens": [TOKEN]}),
        ("config.json", {"pad_token_id": -1, "bos_token_id": None}),
        ("generation_config.json", {"eos_token_id": [0, 1], "pad_token_id": 0}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}),
        ("tokenizer_config.json", {"chat_template": None, "add_bos_token": None}),
    ],
)  # fmt: skip
def test_what_published_folders_hold_is_taken(folder: Path, file: str, fields: dict[str, Any]) -> None:
    change(folder, file, **fields)
    assert import_model(folder).tokenizer is not None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (3, "chat_template: found 3, wanted a Jinja template"),
        ({"name": "default"}, 'chat_template: found {"name": "default"}, wanted'),
        ("a\n{% if x %}", "chat_template: found a template that is no Jinja"),
        ("a\n{% endif %}", "line 2"),
        ([{"name": "default"}], "chat_template[0]: found"),
        ([{"name": "a", "template": "ok"}, {"name": "b", "template": "{{"}], "chat_template[1]: found"),
        ([3], "chat_template[0]: found 3"),
    ],
)
def test_a_template_that_is_none(folder: Path, template: Any, words: str) -> None:
    change(folder, "tokenizer_config.json", chat_template=template)
    for read in (import_model, tokenizer_of):
        with pytest.raises(SourceError) as caught:
            read(folder)
        assert words in str(caught.value)


@pytest.mark.parametrize("template", ["{% for a in b %}" * 30 + "{% endfor %}" * 30, "{{ " + "(" * 5000])
def test_a_template_that_is_nested_too_deep(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    for read in (import_model, tokenizer_of):
        with pytest.raises(SourceError, match=r"chat_template.jinja: found a template that is no Jinja"):
            read(folder)


def test_the_file_of_its_own_is_the_template_whatever_the_configuration_holds(folder: Path) -> None:
    change(folder, "tokenizer_config.json", chat_template="{% if")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert import_model(folder).facts["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("file", "text"),
    [("generation_config.json", '{"temperature": NaN}'), ("tokenizer_config.json", '{"note": "\\ud800"}')],
)
def test_what_json_cannot_hold(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(SourceError, match=f"{file}: found a value that is no JSON"):
        import_model(folder)


@pytest.mark.parametrize(
    ("file", "name", "values"),
    [
        ("tokenizer_config.json", "tokenizer_class", [3, []]),
        ("tokenizer_config.json", "added_tokens_decoder", [3, [], {"a": TOKEN}, {"1": "<s>"}]),
        ("tokenizer_config.json", "extra_special_tokens", ["x", 3, {"a": 3}]),
        ("tokenizer_config.json", "padding_side", ["up", 3]),
        ("tokenizer_config.json", "truncation_side", ["up"]),
        ("tokenizer_config.json", "split_special_tokens", [3]),
        ("tokenizer_config.json", "model_max_length", ["nope", -1, 0, 1.5, True]),
        ("tokenizer_config.json", "unk_token", [""]),
        ("tokenizer_config.json", "chat_template", [[]]),
        ("added_tokens.json", "<x>", ["a", -1, None, True]),
        ("generation_config.json", "temperature", ["hot", -1, True]),
        ("generation_config.json", "top_k", [1.5, "a", -1]),
        ("generation_config.json", "do_sample", [1]),
    ],
)
def test_a_setting_that_no_library_could_use(folder: Path, file: str, name: str, values: list[Any]) -> None:
    for value in values:
        before = (folder / file).read_bytes() if (folder / file).exists() else b"{}"
        change(folder, file, **{name: value})
        with pytest.raises(SourceError) as caught:
            import_model(folder)
        assert f"{file}: {name}: found {json.dumps(value)}, wanted" in str(caught.value)
        (folder / file).write_bytes(before)


def test_an_object_without_its_type_is_exported_so_that_transformers_reads_it(
    folder: Path, tmp_path: Path
) -> None:
    change(folder, "tokenizer_config.json", eos_token={"content": "<|endoftext|>"}, model_max_length=1e30)
    imported = import_model(folder)
    module = imported.spec.build(imported.vocab_size, 0)
    export_hugging_face(module, imported.spec, imported.tokenizer, tmp_path / "out", facts=imported.facts)
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (read.eos_token, read.eos_token_id) == ("<|endoftext|>", 0)


def test_a_template_file_that_is_no_jinja(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}\nsays {{ m.content }\n{% endfor %}")
    with pytest.raises(SourceError, match=r"chat_template.jinja: found a template that is no Jinja .*line 2"):
        import_model(folder)


@pytest.mark.parametrize("value", ["null", "3", "[]", '"x"', "[1]"])
def test_a_file_that_holds_no_object(folder: Path, value: str) -> None:
    (folder / "generation_config.json").write_text(value)
    with pytest.raises(SourceError) as caught:
        import_model(folder)
    text = str(caught.value)
    assert f"generation_config.json: found {value}, which is no object" in text
    assert "Copy the file again" in text


@pytest.mark.parametrize(("name", "value"), [("hidden_size", "x"), ("rms_norm_eps", []), ("mlp_bias", 3)])
def test_the_remedy_for_a_damaged_field_is_no_architecture_of_ones_own(
    folder: Path, name: str, value: Any
) -> None:
    change(folder, "config.json", **{name: value})
    with pytest.raises(SourceError) as caught:
        import_model(folder)
    assert "Correct the field, or copy the file again: it is damaged." in str(caught.value)
