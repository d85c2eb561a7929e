"""A model from a folder or a file, whatever its format."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.errors import SourceError
from modelfactory.interchange import tokenizer_files
from modelfactory.interchange.config import CONFIG, read_json
from modelfactory.interchange.origin import origin_of
from modelfactory.interchange.safetensors_files import weight_files
from modelfactory.interchange.tokenizer_checks import check_tokenizer_files
from modelfactory.tokens.importing import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.interchange.imported import Imported
    from modelfactory.tokens.tokenizer import Tokenizer

Format = Literal["hugging face", "gguf", "llama2.c"]
_GGUF = b"GGUF"
_ZIP, _PICKLE = b"PK", b"\x80"
FOLDER_FILES = (
    "*.safetensors",
    "*.json",
    "*.jinja",
)
"""What is read of a folder."""


def import_model(
    path: str | Path,
    *,
    tokenizer: str | Path | None = None,
    eos_token: str | None = None,
    with_tokenizer: bool = True,
) -> Imported:
    """Read a model.

    Args:
        path: a folder in Hugging Face format (config.json and safetensors), a GGUF file, quantised or not, or
            a checkpoint of llama2.c.
        tokenizer: a tokenizer.json, or a tokenizer of llama2.c, in place of the one beside the weights.
        eos_token: the token that ends a text, where the files do not say, or to overrule them.
        with_tokenizer: False leaves it out.

    Raises:
        SourceError: what is not known here, does not fit, or is damaged; named.
        CommandError: a GGUF file without the package `gguf`.
    """
    place = Path(path)
    kind = format_of(place)
    own = with_tokenizer and tokenizer is None
    found = _model(place, kind, eos_token, with_tokenizer=own)
    if with_tokenizer and tokenizer is not None:
        read = tokenizer_of(place, tokenizer=tokenizer, eos_token=eos_token)
        tokenizer_files.check_vocabulary(read, found.vocab_size, str(place))
        found = replace(found, tokenizer=read)
    if found.tokenizer is None:
        return found
    origin = tokenizer_origin(place, found.tokenizer)
    told = {"prefix_id": found.prefix_id} | of_origin(origin, found.tokenizer.bos_id)
    return replace(found, facts={**found.facts, **told})


def of_origin(origin: Mapping[str, Any] | None, bos_id: int | None) -> dict[str, Any]:
    """Return the facts of how texts become tokens there: the token before each, if there is one."""
    return {} if origin is None else {"origin": origin, "adds_prefix": bos_id is not None}


def _model(place: Path, kind: Format, eos_token: str | None, *, with_tokenizer: bool) -> Imported:
    if kind == "gguf":
        from modelfactory.interchange.gguf_reading import import_gguf

        return import_gguf(place, eos_token=eos_token, with_tokenizer=with_tokenizer)
    if kind == "llama2.c":
        from modelfactory.interchange.llama2c import import_llama2c

        return import_llama2c(place)
    from modelfactory.interchange.hugging_face import import_hugging_face

    return import_hugging_face(place, eos_token=eos_token, with_tokenizer=with_tokenizer)


def tokenizer_of(
    path: str | Path, *, tokenizer: str | Path | None = None, eos_token: str | None = None
) -> Tokenizer | None:
    """Return the tokenizer alone, without reading weights; None where there is none.

    Raises:
        SourceError: it is of a kind that is not known, damaged, or does not say what ends a text.
    """
    place = Path(path) if tokenizer is None else Path(tokenizer)
    if tokenizer is not None:
        return _tokenizer_file(place, eos_token)
    kind = format_of(place)
    if kind == "gguf":
        from modelfactory.interchange.gguf_reading import tokenizer_in

        return tokenizer_in(place, eos_token)
    if kind == "llama2.c":
        return None
    config = read_json(place / CONFIG)
    check_tokenizer_files(place, config)
    return tokenizer_files.read_tokenizer(place, config, eos_token)


def tokenizer_origin(path: str | Path, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return how the tokenizer beside, or in, the weights is set up; None where `tokenizer` is another.

    Raises:
        SourceError: one of its files is damaged.
    """
    place = Path(path)
    kind = format_of(place)
    if kind == "hugging face":
        return origin_of(place, read_json(place / CONFIG), tokenizer)
    if kind == "gguf":
        from modelfactory.interchange.gguf_reading import origin_in

        return origin_in(place, tokenizer)
    return None


def _tokenizer_file(place: Path, eos_token: str | None) -> Tokenizer:
    if place.suffix != ".json":
        from modelfactory.interchange.llama2c import read_tokenizer

        return read_tokenizer(place, eos_token)
    if eos_token is None:
        raise SourceError(
            place=str(place),
            found="a tokenizer.json alone, which does not say what ends a text",
            wanted="the name of that token",
            remedy="Give it with eos_token (--eos-token).",
        )
    return tokenizer_files.made(read(place), eos_token, None, str(place))


def format_of(path: Path) -> Format:
    """Return what a folder or file is.

    Raises:
        SourceError: nothing is there, or something that is not read here.
    """
    try:
        os.fspath(path).encode("utf-8")
        if path.is_dir():
            return "hugging face"
        if not path.is_file():
            raise _unknown(path, "nothing", "Correct the path.")
        with path.open("rb") as file:
            start = file.read(len(_GGUF))
    except UnicodeEncodeError as error:
        raise _unknown(repr(os.fspath(path)), "a name that is not UTF-8", "Rename it.") from error
    except OSError as error:
        raise _unknown(path, f"nothing that can be read ({error.strerror})", "Correct the path.") from error
    if start == _GGUF:
        return "gguf"
    if start.startswith((_ZIP, _PICKLE)):
        raise _unknown(
            path,
            "pickled weights, which can run any code when they are read",
            "Load it where you trust it, and save it as safetensors.",
        )
    if path.suffix == ".bin":
        return "llama2.c"
    remedy = "Give the folder it lies in, with its config.json." if path.suffix == ".safetensors" else ""
    raise _unknown(path, f"a file {path.name}", remedy)


def files_of(path: Path) -> list[Path]:
    """Return the files an import reads: those that say what the model is."""
    if not path.is_dir():
        return [path]
    there = {file for pattern in FOLDER_FILES for file in path.glob(pattern) if file.is_file()}
    return sorted(there | set(weight_files(path)))


def _unknown(path: Path | str, found: str, remedy: str) -> SourceError:
    wanted = "a folder in Hugging Face format, a GGUF file, or a checkpoint of llama2.c (.bin)"
    return SourceError(place=str(path), found=found, wanted=wanted, remedy=remedy)
