"""Checkpoints of llama2.c (github.com/karpathy/llama2.c), in its first format, and its tokenizer files.

Seven int32: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative for a head of its own),
seq_len. Then float32: the embedding; for all layers the first norm, then wq, wk, wv, wo, the second norm, w1,
w2, w3; the last norm; two tables of rotations that nobody reads; and the head, if it is a matrix of its own.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import torch

from modelfactory.errors import SourceError
from modelfactory.interchange.imported import Imported
from modelfactory.interchange.rotary_order import to_halves
from modelfactory.interchange.sentencepiece_bpe import SPACE, tokenizer_json
from modelfactory.interchange.tokenizer_files import made
from modelfactory.interchange.weights import all_finite
from modelfactory.models import Llama

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.tokens.tokenizer import Tokenizer

_HEADER = struct.Struct("<7i")
_UNKNOWN, _BOS, _EOS = "<unk>", "<s>", "</s>"


class _Sizes(NamedTuple):
    d_model: int
    d_ff: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    max_seq_len: int
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return their tensors in the order of the file."""
        layers, d_model, d_ff = self.n_layers, self.d_model, self.d_ff
        d_kv, table = self.n_kv_heads * self.head_dim, (self.max_seq_len, self.head_dim // 2)
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocab_size, d_model),
            "first_norm": (layers, d_model),
            "wq": (layers, d_model, d_model),
            "wk": (layers, d_kv, d_model),
            "wv": (layers, d_kv, d_model),
            "wo": (layers, d_model, d_model),
            "second_norm": (layers, d_model),
            "w1": (layers, d_ff, d_model),
            "w2": (layers, d_model, d_ff),
            "w3": (layers, d_ff, d_model),
            "last_norm": (d_model,),
            "cos": table,
            "sin": table,
        }
        return shapes if self.tied else shapes | {"head": (self.vocab_size, d_model)}


def import_llama2c(path: Path) -> Imported:
    """Read a checkpoint of the first format, such as stories260K.bin; it holds no tokenizer.

    Raises:
        SourceError: not such a file, or cut off.
    """
    sizes, tensors = _read(path)
    spec = Llama(
        n_layers=sizes.n_layers,
        d_model=sizes.d_model,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_ff=sizes.d_ff,
        max_seq_len=sizes.max_seq_len,
        norm_eps=1e-5,
        tied=sizes.tied,
    )
    facts = {"format": "llama2.c", "architecture": "llama", "dtype": "F32"}
    state = _state(sizes, tensors)
    return Imported(spec=spec, vocab_size=sizes.vocab_size, state=state, tokenizer=None, facts=facts)


def _read(path: Path) -> tuple[_Sizes, dict[str, torch.Tensor]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unusable(path, f"no readable file ({error.strerror})", "a checkpoint") from error
    if len(content) < _HEADER.size:
        raise _unusable(path, f"{len(content)} bytes", f"at least the {_HEADER.size} of a header")
    sizes = _sizes(_HEADER.unpack_from(content), path)
    shapes = sizes.shapes()
    wanted = _HEADER.size + 4 * sum(map(math.prod, shapes.values()))
    if len(content) != wanted:
        raise _unusable(path, f"{len(content):,} bytes", f"{wanted:,}, which follow from its header")
    numbers = torch.frombuffer(bytearray(content), dtype=torch.float32, offset=_HEADER.size)
    if not all_finite(numbers):
        raise _unusable(path, "NaN or infinite numbers", "finite weights")
    parts = torch.split(numbers, [math.prod(shape) for shape in shapes.values()])
    named = zip(shapes.items(), parts, strict=True)
    return sizes, {name: part.reshape(shape) for (name, shape), part in named}


def _sizes(header: tuple[int, ...], path: Path) -> _Sizes:
    d_model, d_ff, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len = header
    if (
        min(d_model, d_ff, n_layers, n_heads, n_kv_heads, max_seq_len) < 1
        or vocab_size == 0
        or max(map(abs, header)) > 1 << 24
    ):
        raise _unusable(path, f"a header of {header}", "sizes from 1 to 16,777,216")
    vocabulary = (abs(vocab_size), max_seq_len, vocab_size > 0)
    return _Sizes(d_model, d_ff, n_layers, n_heads, n_kv_heads, *vocabulary)


def _state(sizes: _Sizes, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return our tensors; they turn neighbouring dimensions, we turn halves of a head."""
    state = {"embedding.weight": theirs["embedding"], "final_norm.weight": theirs["last_norm"]}
    if not sizes.tied:
        state["head.weight"] = theirs["head"]
    for n in range(sizes.n_layers):
        wq, wk = to_halves(theirs["wq"][n], sizes.n_heads), to_halves(theirs["wk"][n], sizes.n_kv_heads)
        layer = {
            "mixer_norm.weight": theirs["first_norm"][n],
            "mixer.qkv.weight": torch.cat((wq, wk, theirs["wv"][n])),
            "mixer.out.weight": theirs["wo"][n],
            "feed_forward_norm.weight": theirs["second_norm"][n],
            "feed_forward.gate_up.weight": torch.cat((theirs["w1"][n], theirs["w3"][n])),
            "feed_forward.down.weight": theirs["w2"][n],
        }
        state |= {f"blocks.{n}.{name}": tensor for name, tensor in layer.items()}
    return {name: tensor.clone() for name, tensor in state.items()}


def read_tokenizer(path: Path, eos_token: str | None = None) -> Tokenizer:
    """Read a tokenizer of llama2.c: the longest length, then score, length and bytes of each piece.

    Texts of these models are parted by `<s>` alone, so that it is what ends a text as well, unless
    `eos_token` says otherwise.

    Raises:
        SourceError: not such a file.
        SpecError: `eos_token` is not in it.
    """
    try:
        pieces, scores = _pieces(path.read_bytes())
    except (OSError, struct.error, UnicodeDecodeError) as error:
        raise _unusable(
            path, f"no tokenizer that can be read ({error})", "a tokenizer of llama2.c"
        ) from error
    if len(pieces) < 3 or len(set(pieces)) != len(pieces):
        raise _unusable(path, f"{len(pieces)} pieces", "at least 3, all different")
    pieces[:3] = [_UNKNOWN, _BOS, _EOS]  # their file has line breaks around them, for printing
    ids = {piece: number for number, piece in enumerate(pieces)}
    content = tokenizer_json(ids, scores, unknown=_UNKNOWN, special=(_BOS, _EOS))
    return made(content, eos=eos_token or _BOS, bos=_BOS, place=str(path))


def _pieces(content: bytes) -> tuple[list[str], list[float]]:
    pieces, scores, at = [], [], 4
    while at < len(content):
        score, length = struct.unpack_from("<fi", content, at)
        piece = content[at + 8 : at + 8 + length]
        if length < 0 or len(piece) < length:
            raise struct.error(f"a piece of {length} bytes at byte {at}")
        pieces.append(piece.decode("utf-8").replace(" ", SPACE))
        scores.append(score)
        at += 8 + length
    return pieces, scores


def _unusable(path: Path, found: str, wanted: str) -> SourceError:
    return SourceError(
        place=str(path), found=found, wanted=wanted, remedy="It is another format, or cut off: copy it again."
    )
