"""What programs try, and what the sandbox makes of it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from modelfactory.sandbox import Limits, Outcome, run_program, run_programs

pytestmark = pytest.mark.usefixtures("bubblewrap")
LIMITS = Limits(wall_s=30.0)
"""Long, for busy machines."""
THREADS = (
    "import threading, time\nfor _ in range({n}): threading.Thread(target=time.sleep, args=({s},)).start()"
)


def outcome(program: str, limits: Limits = LIMITS) -> Outcome:
    return run_program(program, limits)


@pytest.mark.parametrize(
    ("program", "verdict", "hit", "words"),
    [
        ("assert sorted([2, 1]) == [1, 2]", "passed", "", ""),
        ("import math, re, collections, json, typing, hashlib", "passed", "", ""),
        ("assert 1 == 2", "failed", "", 'File "/tmp/program.py", line 1'),
        ("", "passed", "", ""),
        ("import sys; sys.exit(0)", "failed", "exit", ""),
        ("import os; os._exit(0)", "failed", "exit", ""),
        ("input()", "failed", "", "EOFError"),
        ("def f():\n\tif 1:\n        return 1", "failed", "", "TabError"),
        ("x = '\ud800'", "failed", "", "SyntaxError"),
        ("x = 1\0", "failed", "", "null bytes"),
        ("x = bytearray(10**10)", "memory", "", "MemoryError"),
        ("import os\nwhile True: os.fork()", "failed", "processes", "temporarily unavailable"),
        (THREADS.format(n=40, s=60), "failed", "processes", "can't start new thread"),
        ("for _ in range(1000): print('x' * 10**6)", "failed", "output", "killed after 1,048,576 bytes"),
        ("import socket; socket.create_connection(('192.0.2.1', 80))", "failed", "network", "unreachable"),
        ("import socket; socket.getaddrinfo('a.example', 80)", "failed", "network", "gaierror"),
        ("open('big', 'wb').write(b'x' * 10**8)", "failed", "file size", "File too large"),
        ("import os; os.kill(os.getpid(), 9)", "crashed", "", ""),
        ("import ctypes; ctypes.string_at(0)", "crashed", "", ""),
        ("raise KeyboardInterrupt", "failed", "", "KeyboardInterrupt"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\xfe'); 1 / 0", "failed", "", "\\xff\\xfe"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "passed", "", ""),
    ],
)
def test_each_is_reported_as_what_it_was(program: str, verdict: str, hit: str, words: str) -> None:
    seen = outcome(program)
    assert (seen.verdict, seen.hit) == (verdict, hit), seen.stderr
    assert words in seen.stderr


def test_a_program_is_killed_at_its_time_with_its_children() -> None:
    mark = f"{time.time_ns()}"
    sleeper = f"import subprocess, time; subprocess.Popen(['sleep', '2{mark}']); time.sleep(2)"
    seen = outcome(sleeper, Limits(wall_s=1.0))
    assert seen.verdict == "timed out"
    assert seen.seconds >= 1.0
    assert "killed after 1 s" in seen.stderr
    assert not running(mark)


def test_children_that_outlive_their_program_are_ended() -> None:
    mark = f"{time.time_ns()}"
    seen = outcome(f"import subprocess; subprocess.Popen(['sleep', '2{mark}'], start_new_session=True)")
    assert seen.passed
    assert not running(mark)


def running(mark: str) -> list[str]:
    """Return the processes whose command holds `mark`, after the kernel had time to end a namespace."""
    for _ in range(100):
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in command(path)]
        if not left:
            return []
        time.sleep(0.05)
    return [command(path) for path in left]


def command(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_what_is_outside_is_neither_seen_nor_written(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("here")
    program = f"""
import os, signal
assert not os.path.exists({str(tmp_path)!r})
assert {os.getpid()} not in map(int, filter(str.isdigit, os.listdir('/proc'))) or os.getpid() < 10
assert os.getuid() != 0
assert os.system('rm -rf --no-preserve-root {tmp_path} /usr/bin/env 2>/dev/null') != 0
assert 'HOME' in os.environ and 'USER' not in os.environ
for folder in ('/', '/usr', '/dev', '/proc'):
    try:
        open(os.path.join(folder, 'new'), 'w')
    except OSError:
        continue
    raise AssertionError(folder)
open('/tmp/new', 'w').write('mine')
"""
    assert outcome(program).passed, outcome(program).stderr
    assert kept.read_text() == "here"
    assert Path("/usr/bin/env").exists()
    assert outcome("import os; assert os.listdir('/tmp') == ['program.py']").passed


def test_only_the_end_of_standard_error_is_kept() -> None:
    seen = outcome("import sys; sys.stderr.write('a' * 100_000 + 'end'); 1 / 0")
    assert len(seen.stderr) <= 4096
    assert "ZeroDivisionError" in seen.stderr


def test_a_huge_source_runs() -> None:
    assert outcome("# " + "x" * 10_000_000 + "\nassert True").passed


def test_hashes_are_the_same_in_each_run() -> None:
    first, second = run_programs(["import sys; sys.stderr.write(str(hash('a')))"] * 2, LIMITS, n_workers=2)
    assert first.stderr == second.stderr != ""


def test_outcomes_come_in_the_order_of_the_programs() -> None:
    programs = [f"assert {n} % 3" for n in range(12)]
    assert [seen.passed for seen in run_programs(programs, LIMITS, n_workers=4)] == [
        n % 3 > 0 for n in range(12)
    ]


def test_two_pools_at_once_do_not_use_up_each_others_processes() -> None:
    programs = [THREADS.format(n=20, s=2)] * 4
    seen: list[Outcome] = []

    def pool() -> None:
        seen.extend(run_programs(programs, LIMITS, n_workers=2))

    pools = [threading.Thread(target=pool) for _ in range(2)]
    for each in pools:
        each.start()
    for each in pools:
        each.join()
    assert [each.verdict for each in seen] == ["passed"] * 8, seen[0].stderr
