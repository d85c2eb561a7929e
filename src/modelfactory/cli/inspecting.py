"""`factory status`, `show`, `diff` and `sample`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import existing_store, find_stage
from modelfactory.cli.showing import experiment_lines, how_far, label_of, stage_lines
from modelfactory.cli.tracing import telling
from modelfactory.errors import CommandError
from modelfactory.report.numbers import duration, size
from modelfactory.spec import json_difference
from modelfactory.verdict.words import count_text

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from modelfactory.store import NamedExperiment, Record, Running, Store


def status(arguments: argparse.Namespace) -> Answer:
    """Show what runs, what waits, what failed and why."""
    with existing_store(arguments.workspace) as store:
        known = store.experiments()
        running = [_running_json(each, label_of(store, each.fingerprint, known)) for each in store.running()]
        failed = [_failed_json(record, arguments.lines) for record in store.failures()]
        experiments = [_experiment_json(store, named) for named in known]
    data = {"running": running, "failed": failed, "experiments": experiments}
    return Answer(data=data, text=lambda console: _print_status(console, data))


def _running_json(running: Running, label: str) -> dict[str, Any]:
    return {
        "id": running.fingerprint,
        "label": label,
        "host": running.holder.host,
        "pid": running.holder.pid,
        "since": running.since,
        "alive": running.alive,
        "progress": dict(running.progress),
    }


def _failed_json(record: Record, lines: int) -> dict[str, Any]:
    return {
        "id": record.fingerprint,
        "label": record.label,
        "error": record.error,
        "attempts": record.attempt,
        "log": record.log,
        "log_tail": _tail(Path(record.log), lines) if record.log else [],
    }


def _tail(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 65_536, 0))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return telling(text.splitlines(), lines)


def _experiment_json(store: Store, named: NamedExperiment) -> dict[str, Any]:
    stages = set(named.stages.values())
    stored = len(store.states(stages))
    return {"name": named.name, "file": named.file, "stages": len(stages), "stored": stored}


def _print_status(console: Console, data: dict[str, Any]) -> None:
    for each in data["running"]:
        progress = each["progress"]
        ago = duration(max(time.time() - each["since"], 0.0))
        far = how_far(progress)
        told = f"{each['label']}  {far}" if far else each["label"]
        console.print(f"running  {told}  for {ago}, process {each['pid']} on {each['host']}", markup=False)
    for each in data["failed"]:
        attempts = count_text(each["attempts"], "attempt")
        console.print(f"failed   {each['label']}  ({attempts}): {each['error']}", markup=False)
        for line in each["log_tail"]:
            console.print(f"         | {line}", markup=False)
        console.print(f"         log: {each['log']}", markup=False)
    table = Table("experiment", "stored", "waiting", box=None, pad_edge=False)
    for each in data["experiments"]:
        table.add_row(
            each["name"], f"{each['stored']}/{each['stages']}", str(each["stages"] - each["stored"])
        )
    console.print(table)
    if not data["running"]:
        console.print("nothing runs")


def show(arguments: argparse.Namespace) -> Answer:
    """Show a stage or an experiment."""
    with existing_store(arguments.workspace) as store:
        named = _named(store, arguments.id)
        if named is not None:
            data, lines = _shown_experiment(store, named), experiment_lines(store, named)
        else:
            fingerprint = find_stage(store, arguments.id)
            data, lines = _shown_stage(store, fingerprint), stage_lines(store, fingerprint)
    return Answer(data=data, text=lambda console: console.print("\n".join(lines), markup=False))


def _named(store: Store, name: str) -> NamedExperiment | None:
    return next((named for named in store.experiments() if named.name == name), None)


def _shown_experiment(store: Store, named: NamedExperiment) -> dict[str, Any]:
    records = store.states(named.stages.values())
    stages = {
        role: {"id": fp, "state": "stored" if fp in records else "to run"}
        for role, fp in named.stages.items()
    }
    return {
        "experiment": named.name,
        "file": named.file,
        "spec": json.loads(named.spec_json),
        "stages": stages,
        "meanings": len(store.history(named.name)),
    }


def _shown_stage(store: Store, fingerprint: str) -> dict[str, Any]:
    record = store.record(fingerprint)
    if record is None:
        raise CommandError(place=fingerprint, found="no record", wanted="a stage that ran", remedy="")
    directory = store.stage_dir(fingerprint)
    shown = record.to_json()
    shown["spec"] = json.loads(shown.pop("spec_json"))
    files = sorted(p for p in directory.rglob("*") if p.is_file()) if directory.is_dir() else []
    return {
        **shown,
        "size": size(record.n_bytes),
        "took": duration(record.seconds),
        "directory": str(directory),
        "files": {str(path.relative_to(directory)): path.stat().st_size for path in files},
        "results": _results(directory),
        "made_from": {edge.name: edge.parent for edge in store.parents(fingerprint)},
        "used_by": [_used(store, edge.child, edge.name) for edge in store.children(fingerprint)],
        "experiments": [n.name for n in store.experiments() if fingerprint in n.stages.values()],
    }


def _used(store: Store, child: str, name: str) -> dict[str, str]:
    record = store.record(child)
    return {"id": child, "as": name, "label": record.label if record is not None else ""}


def _results(directory: Path) -> dict[str, Any]:
    """Return the small JSON files a stage made: what a person wants to see first."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        if path.name != "manifest.json" and path.stat().st_size < 100_000:
            found[path.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def diff(arguments: argparse.Namespace) -> Answer:
    """Show what differs between two specs."""
    with existing_store(arguments.workspace) as store:
        before, after = _spec_of(store, arguments.a), _spec_of(store, arguments.b)
    changes = json_difference(before, after)
    data = {"changes": [{"path": c.path, "before": c.before, "after": c.after} for c in changes]}
    lines = [str(change) for change in changes] or ["no difference"]
    return Answer(data=data, text=lambda console: console.print("\n".join(lines), markup=False))


def _spec_of(store: Store, name: str) -> Any:
    named = _named(store, name)
    if named is not None:
        return json.loads(named.spec_json)
    record = store.record(find_stage(store, name))
    return json.loads(record.spec_json) if record is not None else {}


def sample(arguments: argparse.Namespace) -> Answer:
    """Let a checkpoint go on with a prompt, or answer it, writing as it goes."""
    if arguments.system is not None and not arguments.chat:
        raise CommandError(
            place="--system",
            found="a system message for a prompt that is no message",
            wanted="--chat with it",
            remedy="Add --chat, or leave --system out.",
        )
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    with existing_store(arguments.workspace) as store:
        checkpoint, tokenizer = stored_checkpoint(store, arguments.checkpoint)
    pieces = _stream(arguments, checkpoint, tokenizer, prompt)
    text = "".join(pieces) if arguments.json else _written("" if arguments.chat else prompt, pieces)
    data = {"prompt": prompt, "text": text, "checkpoint": checkpoint.name}
    if arguments.chat:
        data["system"] = arguments.system
    return Answer(data=data)


def _written(prompt: str, pieces: Any) -> str:
    """Write the text as it comes; what a model of the user's own raises is told on a line of its own."""
    whole = []
    try:
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            whole.append(piece)
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return "".join(whole)


def _stream(arguments: argparse.Namespace, checkpoint: Path, tokenizer: Path, prompt: str) -> Any:
    from modelfactory.generate import Sampling, load_chat, load_language_model

    sampling = Sampling(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
    )
    chat = load_chat(checkpoint, tokenizer) if arguments.chat else None  # refuses before weights are read
    model = load_language_model(checkpoint, tokenizer)
    if chat is None:
        return model.stream(prompt, sampling)
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    ids = chat.prompt([*system, {"role": "user", "content": prompt}])
    room = model.max_seq_len - len(ids)
    if room < 1:
        raise CommandError(
            place="PROMPT",
            found=f"{len(ids):,} tokens with the template around it",
            wanted=f"fewer than the {model.max_seq_len:,} of the model's context",
            remedy="Shorten it: a conversation whose beginning is cut is none.",
        )
    fitting = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
    return model.stream_from(ids, chat.until_end_of_turn(fitting), prefixed=False)


def step_of(role: str) -> int:
    """Return the step in a role such as `train@200`, 0 where it has none; roles are stored by name."""
    step = role.rpartition("@")[2]
    return int(step) if step.isdecimal() else 0


def stored_checkpoint(store: Store, name: str) -> tuple[Path, Path]:
    """Return the folders of a training or import stage and of its tokenizer.

    From then on a model of the user's own that it holds can be imported, whatever the verb does with it.

    Args:
        store: of the workspace.
        name: a fingerprint, its beginning, or the name of an experiment, import or promotion.

    Raises:
        CommandError: it has no stored checkpoint.
    """
    named = _named(store, name)
    if named is not None:
        roles = [role for role in named.stages if role.startswith("train@") or role == "import"]
        trained = [named.stages[role] for role in sorted(roles, key=step_of)]
        stored = store.states(trained)
        found = next((fp for fp in reversed(trained) if fp in stored), "")
    else:
        promoted = store.names.history(name)
        found = promoted[-1].checkpoint if promoted else find_stage(store, name)
    record = store.record(found) if found else None
    if record is None or record.kind not in {"train", "import"} or record.state != "stored":
        raise CommandError(
            place=name,
            found="no stored checkpoint" if record is None else f"a stage of kind {record.kind}",
            wanted="a training or import stage, or an experiment that has one",
            remedy="`factory show EXPERIMENT` lists its stages.",
        )
    _find_modules_of(store, found)
    return store.stage_dir(found), store.stage_dir(record.inputs["tokenizer"])


def _find_modules_of(store: Store, fingerprint: str) -> None:
    """Let the author's own architecture be imported: it lies beside the experiment file, as for workers.

    Also where the name has another meaning by now.
    """
    meanings = [meaning for named in store.experiments() for meaning in reversed(store.history(named.name))]
    for named in meanings:
        if fingerprint in named.stages.values() and named.file:
            folder = str(Path(named.file).parent)
            if folder not in sys.path:
                sys.path.append(folder)
