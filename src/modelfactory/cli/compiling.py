"""Whether trainers of a run use torch.compile: decided once, the same after every restart.

Compiling costs tens of seconds for each shape and gains little in short runs. The choice changes floating
point in the last bits, so it hangs on the plan and on a speed measured once and kept in the workspace,
never on what happens to be left to do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from modelfactory.cli.setting import say
from modelfactory.errors import WorkFailed

if TYPE_CHECKING:
    from modelfactory.plan import Plan
    from modelfactory.store import Store

MIN_FLOPS = 3e13
"""Of one whole run, about 20 minutes on two slow cores; below, compiling cannot pay for itself."""
KEY = "machine/speed"
NEEDED = frozenset(
    {
        "eager_flops_per_s",
        "compile_speedup",
        "compile_seconds",
        "bf16_peak_flops_per_s",
        "fp32_peak_flops_per_s",
        "faster_precision",
    }
)
"""What is read here and by the doctor; a measurement that lacks one, of an earlier version, is made anew."""


def wants_compile(choice: str, plan: Plan, store: Store) -> bool:
    """Return the user's choice, or for `auto` what the measured speeds of this machine say."""
    if choice != "auto":
        return choice == "on"
    longest = max(
        (each.training.n_tokens * _flops_per_token(plan, each.name) for each in plan.experiments),
        default=0.0,
    )
    if longest < MIN_FLOPS:
        return False
    speed = measured_speed(store)
    saved = longest / speed["eager_flops_per_s"] * (1 - 1 / max(speed["compile_speedup"], 1e-9))
    return bool(saved > 2 * speed["compile_seconds"])


def measured_speed(store: Store) -> dict[str, Any]:
    """Return the speeds of this machine, measured in a process of its own when they are not known yet."""
    known: dict[str, Any] | None = store.cache_get(KEY)
    if known is None or not known.keys() >= NEEDED:
        say("measuring this machine once (about a minute) ...")
        known = _measured()
        store.cache_put(KEY, known)
    return known


def known_peaks(store: Store, threads: int) -> dict[str, float]:
    """Return the matrix-product peak of `threads` threads by precision, or nothing if it was not measured.

    It was measured with some number of threads; with fewer, it is taken to be in proportion.
    """
    known: dict[str, Any] | None = store.cache_get(KEY)
    if known is None or not known.keys() >= NEEDED:
        return {}
    share = min(1.0, threads / known.get("threads", threads))
    return {name: share * known[f"{name}_peak_flops_per_s"] for name in ("bf16", "fp32")}


def measured_peaks() -> dict[str, Any]:
    """Return the matrix-product peaks alone, in a few seconds: there may be no workspace to keep more in."""
    return _measured("product_peaks()")


def _measured(call: str = "measure(compiled=True)") -> dict[str, Any]:
    """Measure in a process of its own, which leaves no torch and no threads behind in this one.

    Raises:
        WorkFailed: it ended badly, with the last line of what it wrote.
    """
    program = f"import json; from modelfactory.train import speed; print(json.dumps(speed.{call}))"
    answer = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        message = (
            f"measuring this machine ended with exit code {answer.returncode}: {last}. Use --compile off."
        )
        raise WorkFailed(message)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def _flops_per_token(plan: Plan, name: str) -> float:
    last = [plan.stage(fp) for role, fp in plan.roles[name].items() if role.startswith("train@")][-1]
    return last.flops / max(last.tokens, 1)
