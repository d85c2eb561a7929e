"""A study so small that the whole line runs in seconds, and the command line it is driven by."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelfactory.cli import main

N_FILES = 40
STUDY = '''\
"""Is the second learning rate better than the first?"""

from keepers import is_wanted
from modelfactory import Experiment
from modelfactory.data import Dataset, Files, Keep, Split
from modelfactory.evaluate import BitsPerByte, NextLine
from modelfactory.models import GPT2
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import WSD, AdamW, Training


def python(part: str, filters: tuple[Keep, ...] = ()) -> Dataset:
    source = Files(root="corpus", pattern="**/*.py", not_utf8="drop")
    split = Split(part=part, held_out_share=0.25)
    return Dataset(name="python", sources=(source,), filters=filters, dedup=(), split=split)


TRAIN, HELD_OUT = python("train", (Keep(function=is_wanted),)), python("held_out")
EVALUATIONS = (
    BitsPerByte(dataset=HELD_OUT, max_documents=4, max_bytes=300),
    # more evaluations
)


def variant(*, name: str, lr: float, seed: int) -> Experiment:
    return Experiment(
        name=f"{{name}}/seed={{seed}}",
        tokenizer=BPE(vocab_size=320, dataset=TRAIN),
        mixture=Mixture(parts=(Part(dataset=TRAIN, weight=1.0),)),
        model=GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=32),
        training=Training(
            n_tokens={n_steps} * 128,
            batch_tokens=128,
            optimizer=AdamW(lr=lr, weight_decay=0.1),
            schedule=WSD(warmup_steps=2, decay_steps=2),
            seed=seed,
            precision="fp32",
            n_checkpoints={n_checkpoints},
        ),
        evaluations=EVALUATIONS,
    )


def experiments() -> list[Experiment]:
    variants = {{"low": 1e-3, "high": 3e-3}}
    return [variant(name=name, lr=lr, seed=seed) for name, lr in variants.items() for seed in (1, 2)]
'''
KEEPERS = '''\
"""What a user wrote to choose documents."""

SHORTEST = 100


def is_wanted(text: str) -> bool:
    """Keep what is long enough."""
    return len(text) > SHORTEST


def nobody_calls(text: str) -> bool:
    return text == ""
'''


@dataclass(frozen=True)
class Answered:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        lines = self.out.splitlines()
        assert len(lines) == 1, (lines, self.err)
        found = json.loads(lines[0])
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Line:
    """A folder with a corpus, a study and a workspace."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        return self.folder / "tiny_study.py"

    @property
    def keepers(self) -> Path:
        return self.folder / "keepers.py"

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def workspace(self) -> Path:
        return self.folder / "w"

    def command(self, verb: str, *words: object) -> list[str]:
        options = ["--workspace", str(self.workspace), *map(str, words)]
        return [
            sys.executable,
            "-c",
            "import sys; from modelfactory.cli import main; sys.exit(main())",
            verb,
            *options,
        ]

    def start(self, verb: str, *words: object, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        """Begin a command in a process group of its own."""
        return subprocess.Popen(
            self.command(verb, *words),
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self.env,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, verb: str, *words: object, timeout_s: float = 120) -> Answered:
        """Run a command to its end, in a process of its own."""
        process = self.start(verb, *words)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise
        return Answered(process.returncode, out, err)

    def call(self, verb: str, *words: object) -> Answered:
        """Run a command in this process: for those that are over in a moment."""
        forget(self.study.stem, self.keepers.stem)
        out, err = io.StringIO(), io.StringIO()
        path = list(sys.path)
        try:
            with (
                contextlib.chdir(self.folder),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
            ):
                code = main([verb, "--workspace", str(self.workspace), *map(str, words)])
        finally:
            sys.path[:] = path
            forget(self.study.stem, self.keepers.stem)
        return Answered(code, out.getvalue(), err.getvalue())

    def run(self, *words: object) -> Answered:
        """Carry out the study with two jobs."""
        return self.ask("run", self.study, "--jobs", 2, "--json", *words)

    def plan(self, *words: object) -> dict[str, Any]:
        """Return the plan, made in this process."""
        answer = self.call("plan", self.study, "--json", *words)
        assert answer.code == 0, answer.err
        return answer.json

    def left(self) -> list[dict[str, Any]]:
        """Return the stages of the plan that are not stored."""
        return [stage for stage in self.plan()["stages"] if stage["state"] != "stored"]

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert text.count(old) == 1, (old, text.count(old))
        path.write_text(text.replace(old, new))

    def copy_to(self, folder: Path) -> Line:
        """Return the same study, corpus and workspace in another folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Line(folder, self.env)


def new_line(folder: Path, *, n_steps: int = 8, n_checkpoints: int = 2, n_files: int = N_FILES) -> Line:
    """Write a study and its corpus."""
    line = Line(folder)
    line.corpus.mkdir(parents=True)
    for path in small_files(n_files):
        shutil.copyfile(path, line.corpus / path.name)
    line.keepers.write_text(KEEPERS)
    line.study.write_text(STUDY.format(n_steps=n_steps, n_checkpoints=n_checkpoints))
    return line


def small_files(n_files: int) -> list[Path]:
    """Return modules of the standard library of middling size, the same ones for one version of Python."""
    found = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path for path in found if 1_500 < path.stat().st_size < 20_000][:n_files]


def forget(*modules: str) -> None:
    for module in modules:
        sys.modules.pop(module, None)


def kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
