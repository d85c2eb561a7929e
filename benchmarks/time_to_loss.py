"""Seconds to nanoGPT's published loss on Shakespeare, by `experiments/time_to_loss.py`.

Runs the experiment in a workspace of its own (or goes on in --workspace), one stage at a time, and reads what
the training stages wrote: the time of every step and, from the evaluations, the loss at the end. A ratio is
how many times as long nanoGPT's recipe trained as another that reached its published loss with every seed:
1.88 nats a character, which stands for anything below 1.885. Those that did not are listed without a ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from modelfactory.experiment import variant_name
from modelfactory.store import Store

STUDY = Path(__file__).parents[1] / "experiments" / "time_to_loss.py"
BASELINE, PUBLISHED_NATS = "nanoGPT", 1.885


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workspace", type=Path, help="kept; by default a temporary one")
    return parser.parse_args()


def run(workspace: Path, threads: int) -> None:
    words = ["run", str(STUDY), "--workspace", str(workspace), "--jobs", "1", "--threads", str(threads)]
    command = [sys.executable, "-c", "from modelfactory.cli import main; raise SystemExit(main())", *words]
    subprocess.run(command, check=True, stdout=sys.stderr)


def results(workspace: Path) -> dict[str, list[dict[str, float]]]:
    """Return seconds of all steps and the last loss in nats, for each run of each recipe."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with Store.open(workspace) as store:
        for experiment in store.experiments():
            trained = [name for role, name in experiment.stages.items() if role.startswith("train@")]
            judged = [role for role in experiment.stages if role.startswith("bits_per_byte@")]
            last = max(judged, key=lambda role: int(role.rpartition("@")[2]))
            result = json.loads((store.stage_dir(experiment.stages[last]) / "result.json").read_text())
            steps = [step for name in trained for step in timing(store.stage_dir(name))]
            nats = result["metrics"]["bits_per_byte"]["value"] * math.log(2)
            facts = {"seconds": sum(steps), "n_steps": len(steps), "nats": nats}
            found[variant_name(experiment.name)].append(facts)
    return found


def timing(stage: Path) -> list[float]:
    lines = (stage / "observed" / "timing.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory() as folder:
        workspace = asked.workspace or Path(folder) / "workspace"
        run(workspace, asked.threads)
        found = results(workspace)
    baseline = statistics.median(run["seconds"] for run in found[BASELINE])
    figures: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, runs in found.items():
        seconds, worst = statistics.median(run["seconds"] for run in runs), max(run["nats"] for run in runs)
        figures[name] = {
            "seconds": round(seconds, 1),
            "n_steps": runs[0]["n_steps"],
            "nats": [round(run["nats"], 4) for run in runs],
        }
        if worst <= PUBLISHED_NATS:
            ratios[f"time to 1.88 nats, {name}"] = round(baseline / seconds, 2)
    machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
    for name, value in figures.items():
        print(f"{name:20} {value}")
    if asked.json:
        print(json.dumps({"ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
