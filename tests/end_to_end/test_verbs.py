"""Every verb, through the real command line where it is quick enough: what it prints and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli.arguments import make_parser
from modelfactory.store import Store
from tests.end_to_end.test_damage import without_measuring
from tests.end_to_end.test_promote import with_rule

if TYPE_CHECKING:
    from tests.end_to_end.factory import Line

STAGE = {"id", "kind", "label", "state", "reason"}
TOTALS = {"tokens_requested", "tokens_to_train", "flops_to_train", "seconds", "disk_bytes"}
FINDING = {
    "baseline",
    "variant",
    "metric",
    "difference",
    "interval",
    "p_value",
    "n_seeds",
    "verdict",
    "seeds_needed",
}
FILE = "FILE"
TASK = """from modelfactory.evaluate import NextLine
from tiny_study import HELD_OUT

LINES = NextLine(dataset=HELD_OUT, n_items=6, seed=0)
"""
STORIES = Path(__file__).parents[1] / "interchange" / "files"
VERBS: dict[str, tuple[tuple[str | Path, ...], set[str]]] = {
    "check": ((FILE,), {"file", "experiments", "variants", "comparisons", "stages"}),
    "plan": ((FILE,), {"stages", "models", "totals", "assumptions", "designs"}),
    "run": ((FILE,), {"ran", "stored", "failed", "blocked", "seconds", "stopped", "report"}),
    "eval": (
        ("low/seed=1", "--task", "asked.py:LINES"),
        {
            "checkpoint",
            "label",
            "evaluations",
            "ran",
            "stored",
            "failed",
            "blocked",
            "seconds",
            "stopped",
        },
    ),
    "compare": ((FILE,), {"comparisons", "missing", "stale", "stale_reasons"}),
    "report": ((FILE,), {"report"}),
    "promote": (
        (FILE, "--as", "best", "--variant", "low"),
        {"reasons", "findings", "contamination", "name", "promoted", "first", "checkpoint", "was", "runs"},
    ),
    "status": ((), {"running", "failed", "experiments"}),
    "show": (("low/seed=1",), {"experiment", "file", "spec", "stages", "meanings"}),
    "diff": (("low/seed=1", "high/seed=1"), {"changes"}),
    "sample": (("low/seed=1", "import ", "--max-new-tokens", "4"), {"prompt", "text", "checkpoint"}),
    "import": (
        (STORIES / "stories260K.bin", "--tokenizer", STORIES / "tok512.bin", "--name", "stories"),
        {"name", "stages", "was_there", "n_parameters", "vocab_size", "imported"},
    ),
    "export": (("low/seed=1", "--to", "exported"), {"checkpoint", "to", "architecture"}),
    "coord-check": (
        (FILE, "--widths", "16,32", "--steps", "1", "-o", "coords.html"),
        {"output", "models"},
    ),
    "gc": (("--dry-run",), {"dry_run", "garbage", "bytes"}),
    "doctor": ((), {"checks", "good"}),
}


@pytest.mark.parametrize("verb", VERBS)
def test_json_is_one_object_on_stdout(line: Line, verb: str) -> None:
    without_measuring(line)
    words, keys = VERBS[verb]
    if verb == "promote":
        with_rule(line)
    if verb == "eval":
        (line.folder / "asked.py").write_text(TASK)
    answer = line.ask(verb, *[line.study if word == FILE else word for word in words], "--json")
    assert answer.code == 0, answer.err
    assert set(answer.json) == keys
    assert "{" not in answer.err


def test_every_verb_is_shown_here() -> None:
    parser = make_parser()
    verbs = set(next(a for a in parser._actions if a.choices and "run" in a.choices).choices or ())
    assert verbs - {"demo"} == set(VERBS)


def test_parts_of_the_answers(line: Line) -> None:
    plan = line.plan()
    assert all(set(stage) >= STAGE for stage in plan["stages"])
    assert set(plan["totals"]) >= TOTALS
    assert len({stage["id"] for stage in plan["stages"]}) == 20
    (found,) = line.call("compare", line.study, "--json").json["comparisons"]
    assert set(found) >= FINDING
    assert (found["baseline"], found["variant"], found["n_seeds"]) == ("low", "high", 2)


def test_an_error_is_one_object_as_well(line: Line) -> None:
    line.edit(line.study, "AdamW(lr=lr,", "AdamW(lr=-1,")
    answer = line.call("plan", line.study, "--json")
    assert answer.code == 2
    assert set(answer.json) == {"error", "faults"}


def test_sentences_are_whole_in_a_pipe(line: Line) -> None:
    out = line.call("compare", line.study).out
    (found,) = line.call("compare", line.study, "--json").json["comparisons"]
    assert any(found["sentence"] in text for text in out.splitlines())
    assert not any(text != text.rstrip() for text in out.splitlines())


def test_run_says_where_the_report_is(line: Line) -> None:
    answer = line.call("run", line.study, "--report", "folder/found.html")
    assert answer.code == 0
    path = line.folder / "folder" / "found.html"
    assert f"report: {path}" in answer.out
    assert "<html" in path.read_text(encoding="utf-8")
    assert line.call("report", line.study, "-o", path, "--json").json["report"] == str(path)


def test_the_same_results_give_the_same_report(line: Line) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        line.call("report", line.study, "-o", name)
        pages.append((line.folder / name).read_bytes())
    assert pages[0] == pages[1]


def test_plan_for_a_person(line: Line) -> None:
    line.edit(line.keepers, "len(text) > SHORTEST", "len(text) >= SHORTEST")
    out = line.call("plan", line.study).out
    assert "stale   [1]" in out
    assert "[1] code: keepers:is_wanted" in out
    assert "20 stages: 1 stored, 19 stale, 0 to run" in out


def test_plan_says_what_difference_it_can_see_and_where_that_is_known_from(line: Line, fresh: Line) -> None:
    (design,) = line.plan()["designs"]
    assert design["difference"] > 0
    assert (design["n_seeds"], design["n_comparisons"]) == (2, 1)
    assert "can see a difference of" in design["sentence"]
    assert "at 80 % power (2 paired seeds; noise from 4 stored runs" in design["sentence"]
    assert "replicates of" in design["sentence"]
    text = line.call("plan", line.study).out
    assert "this design can see a difference of" in " ".join(text.split())
    (unknown,) = fresh.plan()["designs"]
    assert unknown["difference"] is None
    assert "unknown: no variant is stored with two seeds" in unknown["sentence"]


def test_noise_of_other_items_is_not_taken(line: Line) -> None:
    line.edit(line.study, "max_documents=4", "max_documents=3")
    (design,) = line.plan()["designs"]
    assert design["difference"] is None


def test_explain(line: Line) -> None:
    line.edit(line.keepers, "len(text) > SHORTEST", "len(text) >= SHORTEST")
    stage = line.plan()["stages"][0]
    found = line.call("plan", line.study, "--explain", stage["id"][:12], "--json").json
    assert (found["state"], found["changed_code"]) == ("stale", ["keepers:is_wanted"])
    assert found["spec"]["filters"][0]["function"] == {"import": "keepers:is_wanted"}
    assert found["code"]["keepers:is_wanted"]
    assert line.call("plan", line.study, "--explain", "train@8").code in (0, 2)
    assert line.call("plan", line.study, "--explain", "zzz").code == 2


def test_show_a_stage_with_its_lineage_both_ways(line: Line) -> None:
    by_kind = {stage["kind"]: stage for stage in line.plan()["stages"]}
    shown = line.call("show", by_kind["tokens"]["id"][:10], "--json").json
    assert set(shown["made_from"]) == {"documents", "tokenizer"}
    assert {used["as"] for used in shown["used_by"]} == {"tokens0"}
    assert shown["experiments"] == ["low/seed=1", "low/seed=2", "high/seed=1", "high/seed=2"]
    assert shown["results"]["tokens.json"]["n_tokens"] > 0


def test_diff_names_what_differs(line: Line) -> None:
    changes = line.call("diff", "low/seed=1", "high/seed=2", "--json").json["changes"]
    assert {change["path"]: (change["before"], change["after"]) for change in changes} == {
        "name": ('"low/seed=1"', '"high/seed=2"'),
        "training.optimizer.lr": ("0.001", "0.003"),
        "training.seed": ("1", "2"),
    }


def test_sample_is_the_same_for_the_same_seed(line: Line) -> None:
    words = ("sample", "high/seed=1", "def ", "--max-new-tokens", "8", "--seed", "3")
    texts = [line.call(*words).out for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("def ")


def test_threads_are_never_none(line: Line) -> None:
    answer = line.call("run", line.study, "--threads", "1", "--jobs", "2", "--json")
    assert (answer.code, answer.json["stored"]) == (0, 20)
    assert line.call("plan", line.study, "--threads", "1", "--jobs", "4").code == 0


def names_of(garbage: list[dict[str, Any]], what: str) -> set[str]:
    return {each["id"] for each in garbage if each["what"] == what}


def test_gc_keeps_what_a_named_experiment_needs(line: Line) -> None:
    before = sorted(line.workspace.rglob("stages/*/*"))
    assert line.call("gc", "--json").json["garbage"] == []
    assert sorted(line.workspace.rglob("stages/*/*")) == before
    with Store.open(line.workspace) as store:
        needed = {n.name: set(n.stages.values()) for n in store.experiments()}
    others = set().union(*(stages for name, stages in needed.items() if name != "high/seed=2"))
    planned = line.call("gc", "--dry-run", "--forget", "high/seed=2", "--json").json
    assert sorted(line.workspace.rglob("stages/*/*")) == before, "a dry run removes nothing"
    freed = line.call("gc", "--forget", "high/seed=2", "--json").json
    left = {path.name for path in line.workspace.glob("stages/*/*")}
    assert left == others
    assert {each["id"] for each in freed["garbage"]} >= needed["high/seed=2"] - others
    assert planned["dry_run"] is True
    assert names_of(planned["garbage"], "stage") == names_of(freed["garbage"], "stage")
    line.edit(line.study, "seed in (1, 2)", "seed in (1,)")
    assert line.left() == []


def test_the_lake_loses_the_tables_of_what_is_forgotten(line: Line) -> None:
    names = ("low/seed=1", "low/seed=2", "high/seed=1", "high/seed=2")
    words = [word for name in names for word in ("--forget", name)]
    freed = line.call("gc", *words, "--json")
    assert freed.code == 0, freed.err
    assert list(line.workspace.glob("stages/*/*")) == []
    assert list(line.workspace.glob("lake/**/*.parquet")) == []
    without_measuring(line)
    assert line.call("doctor", "--deep", "--json").json["good"] is True


def test_status_while_it_runs_and_after(line: Line) -> None:
    found = line.call("status", "--json").json
    assert found["running"] == []
    assert found["failed"] == []
    assert [(each["stages"], each["stored"]) for each in found["experiments"]] == [(8, 8)] * 4
    assert "nothing runs" in line.call("status").out


def test_logs_of_stages_are_no_part_of_stdout(line: Line) -> None:
    line.edit(line.keepers, "len(text) > SHORTEST", "print(text) or len(text) > SHORTEST")
    answer = line.run()
    assert (answer.code, answer.json["ran"]) == (0, 1)
    assert "import" not in answer.err
    with Store.open(line.workspace) as store:
        log = store.log_path(store.records("documents")[-1].fingerprint)
    assert "import" in log.read_text(encoding="utf-8")


def test_a_verdict_on_stale_results_says_so(line: Line) -> None:
    assert line.call("compare", line.study, "--json").json["stale"] == 0
    line.edit(line.keepers, "len(text) > SHORTEST", "len(text) >= SHORTEST")
    found = line.call("compare", line.study, "--json").json
    assert (found["stale"], found["stale_reasons"]) == (19, ["code: keepers:is_wanted"])
    told = "19 of 20 stages were made by other code or inputs: code: keepers:is_wanted (run again to rebuild)"
    assert line.call("compare", line.study).out.startswith(told)
    assert line.call("report", line.study, "-o", line.folder / "r.html").out.startswith(told)
    assert told in (line.folder / "r.html").read_text(encoding="utf-8")
    kept = line.call("run", line.study, "--on-stale", "keep").out
    assert told in kept
    assert "0 ran, 20 reused" in kept


def test_too_many_epochs_are_refused_before_any_work(line: Line) -> None:
    line.edit(line.study, "weight=1.0)", "weight=1.0, max_epochs=0.001)")
    for verb in ("check", "plan", "run"):
        answer = line.call(verb, line.study)
        assert answer.code == 2, answer.out
        assert answer.err.count("max_epochs: found") == 1
        assert "low/seed=1: mixture.parts[0].max_epochs" in answer.err


def test_show_for_a_person_is_short(line: Line) -> None:
    shown = line.call("show", "low/seed=1").out.splitlines()
    assert len(shown) <= 20
    assert any("\N{PLUS-MINUS SIGN}" in text for text in shown)
    assert any(text.startswith("model      ") for text in shown)
    by_kind = {stage["kind"]: stage for stage in line.plan()["stages"]}
    for stage in by_kind.values():
        told = line.call("show", stage["id"][:10]).out
        assert len(told.splitlines()) <= 22
        assert stage["label"] in told
        assert "tokenizer tokenizer" not in told
        assert ("parameters; " in told) == (stage["kind"] == "train")


def test_gc_for_a_person_names_labels(line: Line) -> None:
    out = line.call("gc", "--dry-run", "--forget", "high/seed=2").out
    assert "train high/seed=2 to step" in out
