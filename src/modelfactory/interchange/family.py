"""What is known about one architecture of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange.config import Config
from modelfactory.interchange.nearest import lost, nearest
from modelfactory.interchange.pairing import Pairing
from modelfactory.interchange.used import as_used
from modelfactory.models import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Family:
    """Both directions between a `Decoder` and a config.json with its tensors."""

    architecture: str
    """Name of the class in transformers, as `architectures` of config.json has it."""
    model_type: str
    decoder: Callable[[Config], Decoder]
    """Reads the fields; raises SourceError for what a decoder cannot hold."""
    config: Callable[[Decoder], dict[str, Any] | None]
    """Writes the fields, without the vocabulary; what the family has no field for is left out. None when
    the decoder is of quite another kind."""
    pairings: Callable[[Decoder, int], list[Pairing]]
    """Takes the decoder and vocab_size."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of the class in transformers, for fields that are missing, where they differ from our general ones."""

    def read(self, fields: Mapping[str, Any], place: str) -> Decoder:
        """Return the decoder of a config.json.

        Raises:
            SourceError: a field that is missing, unknown, of another type, or beyond what a decoder holds.
        """
        try:
            return self.decoder(Config(fields, place, self.defaults))
        except SpecError as error:
            raise SourceError(
                place=f"{place}: {error.place}",
                found=error.found,
                wanted=error.wanted,
                remedy=f"It is what config.json of a {self.architecture} comes to: correct its fields.",
            ) from error


def family_of(
    decoder: Decoder, families: Sequence[Family], of: str = "transformers"
) -> tuple[Family, dict[str, Any]]:
    """Return the first family that holds the decoder whole, and the fields of its config.json.

    Whether it does is found out by reading back what was written: nothing can get lost in silence.

    Raises:
        SpecError: none of these, all that `of` has, does; the one that lacks fewest fields is named.
    """
    decoder = as_used(decoder)
    for family in families:
        fields = family.config(decoder)
        if fields is not None and not lost(family, fields, decoder, decoder).told:
            return family, fields
    raise SpecError(
        place="model",
        found=f"a decoder that no architecture of {of} known here holds; {nearest(decoder, families)}",
        wanted=f"one that is equal to a {', '.join(family.architecture for family in families)}",
        remedy="Train one of these to export it; its weights can be had as they are with load_model.",
    )
