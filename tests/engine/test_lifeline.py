import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

HOLDER = """
    import os, re, subprocess, sys
    from modelfactory.engine import lifeline
    lifeline.hold(int(sys.argv[1]))
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    {then}
"""
ASLEEP = "import time; time.sleep(60)"
HOLDS_THE_LOCK = 're.match(r"(a+)+$", "a" * 40 + "b")'  # C code that keeps the interpreter's lock for ages


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("then", [ASLEEP, HOLDS_THE_LOCK])
def test_a_process_and_its_children_die_with_the_other_end(then):
    if then is HOLDS_THE_LOCK and sys.platform != "linux":
        pytest.skip("only Linux kills without the interpreter's lock")
    read, write = os.pipe()
    code = textwrap.dedent(HOLDER).format(then=then)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(read)],
        pass_fds=[read],
        process_group=0,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(read)
        child = int(process.stdout.readline())
        os.close(write)
        assert process.wait(timeout=3) == -9
    deadline = time.monotonic() + 2
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
