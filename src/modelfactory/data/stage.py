"""The documents stage: pinned sources to a table of the lake, with an account of what was dropped."""

from __future__ import annotations

import errno
import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modelfactory.data import lake
from modelfactory.data.admission import Tally, admitted
from modelfactory.data.checks import check_dataset, empty_part, nothing_left
from modelfactory.data.drops import Drops
from modelfactory.data.frame import prepared
from modelfactory.data.parts import Spilled, write_parts
from modelfactory.data.pins import Pin
from modelfactory.errors import DiskFull
from modelfactory.spec import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from modelfactory.data.dataset import Dataset
    from modelfactory.data.parts import Written
    from modelfactory.stage import Site


def run(spec: Dataset, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Write the documents of a dataset to the lake and their account to `output_dir`.

    Files: `documents.json` (counts and the hash of all rows), `drops.json` (documents by reason),
    `drops.parquet` (samples), `observed/lake.json` (table, snapshot, files). All but the last are a pure
    function of spec and pinned bytes.

    Args:
        spec: Which documents to keep.
        inputs: Pin files, `source0` for the first source and so on.
        output_dir: Exists and is empty.
        site: Where the lake is, and how many threads may be used.

    Raises:
        SourceError: a source changed after the plan or cannot be read, or no document is left.
        StageFailed: a filter function of the author failed.
        DiskFull: no space is left for the table; nothing of it stays.
    """
    pins = [Pin.read(inputs[f"source{n}"]) for n in range(len(spec.sources))]
    check_dataset(spec, pins)
    prepared(site.threads)
    tally, drops = Tally(), Drops()
    with _named_when_full(site.lake), lake.workbench(site.lake) as bench:
        documents = admitted(spec, pins, tally=tally, drops=drops, site=site)
        for n, step in enumerate(spec.dedup):
            documents = step.survivors(Spilled.write(documents, bench / f"{n}.arrow"), drops)
        written = write_parts(documents, bench / "data")
        _require_documents(spec, tally, drops, written)
        name = _table_name(site.fingerprint or _notebook_name(spec, pins), written)
        summary = {"modelfactory.dataset": spec.name, "modelfactory.content": written.content_sha256}
        table = lake.commit(site.lake, name, written.files, summary)
    with _named_when_full(output_dir):
        table.write(output_dir)
        _write_account(output_dir, _account(spec, pins, tally, drops, written), drops)


def _require_documents(spec: Dataset, tally: Tally, drops: Drops, written: Written) -> None:
    if tally.n_in_part == 0 and tally.n_read > 0:
        raise empty_part(spec, tally.n_read)
    if written.n_documents == 0:
        raise nothing_left(spec, tally.n_in_part, _counts(drops))


def _table_name(stage: str, written: Written) -> str:
    """Name the content as well: a table never changes, also when other code makes the stage anew."""
    return f"d_{stage[:24]}_{written.content_sha256[:16]}"


def _notebook_name(spec: Dataset, pins: Sequence[Pin]) -> str:
    parts = [fingerprint(spec), *(pin.digest for pin in pins)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _account(
    spec: Dataset, pins: Sequence[Pin], tally: Tally, drops: Drops, written: Written
) -> dict[str, Any]:
    return {
        "n_read": tally.n_read,
        "n_other_part": tally.n_read - tally.n_in_part,
        "n_in_part": tally.n_in_part,
        "n_bytes_in_part": tally.n_bytes_in_part,
        "n_documents": written.n_documents,
        "n_bytes": written.n_bytes,
        "dropped": drops.by_reason(),
        "removed": {
            f"{unit}s": {"n": count, "n_bytes": drops.unit_bytes[unit]}
            for unit, count in sorted(drops.units.items())
        },
        "content_sha256": written.content_sha256,
        "by_source": {
            f"source{n}": {
                "kind": pin.kind,
                "pattern": source.pattern,
                "n_files": len(pin.files),
                "n_in_part": tally.by_source[f"source{n}"],
                "n_documents": written.by_source[f"source{n}"],
                "n_bytes": written.bytes_by_source[f"source{n}"],
            }
            for n, (source, pin) in enumerate(zip(spec.sources, pins, strict=True))
        },
    }


def _write_account(output_dir: Path, account: Mapping[str, Any], drops: Drops) -> None:
    for name, data in (("documents.json", account), ("drops.json", _counts(drops))):
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        (output_dir / name).write_text(text, encoding="utf-8")
    drops.write_samples(output_dir / "drops.parquet")


def _counts(drops: Drops) -> dict[str, int]:
    return {reason: of["n_documents"] for reason, of in drops.by_reason().items()}


@contextmanager
def _named_when_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and "No space left" not in str(error):
            raise
        raise DiskFull(f"{folder}: no space left on the device. Free some, then run again.") from error
