import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from modelfactory.live import Board, Live
from modelfactory.live.board import duration
from modelfactory.live.shortened import middle_cut
from modelfactory.run import (
    Failure,
    RunBegan,
    StageBegan,
    StageBlocked,
    StageBroke,
    StageDone,
    StageProgressed,
    StageServed,
    StopAsked,
)
from modelfactory.stage import Progress
from tests.run.toys import stage


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


ONE, TWO, THREE = stage("one", kind="train"), stage("two", kind="train"), stage("three")
BEGAN = RunBegan(stages=(ONE, TWO, THREE), jobs=1, threads=1)
HALF = Progress(
    done=50, total=100, unit="steps", rate=5.0, metrics={"loss": 3.14159, "tokens_per_s": 1_950.2}
)


def broke(tmp_path):
    failure = Failure(
        fingerprint=ONE.id, label="train one", kind="raised", error="[bold]no[/bold]", log=tmp_path / "log",
        log_tail="", attempts=1,
    )  # fmt: skip
    return StageBroke(stage=ONE, failure=failure)


def test_counts(clock, tmp_path):
    board = Board(clock)
    for event in (BEGAN, StageServed(stage=THREE), broke(tmp_path), StageBlocked(stage=TWO, cause=ONE)):
        board.note(event)
    assert (board.n_stored, board.n_failed, board.n_blocked, board.n_settled()) == (1, 1, 1, 3)
    assert board.seconds_left() == 0.0


def test_time_left_learns_from_what_stages_took(clock):
    board = Board(clock)
    board.note(BEGAN)
    assert board.seconds_left() == 3.0
    board.note(StageDone(stage=ONE, seconds=10.0, n_bytes=1))
    assert board.seconds_left() == 11.0
    board.note(StageBegan(stage=TWO, attempt=1, pid=1))
    clock.now = 4.0
    assert board.seconds_left() == 7.0
    board.note(StageProgressed(stage=TWO, progress=HALF))
    assert board.seconds_left() == 11.0


def test_a_warning_is_a_line_of_its_own(clock):
    board = Board(clock)
    board.note(BEGAN)
    board.note(StageBegan(stage=ONE, attempt=1, pid=1))
    warned = Progress(done=2, total=9, unit="steps", warning="step 2 has no label that counts")
    line = board.note(StageProgressed(stage=ONE, progress=warned))
    assert line == "WARNING: train one: step 2 has no label that counts"
    assert board.note(StageProgressed(stage=ONE, progress=HALF)) == ""


def test_without_a_terminal_lines_are_few_and_plain(clock, tmp_path):
    out = io.StringIO()
    with Live(Console(file=out), clock) as live:
        live(BEGAN)
        live(StageBegan(stage=ONE, attempt=1, pid=1))
        for _ in range(100):
            clock.now += 0.11
            live(StageProgressed(stage=ONE, progress=HALF))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "0 of 3 stages, 1 running, about 12 s left | train one: steps 50/100, loss 3.142, 1,950 tokens/s"
    )


def test_failures_are_printed_at_once_and_literally(clock, tmp_path):
    out = io.StringIO()
    with Live(Console(file=out), clock) as live:
        live(BEGAN)
        live(broke(tmp_path))
        live(StopAsked(at_once=False))
    text = out.getvalue()
    assert f"failed: train one: [bold]no[/bold] (log: {tmp_path / 'log'})" in text.replace("\n", "")
    assert "stopping; once more to stop at once" in text


@pytest.mark.parametrize("width", [40, 120])
def test_on_a_terminal_it_is_drawn_with_a_line_for_each_running_stage(clock, width):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    with Live(console, clock) as live:
        live(BEGAN)
        live(StageBegan(stage=ONE, attempt=1, pid=1))
        live(StageProgressed(stage=ONE, progress=HALF))
        live(StageBegan(stage=THREE, attempt=1, pid=2))
    text = out.getvalue()
    assert "train one" in text or "train" in text
    assert "2 running" in text


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (99, "train llama, deduplicated, seed=3 to step 192"),
        (30, "train lla…, seed=3 to step 192"),
        (9, "tr…ep 192"),
        (1, "…"),
        (0, ""),
    ],
)
def test_a_long_name_gives_way_in_its_middle(width, text):
    whole = Text("train llama, deduplicated, seed=3 to step 192")
    assert middle_cut(whole, width).plain == text


def test_wide_characters_are_cut_by_the_columns_they_take():
    assert middle_cut(Text("日本語のモデル, seed=3"), 12).plain == "日…, seed=3"
    assert cell_len(middle_cut(Text("日" * 40), 11).plain) <= 11


def test_on_80_columns_stages_of_one_experiment_can_be_told_apart(clock):
    out = io.StringIO()
    names = [f"llama with rotary positions, deduplicated, seed={n} to step 192" for n in (1, 2)]
    stages = [stage(name, kind="train") for name in names]
    with Live(Console(file=out, force_terminal=True, width=80, color_system=None), clock) as live:
        live(RunBegan(stages=tuple(stages), jobs=2, threads=1))
        for each in stages:
            live(StageBegan(stage=each, attempt=1, pid=1))
            live(StageProgressed(stage=each, progress=HALF))
    lines = out.getvalue().splitlines()
    assert any("…" in line and "seed=1 to step 192 " in line for line in lines)
    assert any("…" in line and "seed=2 to step 192 " in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7_500, "2 h 05 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
