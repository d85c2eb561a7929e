"""Stages that do one small thing each, good or bad, for tests of the engine and of runs."""

import ctypes
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from modelfactory.errors import Stopped
from modelfactory.spec import check_types
from modelfactory.stage import Progress


@dataclass(frozen=True, kw_only=True)
class Toy:
    """What a toy stage does."""

    action: str = "write"
    value: int = 0
    seconds: float = 0.0
    path: str = ""

    def __post_init__(self):
        check_types(self)


def run(spec, inputs, output_dir, site):
    ACTIONS[spec.action](spec, inputs, output_dir, site)


def write(spec, inputs, output_dir, site):
    time.sleep(spec.seconds)
    digest = hashlib.sha256(str(spec.value).encode())
    for name, path in sorted(inputs.items()):
        digest.update(name.encode())
        digest.update((path / "out.txt").read_bytes() if path.is_dir() else path.read_bytes())
    (output_dir / "out.txt").write_text(digest.hexdigest())
    if spec.path:
        with Path(spec.path).open("a") as file:
            file.write(f"{site.fingerprint} {os.getpid()}\n")


def constant(spec, inputs, output_dir, site):
    """Write the same bytes whatever the inputs are."""
    (output_dir / "out.txt").write_text("always the same")
    if spec.path:
        with Path(spec.path).open("a") as file:
            file.write(f"{site.fingerprint} {os.getpid()}\n")


def from_file(spec, inputs, output_dir, site):
    """Write what a file outside says: not deterministic, on purpose."""
    (output_dir / "out.txt").write_text(Path(spec.path).read_text())


def fail(spec, inputs, output_dir, site):
    print("about to fail")
    raise ValueError(f"no such luck {spec.value}")


def leave(spec, inputs, output_dir, site):
    print("leaving", flush=True)
    os._exit(7)


def die(spec, inputs, output_dir, site):
    os.kill(os.getpid(), signal.SIGKILL)


def crash(spec, inputs, output_dir, site):
    os.kill(os.getpid(), signal.SIGSEGV)


def out_of_memory(spec, inputs, output_dir, site):
    bytearray(1 << 62)


def full_disk(spec, inputs, output_dir, site):
    (output_dir / "part.bin").write_bytes(b"x" * 100)
    raise OSError(errno.ENOSPC, "No space left on device", str(output_dir / "part.bin"))


def at_second_try(spec, inputs, output_dir, site):
    marker = Path(spec.path)
    if not marker.exists():
        marker.touch()
        raise RuntimeError("the first try always fails")
    (output_dir / "out.txt").write_text("second")


def speak(spec, inputs, output_dir, site):
    print("from Python")
    print("from Python's stderr", file=sys.stderr)
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    subprocess.run(["sh", "-c", "echo from a child"], check=True)
    (output_dir / "out.txt").write_text("")


def meet(spec, inputs, output_dir, site):
    """Wait for the stage of the other value, which must run at the same time."""
    (Path(spec.path) / str(spec.value)).touch()
    deadline = time.monotonic() + 20
    while not (Path(spec.path) / str(1 - spec.value)).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the other never came")
        time.sleep(0.02)


def facts(spec, inputs, output_dir, site):
    """Write what the stage sees of its process."""
    from tests.engine import heavy_to_import

    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED")
    lines = [f"{name}={os.environ.get(name)}" for name in names]
    warm = site.warm.setdefault("count", [])
    warm.append(1)
    lines += [f"threads={site.threads}", f"pid={os.getpid()}", f"imported={heavy_to_import.STAMP}"]
    lines += [f"nice={os.nice(0)}", f"nice_of_thread={_nice_of_new_thread()}"]
    lines += [f"warm={len(warm)}", f"lake={site.lake}", f"fingerprint={site.fingerprint}"]
    (output_dir / "out.txt").write_text("\n".join(lines))


def _nice_of_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(os.nice(0)))
    thread.start()
    thread.join()
    return found[0]


def go_elsewhere(spec, inputs, output_dir, site):
    (output_dir / "out.txt").write_text(str(Path.cwd()))
    os.chdir("/")


def report(spec, inputs, output_dir, site):
    for done in range(1, 2_001):
        site.report(Progress(done=done, total=2_000, unit="steps", rate=10.0, metrics={"loss": 1 / done}))
    (output_dir / "out.txt").write_text("")


def report_slowly(spec, inputs, output_dir, site):
    for done in range(1, 21):
        site.report(Progress(done=done, total=20, unit="steps", rate=10.0, metrics={"loss": 3 / done}))
        time.sleep(0.1)
    (output_dir / "out.txt").write_text("")


def until_stopped(spec, inputs, output_dir, site):
    """Wait to be asked to stop, and say so."""
    Path(spec.path).write_text(str(os.getpid()))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if site.stopping():
            raise Stopped("stopped when asked")
        time.sleep(0.02)


def deaf(spec, inputs, output_dir, site):
    """Sleep whatever the driver says, with a child beside."""
    child = subprocess.Popen(["sleep", "60"])
    Path(spec.path).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)


def refuse(spec, inputs, output_dir, site):
    from modelfactory.errors import SourceError

    raise SourceError(place="a.txt", found="other bytes", wanted="the pinned ones", remedy="Plan again.")


def link(spec, inputs, output_dir, site):
    (output_dir / "out.txt").symlink_to("/etc/hostname")


ACTIONS = {
    function.__name__: function
    for function in (
        write, constant, from_file, fail, leave, die, crash, out_of_memory, full_disk, at_second_try, speak,
        facts, meet, go_elsewhere, report, report_slowly, until_stopped, deaf, refuse, link,
    )
}  # fmt: skip
