"""What a training run needs to know of a model it starts from, before its weights are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.data import Pin, pin_file
from modelfactory.errors import SourceError
from modelfactory.interchange.hugging_face import outline
from modelfactory.interchange.importing import files_of, format_of, import_model, tokenizer_of
from modelfactory.interchange.stage import ImportedModel
from modelfactory.tokens import TokenizerFile, importing

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.data import PinCache
    from modelfactory.models import Decoder


def architecture_of(path: str | Path, *, max_seq_len: int | None = None) -> Decoder:
    """Return the model of a folder in Hugging Face format, for an experiment that starts from it.

    Reads config.json alone; of the other formats that `import_model` knows, all of it.

    Args:
        path: the folder.
        max_seq_len: of training, at most that of the model, and the same where positions are learned.

    Raises:
        SourceError: it cannot be imported.
        SpecError: it cannot have that context.
    """
    place = Path(path)
    if format_of(place) == "hugging face":
        found = outline(place)[0]
    else:
        found = import_model(place, with_tokenizer=False).spec
    return found if max_seq_len is None else replace(found, max_seq_len=max_seq_len)


def located(path: str | Path) -> Path:
    """Return where a model is, from the root of the file system.

    A file that is a link keeps its name, which says what it is: caches of downloads call the file that a link
    leads to by its hash.

    Raises:
        SourceError: nothing is there, or something that is not read here.
    """
    place = Path(path)
    format_of(place)  # refuses what is none
    return place.resolve() if place.is_dir() else place.parent.resolve() / place.name


def pin_model(path: str | Path, cache: PinCache, *, report: Callable[[Path], None] = lambda _: None) -> Pin:
    """Return the pin of all files that an import reads, by their names there, wherever links lead.

    Args:
        path: the folder or file.
        cache: hashes of files seen before.
        report: told each file before it is read.

    Raises:
        SourceError: it cannot be imported, or a file cannot be read.
    """
    place = located(path)
    files = []
    for each in files_of(place):
        report(each)
        files.append(replace(pin_file(each, cache).files[0], path=each.name))
    return Pin(kind="files", root=str(place if place.is_dir() else place.parent), files=tuple(files))


def imported_model(path: str | Path) -> ImportedModel:
    """Return the spec of the stage that imports it, the same as `factory import` makes."""
    found = tokenizer_of(path)
    bos = None if found is None or found.bos_id is None else found.decode([found.bos_id])
    return ImportedModel(path=str(located(path)), bos_token=bos)


def check_tokenizer(path: str | Path, tokenizer: object, place: str) -> None:
    """Refuse a tokenizer whose ids stand for other tokens than the model's rows do.

    Raises:
        SourceError: naming what differs.
    """
    own = tokenizer_of(path)
    if own is None:
        return  # the import stage compares the counts
    file = Path(path) / "tokenizer.json"
    remedy = f"Use TokenizerFile(path={str(file)!r}, eos_token={own.decode([own.eos_id])!r})."
    if not isinstance(tokenizer, TokenizerFile):
        found = "a tokenizer that is trained anew"
    else:
        found = _unlike(_text(Path(tokenizer.path)), own.to_json())
    if found:
        raise SourceError(place=place, found=found, wanted=f"the tokenizer of {path}", remedy=remedy)


def _text(path: Path) -> str:
    content = importing.read(path)
    importing.parsed(content, str(path))
    return content.decode("utf-8")


def _unlike(given: str, own: str) -> str:
    from tokenizers import Tokenizer

    one, other = (Tokenizer.from_str(text).get_vocab(with_added_tokens=True) for text in (given, own))
    differing = sorted(token for token in one.keys() | other.keys() if one.get(token) != other.get(token))
    if not differing:
        return ""
    shown = ", ".join(map(repr, differing[:3]))
    return f"{len(one):,} tokens, of which {len(differing):,} have other ids or none there, such as {shown}"
