"""Low-rank adapters: small matrices that are trained beside frozen ones (Hu et al. 2021, 2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.errors import closest
from modelfactory.models.architecture import Architecture
from modelfactory.models.checks import require_positive
from modelfactory.models.decoder import Decoder
from modelfactory.models.part_results import counted
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelfactory.models.matrices import Matrix


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """What is added to a frozen matrix W: y = W x + alpha / rank * B A x (section 4.1, equation 3).

    B starts at 0, so that at first nothing is changed. A is drawn evenly from -1 / sqrt(columns) to
    1 / sqrt(columns), as in the authors' code, where the paper has a Gaussian of no stated width. Where W
    holds several matrices, such as queries, keys and values, each gets A and B of its own, as in the paper.
    """

    rank: int
    """Columns of B and rows of A."""
    alpha: float
    """Divided by the rank it multiplies what is added."""
    targets: tuple[str, ...] | Literal["all"] = "all"
    """Names of the matrices, such as qkv, out, gate_up, up or down, in every layer; "all" takes every one
    that `matrices_of` names, which are never embedding, head, experts or routers."""

    def __post_init__(self) -> None:
        """Refuse a rank below 1, no strength, and no or repeated targets."""
        check_types(self)
        require_positive("LoRA", rank=self.rank)
        require(self.alpha > 0, place="LoRA.alpha", found=self.alpha, wanted="a number above 0")
        names = self.targets
        require(
            names == "all" or 0 < len(set(names)) == len(names),
            place="LoRA.targets",
            found=names,
            wanted='names, each once, or "all"',
        )

    @property
    def scale(self) -> float:
        """What multiplies B A."""
        return self.alpha / self.rank

    def n_parameters(self, matrix: Matrix) -> int:
        """Return the numbers of A and B."""
        return self.rank * (len(matrix.rows) * matrix.n_in + sum(matrix.rows))


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A model whose weights stay as they are while its adapters are trained; follows `Architecture`.

    It needs weights to start from (see `modelfactory.train.Training.start`). Checkpoints hold both;
    `modelfactory.train.load_model` and exports give `base` with the adapters added to its matrices.
    """

    base: Architecture
    """A `Decoder`, or an architecture of your own with `matrices()`: see `matrices_of`."""
    lora: LoRA

    def __post_init__(self) -> None:
        """Refuse targets that the model lacks, and ranks that are not low."""
        check_types(self)
        known = {} if isinstance(self.base, Adapted) else matrices_of(self.base)
        require(
            bool(known),
            place="Adapted.base",
            found=type(self.base).__name__,
            wanted="a model with matrices that can be adapted, and has no adapters yet",
            remedy="Use a Decoder with attention or dense feed-forwards, or give it `matrices()`.",
        )
        self._check_targets(sorted({_last(name) for name in known}))
        for name, matrix in self.matrices().items():
            least = min(matrix.n_in, *matrix.rows)
            require(
                self.lora.rank <= least,
                place="LoRA.rank",
                found=self.lora.rank,
                wanted=f"at most {least}, the rank of {name}",
                remedy="A larger one adds nothing; train the matrix itself.",
            )

    def _check_targets(self, known: list[str]) -> None:
        for target in () if self.lora.targets == "all" or not known else self.lora.targets:
            require(
                target in known,
                place="LoRA.targets",
                found=target,
                wanted=f"one of {', '.join(known)}",
                remedy=closest(target, known),
            )

    @property
    def max_seq_len(self) -> int:
        """Of the model."""
        return self.base.max_seq_len

    def matrices(self) -> dict[str, Matrix]:
        """Return the matrices that get adapters, by name."""
        return {name: matrix for name, matrix in matrices_of(self.base).items() if self._is_target(name)}

    def _is_target(self, name: str) -> bool:
        return self.lora.targets == "all" or _last(name) in self.lora.targets

    def n_parameters(self, vocab_size: int) -> int:
        """Return the numbers of the model and its adapters."""
        return counted(self.base, "n_parameters", vocab_size) + self.n_trainable(vocab_size)

    def n_trainable(self, vocab_size: int) -> int:
        """Return the numbers of the adapters, which alone have gradients and optimizer states."""
        del vocab_size
        return sum(map(self.lora.n_parameters, self.matrices().values()))

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        """Return those of the model, less a third for its parameters, and 6 for each of the adapters'.

        What is frozen passes gradients on and gets none: 4 a parameter in place of 6. What mixing along the
        sequence costs beside parameters stays.
        """
        lengths = (seq_len, 0)
        whole, parameters = (counted(self.base, "flops_per_token", vocab_size, each) for each in lengths)
        return whole - parameters // 3 + 6 * self.n_trainable(vocab_size)

    def build(self, vocab_size: int, seed: int) -> Any:
        """Return the module of `base` with adapters, whose A follows from `seed`; only they train."""
        from modelfactory.models.lora_module import adapt

        module = self.base.build(vocab_size, seed)
        adapt(module, self.matrices(), self.lora, seed)
        return module


def matrices_of(architecture: Any) -> dict[str, Matrix]:
    """Return the matrices between hidden vectors by the names of their modules, which are `nn.Linear`.

    An architecture says so by a method `matrices()`, a mixer or a feed-forward by `matrices(d_model)`, with
    names of its own. Those that do not say have none.
    """
    if isinstance(architecture, Decoder):
        return dict(_of_decoder(architecture))
    offered = getattr(architecture, "matrices", None)
    return {} if offered is None else dict(offered())


def _of_decoder(decoder: Decoder) -> Iterator[tuple[str, Matrix]]:
    for n, block in enumerate(decoder.layers()):
        for role in ("mixer", "feed_forward"):
            offered = getattr(getattr(block, role), "matrices", None)
            found: Mapping[str, Matrix] = {} if offered is None else offered(decoder.d_model)
            for name, matrix in found.items():
                yield f"blocks.{n}.{role}.{name}", matrix


def unadapted(architecture: Any) -> Any:
    """Return the model without its adapters."""
    return architecture.base if isinstance(architecture, Adapted) else architecture


def _last(name: str) -> str:
    return name.rpartition(".")[2]
