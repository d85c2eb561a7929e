"""What is known about one architecture of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput, SourceError, SpecError
from modelfactory.interchange.config import Config
from modelfactory.interchange.pairing import Pairing
from modelfactory.models import Block, Decoder, Experts
from modelfactory.spec import Change, difference

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SHOWN = 4
"""Differences named in an error."""


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


def family_of(decoder: Decoder, families: Sequence[Family]) -> tuple[Family, dict[str, Any]]:
    """Return the first family that holds the decoder whole, and the fields of its config.json.

    Whether it does is found out by reading back what was written: nothing can get lost in silence.

    Raises:
        SpecError: none does; the nearest one and what it lacks is named.
    """
    decoder = as_used(decoder)
    nearest: tuple[int, str, str] | None = None
    for family in families:
        fields = family.config(decoder)
        back = None if fields is None else _read_back(family, fields)
        if fields is None or back is None:
            continue
        lost = difference(replace(as_used(back), initial=decoder.initial), decoder)
        if not lost:
            return family, fields
        if nearest is None or len(lost) < nearest[0]:
            nearest = (len(lost), family.architecture, _told(lost))
    raise _fits_none(nearest, families)


def _read_back(family: Family, fields: dict[str, Any]) -> Decoder | None:
    """Return what the family makes of its own fields; None where it refuses them."""
    try:
        return family.read(fields, "config.json")
    except InvalidInput:
        return None


def _told(lost: Sequence[Change]) -> str:
    shown = lost[:MOST_SHOWN]
    return "; ".join(f"{change.path}: {change.before} there, {change.after} here" for change in shown)


def as_used(decoder: Decoder) -> Decoder:
    """Return the decoder without what only training looks at: further heads, learning rates, capacities."""
    blocks = shortest_pattern([_block_as_used(block) for block in decoder.layers()])
    return replace(decoder, blocks=blocks, multi_token=None, hidden_lr_scale=1.0)


def _block_as_used(block: Block) -> Block:
    experts = block.feed_forward
    if isinstance(experts, Experts) and experts.capacity is not None:
        return replace(block, feed_forward=replace(experts, capacity=None))
    return block


def shortest_pattern(layers: Sequence[Block]) -> tuple[Block, ...]:
    """Return the shortest pattern that gives these blocks when it repeats."""
    for n in range(1, len(layers)):
        if all(block == layers[i % n] for i, block in enumerate(layers)):
            return tuple(layers[:n])
    return tuple(layers)


def _fits_none(nearest: tuple[int, str, str] | None, families: Sequence[Family]) -> SpecError:
    names = ", ".join(family.architecture for family in families)
    near = f"; {nearest[1]} comes nearest, but for {nearest[2]}" if nearest is not None else ""
    return SpecError(
        place="model",
        found=f"a decoder that no architecture of transformers known here holds{near}",
        wanted=f"one that is equal to a {names}",
        remedy="Train one of these to export it; its weights can be had as they are with load_model.",
    )
