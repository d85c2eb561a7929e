"""How long 1,000 short programs take in the sandbox, each in a bubblewrap of its own.

There is no peer: a ratio is the limit (20 s on 2 cores) over what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time

from modelfactory.sandbox import Limits, run_programs, sandbox_version

N_PROGRAMS = 1_000
LIMIT_S = 20.0


def measured(n_programs: int, n_workers: int) -> float:
    """Return the seconds that the programs take; all must pass."""
    programs = [f"def double(x):\n    return 2 * x\nassert double({n}) == {2 * n}" for n in range(n_programs)]
    began = time.perf_counter()
    outcomes = run_programs(programs, Limits(wall_s=60.0), n_workers=n_workers)
    seconds = time.perf_counter() - began
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        raise SystemExit(f"{len(failed)} programs did not pass, the first: {failed[0]}")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--programs", type=int, default=N_PROGRAMS)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    limit_s = LIMIT_S * arguments.programs / N_PROGRAMS
    found = {f"{n}_workers_s": measured(arguments.programs, n) for n in arguments.workers}
    for name, seconds in found.items():
        print(f"{arguments.programs:,} programs, {name}: {seconds:.1f} s (limit {limit_s:g} s)")
    if arguments.json:
        machine = {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "sandbox": sandbox_version(),
            "load": os.getloadavg()[0],
        }
        ratios = {f"limit_over_{name}": limit_s / seconds for name, seconds in found.items()}
        print(json.dumps({"ratios": ratios, "figures": found, "machine": machine}))


if __name__ == "__main__":
    main()
