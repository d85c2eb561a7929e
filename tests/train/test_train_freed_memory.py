import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CODE = textwrap.dedent("""
    import torch
    from modelfactory.train.freed_memory import freed_memory_kept

    def n_faults():
        with open("/proc/self/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[7])

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def used(n_floats=2**24):
        before = n_faults()
        for _ in range(8):
            torch.ones(n_floats)  # 64 MiB, 16,384 pages
        return n_faults() - before

    bare, before = used(), resident()
    with freed_memory_kept():
        used()
        kept = used()
        held = resident() - before
    after = resident() - before
    print(bare, kept, held, after, used(2**26))  # so large that no hole left in the heap holds it
""")

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts pages as Linux does")


def counted(**environment: str) -> list[int]:
    answer = subprocess.run(
        [sys.executable, "-c", CODE], check=True, capture_output=True, text=True, env=os.environ | environment
    )
    return [int(word) for word in answer.stdout.split()]


def test_blocks_are_reused_inside_and_given_back_after() -> None:
    bare, kept, held, after, again = counted()
    assert bare > 8 * 10_000 > 1_000 > kept
    assert held > 2**26 * 0.9 > 2**22 > after
    assert again > 8 * 10_000


def test_the_environment_has_the_last_word() -> None:
    _, kept, *_ = counted(MALLOC_MMAP_THRESHOLD_="1048576")
    assert kept > 8 * 10_000
