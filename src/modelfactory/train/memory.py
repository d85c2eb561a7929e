"""How much memory training takes, by formula: nothing is allocated and torch is not imported.

Parameters, gradients and optimizer state follow from the specs, what layers keep for the backward pass from
`models.activations`. Peaks are looked for where they can be: in the loss at the end of the forward pass, in
the last layer at the start of the backward pass, and at its end, when all gradients are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from modelfactory.models import Decoder
from modelfactory.models.activations import Kept, Pass, kept_by_norm
from modelfactory.models.lora import unadapted
from modelfactory.models.loss_chunks import n_chunks
from modelfactory.models.part_results import counted
from modelfactory.stage import Parallel
from modelfactory.train.division import held, piece_of
from modelfactory.train.optimizer_memory import optimizer_bytes

if TYPE_CHECKING:
    from modelfactory.models import Architecture
    from modelfactory.models.decoder import Block
    from modelfactory.stage import Checkpointing, Device
    from modelfactory.train.division import Piece
    from modelfactory.train.optimizers import Optimizer

_LOGIT_BYTES = {"bf16": 6, "fp32": 4, "compiled": 8}
"""Of each logit of a chunk at the worst moment of the loss."""
_WORKING = 0.5
"""Share of what a layer keeps that its backward pass works with besides."""
_TOKEN_BYTES = 16
"""Of a token and its label."""


class Trainee(Protocol):
    """What is read of a `Training` or of a segment."""

    @property
    def optimizer(self) -> Optimizer: ...  # noqa: D102
    @property
    def batch_tokens(self) -> int: ...  # noqa: D102
    @property
    def precision(self) -> Literal["bf16", "fp32"]: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one process."""

    parameters: int
    gradients: int
    optimizer: int
    casts: int
    """Weights in bfloat16, beside those in float32."""
    gathered: int
    """Whole weights in use, beside the pieces that a process keeps: those of no block, and of one block."""
    activations: int
    """What the backward pass reads, at the end of the forward pass."""
    loss: int
    """Logits of one chunk, and the gradients of head and last hidden states, which the loss works out."""
    layer: int
    """What one layer works with in the backward pass."""
    total: int
    """At the peak, at which not all of the above are there."""


def memory_bytes(
    model: Architecture,
    vocab_size: int,
    training: Trainee,
    *,
    micro_batch_tokens: int = 16_384,
    is_compiled: bool = False,
    checkpointing: Checkpointing = "none",
    parallel: Parallel | None = None,
    device: Device = "cpu",
) -> Memory:
    """Estimate the most memory that training holds at once, beside what Python and libraries take.

    For a decoder of this package's layers it is within 15 % of what tensors hold at the peak, measured as the
    growth of a process on a CPU that gives back at once what is freed (`benchmarks/memory.py`). Not counted:
    what glibc keeps of freed memory, and what compiling takes itself. A layer of your own is taken for a
    feed-forward of as many parameters, unless it says better (`kept_numbers`, see `models.activations`). Of
    an architecture that is no `Decoder`, only parameters, gradients and optimizer state are counted. What
    one of several processes holds is in `train.division`; parameters and states are within 1 % of what ranks
    hold, peaks within 10 %. What `context` gathers of keys and values is not counted.

    Args:
        model: the architecture.
        vocab_size: of the tokenizer.
        training: its optimizer, batch and precision are read; a `Training` or a `TrainSegment`.
        micro_batch_tokens: see `Site`.
        is_compiled: whether torch.compile is used.
        checkpointing: see `Site`.
        parallel: processes the model is spread over.
        device: where it is trained.
    """
    split = parallel or Parallel()
    is_bf16 = training.precision == "bf16"
    n_rows_all = max(training.batch_tokens // model.max_seq_len // split.n_row_ranks, 1)
    n_parts = -(-n_rows_all // max(micro_batch_tokens // model.max_seq_len, 1))
    n_rows = -(-n_rows_all // n_parts)
    how = Pass(
        seq_len=model.max_seq_len,
        n_rows=n_rows,
        is_bf16=is_bf16,
        is_compiled=is_compiled,
        is_cpu=device == "cpu",
    )
    n_tokens = n_rows * model.max_seq_len // split.context
    return _Estimate(model, vocab_size, training.optimizer, how, checkpointing, split).at_peak(
        n_tokens, is_accumulating=n_parts > 1
    )


class _Estimate:
    def __init__(  # noqa: PLR0917
        self,
        model: Architecture,
        vocab_size: int,
        optimizer: Optimizer,
        how: Pass,
        checkpointing: Checkpointing,
        split: Parallel,
    ) -> None:
        trainable = getattr(model, "n_trainable", model.n_parameters)
        self.n_trained = int(trainable(vocab_size))
        self.n_parameters = counted(model, "n_parameters", vocab_size)
        self.held = held(model, vocab_size, split)
        self.optimizer = optimizer_bytes(optimizer, model, vocab_size)
        model = unadapted(model)  # what adapters keep is little
        self.how, self.split = how, split
        self.d_model = getattr(model, "d_model", 0)
        self.is_tied = bool(getattr(model, "tied", False))
        self.n_vocabulary = vocab_size * self.d_model
        self.vocab_size = vocab_size
        self.kept, self.once = _kept(model, _blocks(model, split.tensor), how, checkpointing)
        self.n_further = getattr(getattr(model, "multi_token", None), "n_extra", 0)

    def at_peak(self, n_tokens: int, *, is_accumulating: bool) -> Memory:
        """Return the largest of the moments that may be the peak."""
        share = self.held.total / max(self.n_parameters, 1) / self.split.shard
        parameters, gradients = 4 * self.n_parameters, 4 * self.n_trained
        parameters, gradients, optimizer = (
            int(share * each) for each in (parameters, gradients, self.optimizer)
        )
        casts = self.held.cast_bytes(self.how, self.n_vocabulary)
        gathered = self.held.gathered_bytes(self.how)
        activations = int(n_tokens * (self._bytes(self.kept) + _TOKEN_BYTES))
        layer = int(n_tokens * self._bytes(self.once))
        head = 4 * self.n_vocabulary
        loss = self._loss(n_tokens)
        stay = is_accumulating or self.held.is_copied
        fixed = parameters + optimizer + (gradients if stay else 0) + gathered
        in_loss = fixed + activations + casts + loss
        in_layer = fixed + activations + casts + (2 * head + 4 * self.d_model * n_tokens) + layer
        at_end = parameters + optimizer + gradients + (head if self.is_tied or is_accumulating else 0)
        return Memory(
            parameters=parameters,
            gradients=gradients,
            optimizer=optimizer,
            casts=casts,
            gathered=gathered,
            activations=activations,
            loss=loss,
            layer=layer,
            total=max(in_loss, in_layer, at_end),
        )

    def _bytes(self, kept: Kept) -> float:
        return kept.n_bytes(is_bf16=self.how.is_bf16)

    def _loss(self, n_tokens: int) -> int:
        how = "compiled" if self.how.is_compiled else "bf16" if self.how.is_bf16 else "fp32"
        head = (6 if self.how.is_bf16 else 4) * self.n_vocabulary * (1 + self.n_further)
        chunk = _LOGIT_BYTES[how] * (n_tokens * self.vocab_size // n_chunks(n_tokens, self.vocab_size))
        return chunk + head + 4 * n_tokens * self.d_model


class _Pieces(NamedTuple):
    """What a process has of a block."""

    block: Block
    layers: tuple[Piece, Piece]


def _blocks(model: Architecture, tensor: int) -> list[_Pieces]:
    """Return those of all layers, and of the depths that predict further tokens, which are never divided."""
    if not isinstance(model, Decoder):
        return []
    every = [*((block, tensor) for block in model.layers()), *((block, 1) for block in model.depths())]
    return [
        _Pieces(block, (piece_of(block.mixer, size), piece_of(block.feed_forward, size)))
        for block, size in every
    ]


def _kept(
    model: Architecture, blocks: list[_Pieces], how: Pass, checkpointing: Checkpointing
) -> tuple[Kept, Kept]:
    """Return what is kept for each token, and what one layer needs beside that in the backward pass."""
    if not isinstance(model, Decoder):
        return Kept(), Kept()
    width = model.d_model
    whole = [_kept_by_block(block, width, how) for block in blocks]
    ends = kept_by_norm(model.final_norm, width, how)
    if (further := model.multi_token) is not None:
        joined = kept_by_norm(cast("Block", further.block).norm, 2 * width, how)
        ends = ends.plus(ends.plus(joined, Kept(product=2 * width)).times(further.n_extra))
    largest = max(whole, key=lambda each: each.n_bytes(is_bf16=how.is_bf16))
    if checkpointing == "none":
        return ends.plus(*whole), largest.times(_WORKING)
    products = [piece.kept_by_products(width) for each in blocks for piece in each.layers]
    dear = products if checkpointing == "selective" else []
    return ends.plus(Kept(wide=width * len(blocks)), *dear), largest.times(1 + _WORKING)


def _kept_by_block(each: _Pieces, width: int, how: Pass) -> Kept:
    """The norms take the residual stream, which is whole on every process."""
    norms = kept_by_norm(each.block.norm, width, how).times(each.block.n_norms)
    return norms.plus(*(piece.kept(width, how) for piece in each.layers))
