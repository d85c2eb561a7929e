"""Of a decoder that no family holds: the one that comes nearest, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput
from modelfactory.interchange.config import CONFIG
from modelfactory.interchange.used import as_used, shortest_pattern
from modelfactory.spec import difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.interchange.family import Family
    from modelfactory.models import Block, Decoder

MOST_SHOWN = 4
"""Differences named in an error."""
MOST_VALUES = 4
"""Values of one kind of layer that all layers of the kind are given, one after the other."""
PARTS = ("mixer", "feed_forward", "norm", "placement")


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What of a decoder a family does not hold."""

    told: tuple[str, ...]
    is_refused: bool = False
    """Whether one of them is a field that the family refuses to read."""


def lost(family: Family, fields: dict[str, Any], decoder: Decoder, written: Decoder) -> Lost:
    """Return what differs from the decoder when the family reads the fields that it wrote of `written`.

    Blocks are named by their place in the longer of both patterns.
    """
    try:
        back = family.read(fields, CONFIG)
    except InvalidInput as error:
        name = error.place.removeprefix(f"{CONFIG}: ")
        refused = f"{name} in its {CONFIG}, which may not be {error.found}, only {error.wanted}"
        return Lost(told=(refused, *_changes(written, decoder)), is_refused=True)
    return Lost(told=_changes(replace(back, initial=decoder.initial), decoder))


def _changes(there: Decoder, here: Decoder) -> tuple[str, ...]:
    used = as_used(there)
    n = max(len(used.blocks), len(here.blocks))
    there, here = (replace(each, blocks=tuple(each.layers())[:n]) for each in (used, here))
    changes = difference(there, here)
    return tuple(f"{each.path}: {each.before} there, {each.after} here" for each in changes)


def nearest(decoder: Decoder, families: Sequence[Family]) -> str:
    """Say which family lacks least of a decoder, and what; of equally near ones the first.

    Families are asked for what they have of the decoder itself, and where its layers differ, for one whose
    layers of the same kind are alike.
    """
    near: list[tuple[int, bool, str]] = []
    for family, written in product(families, [decoder, *_evened(decoder)]):
        if (fields := family.config(written)) is not None:
            found = lost(family, fields, decoder, written)
            alike = "" if written is decoder else ", its layers alike"
            told = f"{family.architecture} comes nearest{alike}, but for {_listed(found.told)}"
            near.append((len(found.told), found.is_refused, told))
    return min(near, key=lambda each: each[:2])[2] if near else _kinds(decoder)


def _listed(told: Sequence[str]) -> str:
    more = f"; and {len(told) - MOST_SHOWN} more" if len(told) > MOST_SHOWN else ""
    return "; ".join(told[:MOST_SHOWN]) + more


def _kinds(decoder: Decoder) -> str:
    """Return what its layers are, for a decoder to which no family comes near."""
    parts = [(block.mixer, block.feed_forward, block.norm) for block in decoder.blocks]
    kinds = {" + ".join(type(part).__name__ for part in block) for block in parts}
    return f"none has these layers together: {', '.join(sorted(kinds))}"


def _evened(decoder: Decoder) -> Iterator[Decoder]:
    """Yield decoders in which parts of the same class have one value: each part alone, all, whole blocks.

    Each of the first values has its turn, so that none is taken for the usual one.
    """
    firsts = range(min(len(decoder.blocks), MOST_VALUES))
    patterns = [
        [_evened_block(block, decoder, names, n) for block in decoder.blocks]
        for names in chain(((name,) for name in PARTS), [PARTS])
        for n in firsts
    ]
    patterns += [[decoder.blocks[n]] for n in firsts]
    evened = (replace(decoder, blocks=shortest_pattern(blocks)) for blocks in patterns)
    yield from dict.fromkeys(each for each in evened if each != decoder)


def _evened_block(block: Block, decoder: Decoder, names: Sequence[str], n: int) -> Block:
    """Return the block with the n-th value of each part's class; the first, where there are fewer."""
    parts = {}
    for name in names:
        kind = type(getattr(block, name))
        values = dict.fromkeys(getattr(each, name) for each in decoder.blocks)
        known = [value for value in values if type(value) is kind]
        parts[name] = known[n] if n < len(known) else known[0]
    return replace(block, **parts)
