"""The import stage: a model from elsewhere, kept as if it had been trained here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.data import Pin
from modelfactory.errors import SourceError
from modelfactory.interchange.importing import files_of, import_model, of_origin, tokenizer_origin
from modelfactory.interchange.tokenizer_files import check_vocabulary
from modelfactory.spec import check_types, not_identity, to_json
from modelfactory.stage import Progress
from modelfactory.tokens import load_tokenizer
from modelfactory.train.disk import full_disk_named
from modelfactory.train.loading import FACTS, FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.interchange.imported import Imported
    from modelfactory.stage import Site
    from modelfactory.tokens.tokenizer import Tokenizer

VERSION = 2


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """Weights of a folder or file; which bytes, its pin says."""

    path: str = not_identity()
    """Where it is; see `import_model`."""
    bos_token: str | None
    """Starts every text; None where the token that ends texts does."""

    def __post_init__(self) -> None:
        """Check the types."""
        check_types(self)


def run(spec: ImportedModel, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Write `checkpoint/` and `model.json`, as a training stage does; step and tokens seen are 0.

    Args:
        spec: what is imported.
        inputs: `source`, the pin file of all files that are read; `tokenizer`, a tokenizer stage.
        output_dir: exists and is empty.
        site: told how far it is.

    Raises:
        SourceError: the files changed after they were pinned, or cannot be imported.
        DiskFull: no space for the checkpoint.
    """
    from modelfactory.train import checkpoint

    site.report(Progress(done=0, total=3, unit="parts"))
    _refuse_changed(Pin.read(inputs["source"]), Path(spec.path))
    site.report(Progress(done=1, total=3, unit="parts"))
    imported = import_model(spec.path, with_tokenizer=False)
    tokenizer = load_tokenizer(inputs["tokenizer"])
    check_vocabulary(tokenizer, imported.vocab_size, spec.path)
    origin = tokenizer_origin(spec.path, tokenizer)
    state = {f"model/{name}": tensor for name, tensor in imported.state.items()}
    site.report(Progress(done=2, total=3, unit="parts"))
    bos_id = None if spec.bos_token is None else tokenizer.token_id(spec.bos_token)
    facts = _facts(imported, tokenizer, bos_id) | of_origin(origin, bos_id)
    text = json.dumps(facts, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with full_disk_named(output_dir):
        checkpoint.save(state, output_dir / FOLDER)
        (output_dir / FACTS).write_text(text, encoding="utf-8")
    site.report(Progress(done=3, total=3, unit="parts"))


def _facts(imported: Imported, tokenizer: Tokenizer, bos_id: int | None) -> dict[str, object]:
    spec, vocab_size = imported.spec, imported.vocab_size
    return {
        "architecture": to_json(spec),
        "vocab_size": vocab_size,
        "tokenizer_vocab_size": tokenizer.vocab_size,
        "prefix_id": tokenizer.eos_id if bos_id is None else bos_id,
        "step": 0,
        "n_tokens_seen": 0,
        "n_parameters": spec.n_parameters(vocab_size),
        "flops_per_token": spec.flops_per_token(vocab_size, spec.max_seq_len),
        "precision": "fp32",
        "imported": dict(imported.facts),
    }


def _refuse_changed(pin: Pin, place: Path) -> None:
    pinned = {file.path for file in pin.files}
    if new := [file for file in files_of(place) if file.name not in pinned]:
        raise SourceError(
            place=str(new[0]),
            found="a file that was not there when the import began",
            wanted=f"the {len(pinned)} files that were",
            remedy="Import again when the folder is at rest.",
        )
    for file in pin.files:
        path = Path(pin.root) / file.path
        try:
            with path.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            found = f"no readable file ({error.strerror})"
        if found != file.sha256:
            raise SourceError(
                place=str(path),
                found="other content than when the import began",
                wanted=f"SHA-256 {file.sha256}",
                remedy="Import again when the file is at rest.",
            )
