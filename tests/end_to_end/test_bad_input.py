"""Bad input: place, found, wanted, remedy; exit code 2; nothing is left behind."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.factory import Line

EDITS = {
    "unknown field": (
        ("seed=seed,", "seed=seed, batch_token=3,"),
        ("Training", "'batch_token'", "Did you mean 'batch_tokens'?"),
    ),
    "lr=-1": (("AdamW(lr=lr,", "AdamW(lr=-1,"), ("AdamW.lr", "-1.0", "above 0")),
    "batch not divisible": (
        ("batch_tokens=128", "batch_tokens=100"),
        ("training.batch_tokens", "100, which is not divisible by model.max_seq_len 32", "Use 96 or 128."),
    ),
    "pattern matches nothing": (('pattern="**/*.py"', 'pattern="**/*.rs"'), ("corpus", "**/*.rs")),
    "no such root": (('root="corpus"', 'root="korpus"'), ("korpus", "found nothing", "wanted a folder")),
    "a type": (("n_layers=1", 'n_layers="one"'), ("n_layers", "'one'", "a whole number")),
    "two experiments of one name": (
        ('name=f"{name}/seed={seed}"', 'name="the one"'),
        ("experiment 'the one'", "4 experiments of this name", "Put what differs into the name"),
    ),
    "a tuple that is a list": (
        ("evaluations=EVALUATIONS", "evaluations=list(EVALUATIONS)"),
        ("Experiment.evaluations", "Use a tuple"),
    ),
    "syntax": (("def experiments()", "def experiments("), ("tiny_study.py:", "SyntaxError")),
    "a function that workers cannot import": (
        ("function=is_wanted", "function=lambda text: True"),
        ("lambda", "importable by name"),
    ),
}


@pytest.mark.parametrize("fault", EDITS)
def test_refused_with_place_found_wanted_and_remedy(fresh: Line, fault: str) -> None:
    (old, new), told = EDITS[fault]
    fresh.edit(fresh.study, old, new)
    for verb in ("check", "run"):
        answer = fresh.call(verb, fresh.study)
        assert answer.code == 2, answer
        assert answer.out == ""
        assert "found" in answer.err
        assert "wanted" in answer.err
        assert [words for words in told if words not in answer.err] == [], answer.err
        assert not fresh.workspace.exists() or verb == "run"
    assert not list(fresh.workspace.glob("stages/*"))


def test_every_fault_of_a_file_at_once(fresh: Line) -> None:
    fresh.edit(fresh.study, "AdamW(lr=lr,", "AdamW(lr=-1,")
    fresh.edit(fresh.study, "n_checkpoints=2", "n_checkpoints=0, sead=1")
    fresh.edit(fresh.study, "vocab_size=320", "vocab_size=3")
    fresh.edit(fresh.study, "batch_tokens=128", "batch_tokens=100")
    answer = fresh.call("check", fresh.study, "--json")
    assert answer.code == 2
    faults = answer.json["faults"]
    assert all(set(fault) == {"place", "found", "wanted", "remedy"} for fault in faults)
    places = " ".join(fault["place"] for fault in faults)
    for place in (
        "AdamW.lr",
        "Training.n_checkpoints",
        "BPE.vocab_size",
        "training.batch_tokens",
        "Training",
    ):
        assert place in places
    assert "'sead'" in " ".join(fault["found"] for fault in faults)
    assert f"{len(faults)} faults:" in answer.err


def test_held_out_empty(fresh: Line) -> None:
    """Known at plan time: the split goes by the hash of each file."""
    fresh.edit(fresh.study, "held_out_share=0.25", "held_out_share=0.000001")
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    for words in (
        "python",
        "none of 40 documents in the part 'held_out'",
        "wanted at least one",
        "Raise held_out_share",
    ):
        assert words in answer.err


def test_an_empty_file_is_dropped_and_counted(fresh: Line) -> None:
    (fresh.corpus / "empty.py").write_bytes(b"")
    assert fresh.call("check", fresh.study).code == 0


def test_only_empty_files(fresh: Line) -> None:
    for path in fresh.corpus.iterdir():
        path.write_bytes(b"")
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    assert "no document left of 40 (dropped: 40 empty)" in answer.err


def test_not_utf8_when_that_is_refused(fresh: Line) -> None:
    (fresh.corpus / "latin.py").write_bytes(b"name = 'caf\xe9'\n" * 200)
    assert fresh.call("check", fresh.study).code == 0  # the policy says drop
    fresh.edit(fresh.study, 'not_utf8="drop"', 'not_utf8="refuse"')
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    assert "latin.py" in answer.err
    assert "UTF-8" in answer.err


def test_200_megabytes_on_one_line(fresh: Line) -> None:
    """A sparse file: 200 MB of NUL bytes and no newline. Seen before any work, by its size."""
    with (fresh.corpus / "dump.py").open("wb") as stream:
        stream.truncate(200_000_000)
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    for words in ("dump.py", "a document of 200,000,000 bytes", "at most 100,000,000", "max_document_bytes"):
        assert words in answer.err


def test_200_megabytes_on_one_line_of_json(fresh: Line) -> None:
    """Known only when it is read: the stage refuses it, and the exit code says that the input is bad."""
    lines = [json.dumps({"text": f"value = {n}\n" * 50}) for n in range(40)]
    (fresh.corpus / "good.jsonl").write_text("\n".join(lines))
    with (fresh.corpus / "long.jsonl").open("w") as stream:
        stream.write(json.dumps({"text": "x" * 200_000_000}))
    source = fresh.study.read_text()
    plain = 'Files(root="corpus", pattern="**/*.py"'
    assert plain in source
    lined = 'Jsonl(root="corpus", pattern="*.jsonl", text_field="text"'
    fresh.study.write_text(source.replace(plain, lined).replace("Dataset, Files", "Dataset, Jsonl"))
    answer = fresh.run()
    assert answer.code == 2
    assert "long.jsonl, line 1: found a document of more than 100,000,000 bytes" in answer.err
    assert "Traceback" not in answer.err


def test_a_file_that_is_gone_or_no_file(fresh: Line) -> None:
    (fresh.corpus / "dangling.py").symlink_to("nowhere.py")
    os.mkfifo(fresh.corpus / "pipe.py")
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    assert "dangling.py" in answer.err
    assert "pipe.py" in answer.err
    assert "exclude" in answer.err


def test_a_file_that_cannot_be_read(fresh: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected: root may read what nobody may."""
    secret = next(path for path in sorted(fresh.corpus.iterdir()))
    real = os.open

    def refuse(path, *rest, **named):
        if str(path).endswith(f"/{secret.name}"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **named)

    real_open = open

    def refuse_open(path, *rest, **named):
        if str(path).endswith(f"/{secret.name}"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *rest, **named)

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("io.open", refuse_open)
    monkeypatch.setattr("builtins.open", refuse_open)
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2, answer.err
    assert secret.name in answer.err
    assert "Permission denied" in answer.err


def test_a_wrong_word_on_the_command_line(line: Line) -> None:
    for words in (
        ("show", "nothing"),
        ("diff", "low/seed=1", "high/seed=9"),
        ("sample", "low/seed=7", "x"),
        ("gc", "--forget", "none"),
    ):
        answer = line.call(*words)
        assert answer.code == 2, answer
        assert "found" in answer.err
    with pytest.raises(SystemExit) as left:
        line.call("run", line.study, "--jobs", "0")
    assert left.value.code == 2


def test_no_workspace_where_one_is_needed(fresh: Line) -> None:
    for words in (("status",), ("show", "x"), ("gc",), ("compare", fresh.study), ("report", fresh.study)):
        answer = fresh.call(*words)
        assert answer.code == 2
        assert "no workspace" in answer.err
    assert not fresh.workspace.exists()
