"""Runs a documents stage in a process of its own, which may be told to die at a certain point.

Arguments: JSON of spec, inputs, output_dir, lake, threads, fingerprint, dies ("" or a point below).
"""

import json
import os
import signal
import sys
from pathlib import Path

from modelfactory.data import lake, parts, stage
from modelfactory.spec import from_json
from modelfactory.stage import Site


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


def after(function):
    def call(*args, **options):
        function(*args, **options)
        die()

    return call


POINTS = {
    "while documents are spilled": (parts.Spilled, "__iter__", die),
    "before the table is in place": (stage.lake, "commit", die),
    "between the files and the catalog": (lake, "enter", die),
    "after the catalog": (lake, "enter", after(lake.enter)),
    "before the account": (stage, "_write_account", die),
}


def main() -> None:
    job = json.loads(sys.argv[1])
    if job["dies"]:
        holder, name, replacement = POINTS[job["dies"]]
        setattr(holder, name, replacement)
    site = Site(lake=Path(job["lake"]), threads=job["threads"], fingerprint=job["fingerprint"])
    inputs = {name: Path(path) for name, path in job["inputs"].items()}
    stage.run(from_json(job["spec"]), inputs, Path(job["output_dir"]), site)


if __name__ == "__main__":
    main()
