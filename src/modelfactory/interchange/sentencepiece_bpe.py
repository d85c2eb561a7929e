"""Byte-pair encoding as sentencepiece keeps it, pieces with scores, made a tokenizer of `tokenizers`.

Sentencepiece joins, again and again, the neighbours whose union has the highest score. `tokenizers` joins by
a list of pairs; the list of all pairs whose union is a piece, by falling score, does the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


BYTES = frozenset(f"<0x{n:02X}>" for n in range(256))


def tokenizer_json(
    ids: Mapping[str, int],
    scores: Sequence[float],
    *,
    unknown: str,
    special: Collection[str],
    prefix_space: bool = True,
) -> bytes:
    """Return the content of a tokenizer.json.

    Args:
        ids: of all pieces; spaces are SPACE, bytes are <0x00> to <0xFF>.
        scores: by id; higher is joined first.
        unknown: the piece for what cannot be spelt.
        special: pieces that no text yields.
        prefix_space: whether a text is read as if a space came before it.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    joins = merges(ids, scores, {unknown, *special, *BYTES})
    model = models.BPE(dict(ids), joins, unk_token=unknown, byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), *steps] if prefix_space else steps
    )
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix_space else back)
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False).encode("utf-8")


def merges(ids: Mapping[str, int], scores: Sequence[float], whole: Collection[str]) -> list[tuple[str, str]]:
    """Return the pairs whose union is a piece, the one with the highest score first.

    Args:
        ids: of all pieces.
        scores: by id.
        whole: pieces that are never joined from others, nor with others.
    """
    found = []
    for piece, number in ids.items():
        if piece not in whole:
            cuts = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
            pairs = [pair for pair in cuts if all(part in ids and part not in whole for part in pair)]
            found += [(-scores[number], number, pair) for pair in pairs]
    return [pair for _, _, pair in sorted(found)]


def is_sentencepiece(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json reads texts as sentencepiece does: whole, spaces shown, bytes spelt."""
    model = content["model"]
    shown = any(step.get("content") == SPACE for step in _steps(content["normalizer"]))
    return (
        model["type"] == "BPE" and bool(model.get("byte_fallback")) and shown and not content["pre_tokenizer"]
    )


def has_prefix_space(content: Mapping[str, Any]) -> bool:
    """Return whether a text is read as if a space came before it."""
    return any(step["type"] == "Prepend" for step in _steps(content["normalizer"]))


def pairs_of(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of a tokenizer.json, which has them as lists, or of old as text."""
    listed = content["model"]["merges"]
    return [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in listed]


def scores_of(content: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Return a score for each piece of `names` that orders joins as the pairs do; 0 where none makes it.

    Raises:
        SpecError: no scores do.
    """
    pairs = pairs_of(content)
    ranks: dict[str, int] = {}
    for left, right in pairs:
        ranks.setdefault(left + right, len(ranks) + 1)
    scores = [-float(ranks.get(name, 0)) for name in names]
    special = {token["content"] for token in content["added_tokens"]}
    ids = {name: n for n, name in enumerate(names)}
    again = merges(ids, scores, {content["model"]["unk_token"], *special, *BYTES})
    if _made(again) != _made(pairs) or set(again) != set(pairs):
        raise SpecError(
            place="tokenizer",
            found="pairs that no scores of pieces order so",
            wanted="a tokenizer as sentencepiece makes it",
            remedy="Export to Hugging Face format in its place.",
        )
    return scores


def _made(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return what the pairs make, in order: which of several pairs makes it counts nothing."""
    return list(dict.fromkeys(left + right for left, right in pairs))


def _steps(normalizer: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if normalizer is None:
        return []
    return list(normalizer.get("normalizers", [normalizer]))
