"""A folder in Hugging Face format, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError
from modelfactory.interchange.config import CONFIG, Config, read_json
from modelfactory.interchange.families import family_named
from modelfactory.interchange.imported import Imported
from modelfactory.interchange.safetensors_files import SafetensorsFolder
from modelfactory.interchange.tokenizer_checks import check_tokenizer_files
from modelfactory.interchange.tokenizer_files import check_vocabulary, read_tokenizer
from modelfactory.interchange.weights import from_theirs, shapes_of

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.interchange.family import Family
    from modelfactory.models import Decoder


def import_hugging_face(
    folder: Path, *, eos_token: str | None = None, with_tokenizer: bool = True
) -> Imported:
    """Read config.json, the weights, and the tokenizer where there is one.

    Raises:
        SourceError: an architecture or a field that is not known; weights that are missing, left over, cut
            off or of another shape; a vocabulary smaller than the tokenizer's.
    """
    spec, vocab_size, family = outline(folder)
    place, config = str(folder / CONFIG), read_json(folder / CONFIG)
    template = check_tokenizer_files(folder, config)
    tokenizer = read_tokenizer(folder, config, eos_token) if with_tokenizer else None
    check_vocabulary(tokenizer, vocab_size, place)
    with SafetensorsFolder(folder) as weights:
        pairings = family.pairings(spec, vocab_size)
        state = from_theirs(weights, pairings, shapes_of(spec, vocab_size), str(folder))
        dtypes = sorted({weights.dtype(name) for name in weights.names()})
    facts = {
        "format": "hugging face",
        "architecture": family.architecture,
        "dtype": "+".join(dtypes),
        "chat_template": template,
    }
    return Imported(spec=spec, vocab_size=vocab_size, state=state, tokenizer=tokenizer, facts=facts)


def outline(folder: Path) -> tuple[Decoder, int, Family]:
    """Return what config.json alone says: the model, the rows of its vocabulary, and the family.

    Raises:
        SourceError: an architecture or a field that is not known.
    """
    fields = read_json(folder / CONFIG)
    place = str(folder / CONFIG)
    family = _family(fields, place)
    vocab_size = Config(fields, place).count("vocab_size")
    read = {name: value for name, value in fields.items() if name != "vocab_size"}
    return family.read(read, place), vocab_size, family


def _family(fields: dict[str, Any], place: str) -> Family:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise SourceError(
            place=f"{place}: architectures",
            found=repr(names) if names else "nothing",
            wanted="the name of one architecture, such as LlamaForCausalLM",
            remedy="Give the folder that save_pretrained of a causal language model wrote.",
        )
    return family_named(str(names[0]), f"{place}: architectures")
