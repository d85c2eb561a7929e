"""Words in, exit code out; what needs no carried-out study."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from modelfactory.cli import compiling, main, upkeep
from modelfactory.cli.answer import Answer
from modelfactory.cli.arguments import make_parser
from modelfactory.cli.setting import find_stage
from modelfactory.cli.showing import how_far, label_of
from modelfactory.errors import (
    CommandError,
    DiskFull,
    FactoryError,
    NonFiniteLoss,
    StageDamaged,
    WorkFailed,
    listed,
)
from modelfactory.plan import plan_experiments
from modelfactory.plan.sources import PinnedSources
from modelfactory.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEED = {
    "eager_flops_per_s": 1e10,
    "compile_speedup": 2.0,
    "compile_seconds": 40.0,
    "bf16_peak_flops_per_s": 2e11,
    "fp32_peak_flops_per_s": 1e11,
    "faster_precision": "bf16",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "w") as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "a.py", "--jobs", "0"], "found '0', wanted a whole number of at least 1"),
        (["run", "a.py", "--threads", "two"], "found 'two', wanted a whole number of at least 1"),
        (["run", "a.py", "--retries", "-1"], "found '-1', wanted a whole number of at least 0"),
        (["eval", "x", "--task", "y", "--limit", "0"], "found '0', wanted a whole number of at least 1"),
        (["eval", "x"], "--task"),
        (["run"], "FILE"),
        (["run", "a.py", "--jobs"], "factory run --jobs: found another number of words after it, wanted one"),
        (["run", "a.py", "--jbos", "3"], "found unknown words: --jbos 3"),
        (["run", "a.py", "--jbos", "3"], "Did you mean '--jobs'?"),
        (["run", "a.py", "--engine", "locl"], "factory run --engine: found 'locl', wanted one of local"),
        (["fly"], "found 'fly', wanted one of check, plan"),
        (["chek", "a.py"], "Did you mean 'check'?"),
        ([], "VERB"),
    ],
)
def test_wrong_words(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["chek", "a.py", "--json"], ["check", "--json"], ["run", "a.py", "--json", "--jobs", "0"]]
)
def test_wrong_words_with_json_are_one_json_object(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    told = capsys.readouterr()
    answer = json.loads(told.out)
    (fault,) = answer["faults"]
    assert set(fault) == {"place", "found", "wanted", "remedy"}
    assert answer["error"] == told.err.strip()


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.py").write_text("")
    assert main(["check", str(tmp_path / "frist.py")]) == 2
    assert "Did you mean 'first.py'?" in capsys.readouterr().err


def answered(monkeypatch: pytest.MonkeyPatch, words: list[str], verb: object) -> int:
    parser = make_parser()
    monkeypatch.setattr(parser, "parse_args", lambda _: SimpleNamespace(verb=verb, json="--json" in words))
    monkeypatch.setattr(sys.modules["modelfactory.cli.main"], "make_parser", lambda: parser)
    return main(words)


def test_work_that_failed_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(_: object) -> Answer:
        raise StageDamaged("a byte is another")

    assert answered(monkeypatch, ["run", "--json"], damaged) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"error": "a byte is another"}
    assert told.err == "StageDamaged: a byte is another\n"


@pytest.mark.parametrize("error", [DiskFull("no space left"), NonFiniteLoss("step 3")])
def test_what_only_the_user_can_mend_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: FactoryError
) -> None:
    def failing(_: object) -> Answer:
        raise error

    assert answered(monkeypatch, ["run"], failing) == 2
    assert str(error) in capsys.readouterr().err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> Answer:
        raise KeyboardInterrupt

    assert answered(monkeypatch, ["run"], interrupted) == 130
    assert "go on" in capsys.readouterr().err


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    answer = Answer(data={}, text=lambda console: console.print(long, "[1] = x", markup=False))
    assert answered(monkeypatch, ["plan"], lambda _: answer) == 0
    assert capsys.readouterr().out == f"{long} [1] = x\n"


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    """`factory doctor | head -0`: no traceback, no error."""
    program = "import sys; from modelfactory.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "doctor", "--workspace", str(tmp_path / "none")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 0
    assert "Traceback" not in err
    process.stderr.close()


def test_compiling_is_decided_by_the_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = plan_experiments([], PinnedSources(by_source={}), None, jobs=1, threads=1)
    assert compiling.wants_compile("on", empty, store)
    assert not compiling.wants_compile("off", empty, store)
    assert not compiling.wants_compile("auto", empty, store)
    run = SimpleNamespace(name="a", training=SimpleNamespace(n_tokens=10**7))
    long = replace(empty, experiments=(run,))
    monkeypatch.setattr(compiling, "_flops_per_token", lambda *_: 1e8)
    store.cache_put(compiling.KEY, SPEED)
    assert compiling.wants_compile("auto", long, store)
    store.cache_put(compiling.KEY, SPEED | {"compile_speedup": 1.0})
    assert not compiling.wants_compile("auto", long, store)


def test_a_speed_of_an_earlier_version_is_measured_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.cache_put(compiling.KEY, {"bf16_gflop_per_s": 1.0})
    monkeypatch.setattr(compiling, "_measured", lambda: SPEED)
    assert compiling.measured_speed(store) == SPEED
    monkeypatch.setattr(compiling, "_measured", dict)
    assert compiling.measured_speed(store) == SPEED, "kept"


def test_what_is_needed_is_what_is_measured() -> None:
    """The names of the measurement, without the minute it takes."""
    from modelfactory.train import speed

    documented = speed.measure.__doc__ or ""
    for name in compiling.NEEDED:
        assert name.replace("bf16_", "").replace("fp32_", "") in documented


def test_measuring_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(WorkFailed, match="exit code 1: RuntimeError: no"):
        compiling._measured()


def test_the_doctor_shows_long_findings_whole() -> None:
    buffer = io.StringIO()
    found = "a_very_long_name_without_any_space" * 4
    checks = [
        upkeep.Check(name="stage 1", good=False, found=found, remedy="mend it"),
        upkeep.Check(name="disk", good=True, found="[1 GB] free", remedy="never shown"),
    ]
    upkeep._print_checks(Console(file=buffer, width=80), checks)
    shown = buffer.getvalue()
    assert "…" not in shown
    assert "never shown" not in shown
    assert "[1 GB] free" in shown
    assert shown.splitlines()[0].split() == ["check", "state", "found", "remedy"]
    assert "BAD" in shown.splitlines()[1]


def test_progress_in_words(store: Store) -> None:
    told = {"done": 12, "total": 20, "unit": "steps", "rate": 11.70312, "metrics": {"loss": 1.60412}}
    assert how_far(told) == "step 12/20, loss 1.604, 11.7 steps/s"
    assert how_far({}) == ""
    store.name_experiment("a", "a.py", "{}", {"train@8": "f" * 64})
    assert label_of(store, "f" * 64) == "train@8 of a"
    assert label_of(store, "e" * 64) == "e" * 10


def test_of_very_many_names_the_closest_is_found_and_not_all_are_listed(store: Store) -> None:
    names = [*(f"rate={n}/seed=1" for n in range(40)), "wide_window/seed=1"]
    for name in names:
        store.name_experiment(name, "a.py", "{}", {})
    with pytest.raises(CommandError, match="Did you mean 'wide_window/seed=1'"):
        find_stage(store, "wide_windw/seed=1")
    with pytest.raises(CommandError) as raised:
        find_stage(store, "zzz")
    assert raised.value.remedy == f"Known: {', '.join(sorted(names)[:20])} and 21 more."


def test_names_that_are_not_listed_are_counted() -> None:
    assert listed(["b", "a, c", "d"], most=2) == "'b', 'a, c' and 1 more"
    assert listed(["b", "a"], most=2) == "b, a"
