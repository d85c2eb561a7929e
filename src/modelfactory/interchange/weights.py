"""Weights over the bridge: every tensor of theirs accounted for, none made up, none left over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from modelfactory.errors import CommandError, FactoryError, SourceError, StageFailed, nearest
from modelfactory.interchange.pairing import to_ours, to_theirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import torch

    from modelfactory.interchange.pairing import Pairing
    from modelfactory.models import Decoder

IGNORED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of names of constants that older files carry: tables and masks that follow from the architecture."""
HEAD = "lm_head.weight"
_MOST = 5


class Weights(Protocol):
    """Tensors by name, such as `SafetensorsFolder`."""

    def names(self) -> set[str]:
        """Return the names of all tensors."""

    def place(self, name: str) -> Path:
        """Return the file a tensor lies in."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    def get(self, name: str) -> torch.Tensor:
        """Read a tensor."""


def shapes_of(spec: Decoder, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of our tensors by name; allocates nothing."""
    import torch

    from modelfactory.models.decoder_module import DecoderModule

    with torch.device("meta"):
        module = DecoderModule(spec, vocab_size)
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def from_theirs(
    weights: Weights, pairings: Sequence[Pairing], shapes: Mapping[str, tuple[int, ...]], place: str
) -> dict[str, torch.Tensor]:
    """Return our tensors, float32.

    Raises:
        SourceError: a tensor is missing, left over, of another shape or not finite, or there is a second,
            different head.
    """
    assert {pairing.ours for pairing in pairings} == set(shapes), "every tensor of ours is paired"
    renamed = _with_prefix(pairings, weights.names())
    wanted = {part.name: part.shape for pairing in renamed for part in pairing.theirs}
    _check_names(weights, wanted, place)
    _check_shapes(weights, wanted)
    return {
        pairing.ours: to_ours(
            pairing, [_read(weights, part.name) for part in pairing.theirs], shapes[pairing.ours]
        )
        for pairing in renamed
    }


def all_theirs(
    state: Mapping[str, torch.Tensor], pairings: Iterable[Pairing], dtype: str
) -> dict[str, torch.Tensor]:
    """Return their tensors of `dtype`, such as "float32"; what is shared is there once, as in our state.

    Raises:
        StageFailed: a number is not finite.
        CommandError: a number is too large for `dtype`.
    """
    import torch

    theirs: dict[str, torch.Tensor] = {}
    for pairing in pairings:
        tensor = state[pairing.ours].detach().cpu()
        narrow = tensor.to(getattr(torch, dtype))
        if not all_finite(narrow):
            raise _not_held(pairing.ours, tensor, dtype)
        theirs |= to_theirs(pairing, narrow)
    return theirs


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers are finite; needs no memory of the tensor's size."""
    import torch

    if tensor.numel() == 0:
        return True
    lowest, highest = torch.aminmax(tensor)  # NaN wins over any number
    return math.isfinite(lowest.item()) and math.isfinite(highest.item())


def _not_held(name: str, tensor: torch.Tensor, dtype: str) -> FactoryError:
    if not all_finite(tensor):
        return StageFailed(
            f"{name}: NaN or infinite numbers. No library can use such a model: look at the run's loss, and "
            "export an earlier checkpoint."
        )
    return CommandError(
        place=f"{name} as {dtype}",
        found=f"the number {tensor.abs().max().item():,g}",
        wanted=f"at most {_largest(dtype):,g}, the largest of {dtype}",
        remedy="Export as float32."
        if dtype == "bfloat16"
        else "Export as bfloat16, which holds numbers nearly as large as float32 does, or as float32.",
    )


def _largest(dtype: str) -> float:
    """Return the largest number of a type of torch."""
    import torch

    return float(torch.finfo(getattr(torch, dtype)).max)


def _read(weights: Weights, name: str) -> torch.Tensor:
    found = weights.get(name).float()
    if not all_finite(found):
        raise SourceError(
            place=f"{weights.place(name)}: {name}",
            found="NaN or infinite numbers",
            wanted="finite weights: with these every answer of the model would be NaN",
            remedy="The model has diverged or the file is damaged: take an earlier one, or copy it again.",
        )
    return found


def _with_prefix(pairings: Sequence[Pairing], names: set[str]) -> list[Pairing]:
    """Leave the prefix of the inner model out where the file does, as published GPT-2 files do."""
    prefixes = {part.name.partition(".")[0] + "." for pairing in pairings for part in pairing.theirs}
    bare = [
        prefix for prefix in prefixes - {"lm_head."} if not any(name.startswith(prefix) for name in names)
    ]
    if not bare:
        return list(pairings)
    return [
        pairing._replace(
            theirs=tuple(part._replace(name=part.name.removeprefix(bare[0])) for part in pairing.theirs)
        )
        for pairing in pairings
    ]


def _check_names(weights: Weights, wanted: Mapping[str, tuple[int, ...]], place: str) -> None:
    names = weights.names()
    missing = sorted(wanted.keys() - names)
    extra = sorted(name for name in names - wanted.keys() if not name.endswith(IGNORED))
    if HEAD in extra and not missing:
        _check_second_head(weights, wanted)
        extra.remove(HEAD)
    if missing:
        near = nearest(missing[0], extra)
        raise SourceError(
            place=place,
            found=f"no tensor {_few(missing)}" + (f" but {near}, which has no place" if near else ""),
            wanted=f"the {len(wanted)} tensors of this architecture",
            remedy="The files are of another model than config.json, or not all of them are there.",
        )
    if extra:
        raise SourceError(
            place=str(weights.place(extra[0])),
            found=f"the tensor {_few(extra)}, which has no place in this architecture",
            wanted=f"the {len(wanted)} tensors of this architecture and no others",
            remedy="config.json describes another model, or the file holds an adapter or another head.",
        )


def _check_second_head(weights: Weights, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """A tied head may be in the file as well, but only as a copy."""
    import torch

    embedding = next(name for name in wanted if name.endswith(("embed_tokens.weight", "wte.weight")))
    if weights.shape(HEAD) != weights.shape(embedding) or not torch.equal(
        weights.get(HEAD), weights.get(embedding)
    ):
        raise SourceError(
            place=f"{weights.place(HEAD)}: {HEAD}",
            found="other numbers than in the token embedding",
            wanted="a copy of it: config.json says that they are tied",
            remedy='Set "tie_word_embeddings": false in config.json if the head is a matrix of its own.',
        )


def _check_shapes(weights: Weights, wanted: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        if weights.shape(name) != shape:
            raise SourceError(
                place=f"{weights.place(name)}: {name}",
                found=f"the shape {list(weights.shape(name))}",
                wanted=f"{list(shape)}, which follows from config.json",
                remedy="The files are of another model than config.json.",
            )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
