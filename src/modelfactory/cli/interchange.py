"""`factory import` and `factory export`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelfactory.cli.answer import Answer
from modelfactory.cli.inspecting import stored_checkpoint
from modelfactory.cli.setting import existing_store, say
from modelfactory.data import Pin, pin_file
from modelfactory.engine.protocol import Finished
from modelfactory.errors import CommandError, DiskFull, SourceError
from modelfactory.plan import with_added
from modelfactory.plan.planned import PlannedStage, stage_id
from modelfactory.plan.planning import RUN
from modelfactory.plan.states import with_states
from modelfactory.report.numbers import size
from modelfactory.run.making import record_of
from modelfactory.spec import load_object, to_json
from modelfactory.stage import Progress, Site
from modelfactory.store import Store, this_process
from modelfactory.tokens import TokenizerFile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from modelfactory.store import Holder
    from modelfactory.tokens.tokenizer import Tokenizer

ROLE = "import"
"""Kind of the stage, and its role under the name it is given."""


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add what `import` takes."""
    parser.add_argument(
        "path",
        metavar="DIR",
        type=Path,
        help="folder in Hugging Face format, GGUF file, or checkpoint of llama2.c",
    )
    parser.add_argument("--name", required=True, help="what it is called from now on, as an experiment is")
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="tokenizer.json, or a tokenizer of llama2.c (default: the one beside the weights)",
    )
    parser.add_argument("--eos-token", metavar="TOKEN", help="ends every text (default: what the files say)")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add what `export` takes."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a training or import stage, or an experiment: its last"
    )
    parser.add_argument(
        "--to", required=True, metavar="DIR", type=Path, help="a folder (hf) or file (gguf) not there yet"
    )
    parser.add_argument(
        "--format",
        choices=("hf", "gguf"),
        default="hf",
        help="hf: for transformers and what reads its files; gguf: for llama.cpp (default: hf)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of the weights; float32 keeps every bit (default: float32)",
    )
    parser.add_argument(
        "--licence", help="of the weights, for the model card, by its SPDX name: apache-2.0, mit, ..."
    )
    parser.add_argument(
        "--max-shard-mb", metavar="N", type=int, help="largest file of weights, hf only (default: 5000)"
    )


def import_(arguments: argparse.Namespace) -> Answer:
    """Keep a model from elsewhere in the workspace, as if it had been trained here."""
    from modelfactory.interchange.starting import located

    path, name = located(arguments.path), arguments.name
    with Store.open(arguments.workspace) as store, ExitStack() as stack:
        _refuse_taken(store, name)
        tokenizer = _read_tokenizer(path, arguments.tokenizer, arguments.eos_token)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = _tokenizer_file(path, tokenizer, folder, own=arguments.tokenizer is None)
        stages, pins = _planned(path, file, tokenizer, store, label=name)
        for digest, pin in pins.items():
            store.write_pin(digest, json.dumps(pin.to_json(), ensure_ascii=False))
        holder = this_process()  # what it publishes is safe from `gc` until it leaves
        stack.callback(store.leave, holder)
        made = [_make(store, stage, holder) for stage in stages]
        roles = {stage.kind: stage.id for stage in stages}
        store.name_experiment(name, "", json.dumps(to_json(stages[-1].spec)), with_added(store, name, roles))
        facts = json.loads((store.stage_dir(roles[ROLE]) / "model.json").read_text("utf-8"))
    data = {"name": name, "stages": roles, "was_there": not made[-1]}
    data |= {key: facts[key] for key in ("n_parameters", "vocab_size", "imported")}
    return Answer(data=data, text=lambda console: console.print(_told(data), markup=False))


def _told(data: Mapping[str, Any]) -> str:
    imported = data["imported"]
    return (
        f"{data['name']}: {imported['architecture']} of {data['n_parameters']:,} parameters, "
        f"{imported['format']}, {imported['dtype']}; stage {data['stages'][ROLE][:10]}\n"
        f"go on with: factory sample {data['name']} PROMPT"
    )


def _refuse_taken(store: Store, name: str) -> None:
    if not name.strip():
        raise CommandError(place="--name", found=repr(name), wanted="a name", remedy="Give one.")
    for known in store.experiments():
        if known.name == name and ROLE not in known.stages:
            raise CommandError(
                place="--name",
                found=f"{name!r}, which is an experiment",
                wanted="a name that is free, or that of an earlier import",
                remedy="Choose another.",
            )


def _read_tokenizer(path: Path, tokenizer: Path | None, eos_token: str | None) -> Tokenizer:
    from modelfactory.interchange import tokenizer_of

    found = tokenizer_of(path, tokenizer=tokenizer, eos_token=eos_token)
    if found is None:
        raise SourceError(
            place=str(path),
            found="no tokenizer beside the weights",
            wanted="tokenizer.json, without which the model can neither read nor write",
            remedy="Give one with --tokenizer FILE.",
        )
    return found


def _planned(
    path: Path, file: Path, tokenizer: Tokenizer, store: Store, label: str
) -> tuple[list[PlannedStage], dict[str, Pin]]:
    """Return the stages of tokenizer and weights, as a plan would have them, and their pins."""
    from modelfactory.interchange.stage import VERSION, ImportedModel
    from modelfactory.interchange.starting import pin_model

    spoken = TokenizerFile(path=str(file), eos_token=tokenizer.decode([tokenizer.eos_id]))
    of_tokenizer = pin_file(file, store.pins)
    run, version = RUN["tokenizer"]
    pins = {"tokenizer_file": of_tokenizer.digest}
    first = _stage("tokenizer", run, version, spoken, label=f"tokenizer of {label}", pins=pins)
    bos = None if tokenizer.bos_id is None else tokenizer.decode([tokenizer.bos_id])
    of_model = pin_model(path, store.pins, report=_reading)
    spec = ImportedModel(path=str(path), bos_token=bos)
    inputs, pins = {"tokenizer": first.id}, {"source": of_model.digest}
    run = "modelfactory.interchange.stage:run"
    second = _stage(ROLE, run, VERSION, spec, label=label, inputs=inputs, pins=pins)
    stages = with_states([first, second], store, {})
    return stages, {pin.digest: pin for pin in (of_tokenizer, of_model)}


def _reading(file: Path) -> None:
    """Tell somebody who watches which file is read: large ones take a while."""
    if sys.stderr.isatty():
        say(f"reading {file.name} ({size(file.stat().st_size)})")


def _tokenizer_file(path: Path, tokenizer: Tokenizer, folder: Path, *, own: bool) -> Path:
    """Return the file beside the weights, as an experiment would name it, else one made of what was read."""
    if own and (path / "tokenizer.json").exists():
        return path / "tokenizer.json"
    file = folder / "tokenizer.json"
    file.write_text(tokenizer.to_json(), encoding="utf-8")
    return file


def _stage(
    kind: str,
    run: str,
    version: int,
    spec: Any,
    *,
    label: str,
    pins: dict[str, str],
    inputs: Mapping[str, str] = MappingProxyType({}),
) -> PlannedStage:
    fingerprint = stage_id(kind, version, spec, {**inputs, **pins})
    return PlannedStage(
        id=fingerprint, kind=kind, label=label, run=run, version=version, spec=spec, inputs=inputs, pins=pins
    )


def _make(store: Store, stage: PlannedStage, holder: Holder) -> bool:
    """Carry out a stage in this process, unless it is stored; return whether it was made."""
    if stage.state == "stored" and not store.check_served(stage.id):
        return False
    claim = store.claim(stage.id, holder)
    if claim is None:
        raise CommandError(
            place=stage.label,
            found="another process that makes it",
            wanted="one at a time",
            remedy="Wait for it; `factory status` tells how far it is.",
        )
    aside: Path | None = None
    try:
        aside = store.new_aside(stage.id)
        result = _carried_out(store, stage, aside)
        known = store.states(stage.inputs.values())
        contents = {parent: record.content_sha256 for parent, record in known.items()}
        log = store.log_path(stage.id)
        record = record_of(stage, result, contents, host=holder.host, log=log, attempt=1)
        store.publish(claim, aside, record)
    except BaseException:
        if aside is not None:  # first: a full disk would not let the claim go
            shutil.rmtree(aside, ignore_errors=True)
        with suppress(DiskFull):  # what filled the disk is told, not what follows from it
            store.release(claim)
        raise
    return True


class _Parts:
    """Tells somebody who watches how far a stage is, each part once."""

    def __init__(self, label: str) -> None:
        self._label, self._told = label, -1

    def __call__(self, progress: Progress) -> None:
        if sys.stderr.isatty() and progress.unit == "parts" and progress.done > self._told:
            self._told = progress.done
            say(f"{self._label}: {progress.done} of {progress.total} parts")


def _carried_out(store: Store, stage: PlannedStage, aside: Path) -> Finished:
    started, clock = time.time(), time.monotonic()
    paths = {name: store.stage_dir(parent) for name, parent in stage.inputs.items()}
    paths |= {name: store.pin_path(digest) for name, digest in stage.pins.items()}
    site = Site(lake=store.lake, threads=1, report=_Parts(stage.label))
    load_object(stage.run)(stage.spec, paths, aside, site)
    manifest = store.seal(aside)
    return Finished(
        fingerprint=stage.id,
        content_sha256=manifest.content_sha256,
        n_bytes=manifest.n_bytes,
        started=started,
        seconds=time.monotonic() - clock,
    )


def export(arguments: argparse.Namespace) -> Answer:
    """Write a checkpoint for other libraries."""
    from modelfactory.interchange import export_stage

    if arguments.licence is not None and (not arguments.licence.strip() or "\n" in arguments.licence):
        raise CommandError(
            place="--licence",
            found=repr(arguments.licence),
            wanted="an SPDX name on one line, such as apache-2.0",
            remedy="Leave it out for a card that says none was given.",
        )
    with existing_store(arguments.workspace) as store:
        checkpoint, tokenizer = stored_checkpoint(store, arguments.checkpoint)
        options: dict[str, Any] = {"format": arguments.format, "dtype": arguments.dtype}
        options |= {"licence": arguments.licence, "lineage": checkpoint.name}
        if arguments.max_shard_mb is not None:
            if arguments.format == "gguf":
                raise CommandError(
                    place="--max-shard-mb",
                    found=f"{arguments.max_shard_mb} with --format gguf",
                    wanted="hf: a GGUF file is always one",
                    remedy="Leave it out.",
                )
            if arguments.max_shard_mb < 1:
                raise CommandError(
                    place="--max-shard-mb",
                    found=str(arguments.max_shard_mb),
                    wanted="a whole number of megabytes above 0",
                    remedy="Leave it out for files of 5000 MB.",
                )
            options["max_shard_bytes"] = arguments.max_shard_mb * 1_000_000
        architecture = export_stage(checkpoint, tokenizer, arguments.to, **options)
    data = {"checkpoint": checkpoint.name, "to": str(arguments.to), "architecture": architecture}
    told = f"{arguments.to}: {architecture}, {arguments.dtype}"
    return Answer(data=data, text=lambda console: console.print(told, markup=False))
