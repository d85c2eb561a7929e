import errno
import signal

import pytest

from modelfactory.engine import memory
from modelfactory.engine.failure import classify, describe, describe_death
from modelfactory.errors import DiskFull, NonFiniteLoss, SourceError, Stopped


def raised_from(error, cause):
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "raised"),
        (SystemExit(3), "raised"),
        (Stopped("x"), "stopped"),
        (NonFiniteLoss("x"), "refused"),
        (SourceError(place="p", found="f", wanted="w", remedy="r"), "refused"),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 99 bytes"), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("unable to mmap 99 bytes from file <x>: Cannot allocate memory (12)"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("the slots of this layer are out of memory"), "raised"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk"),
        (DiskFull("x"), "disk"),
        (raised_from(RuntimeError("writer failed"), OSError(errno.ENOSPC, "No space left")), "disk"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "raised"),
    ],
)
def test_kinds(error, kind):
    assert classify(error) == kind


def test_a_full_disk_is_described_with_path_space_and_remedy(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device", "/a/b.bin")
    text = describe(error, "disk", str(tmp_path / "gone"))
    assert "/a/b.bin" in text
    assert "GB free" in text
    assert "factory gc" in text


def test_a_full_disk_is_told_once():
    told = DiskFull("/w: no space left (3 bytes free). Make room, then run again.")
    assert describe(told, "disk", "/w") == str(told)


def test_a_kill_of_a_large_process_is_probably_for_memory():
    text, kind = describe_death(-signal.SIGKILL, int(0.8 * memory.limit()), memory.n_oom_kills())
    assert kind == "memory"
    assert "probably out of memory" in text


def test_a_kill_of_a_small_process_is_just_a_kill():
    text, kind = describe_death(-signal.SIGKILL, 10_000_000, memory.n_oom_kills())
    assert kind == "killed"
    assert "memory." not in text


def test_a_kill_while_the_kernel_killed_for_memory():
    assert describe_death(-signal.SIGKILL, 10_000_000, memory.n_oom_kills() - 1)[1] == "memory"


def test_unknown_signals_have_a_name():
    assert "signal 63" in describe_death(-63, 0, 0)[0] or "SIGRT" in describe_death(-63, 0, 0)[0]


def test_the_limit_is_at_most_the_machine():
    import psutil

    assert 0 < memory.limit() <= psutil.virtual_memory().total
