"""What a run starts from when it does not start from random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from modelfactory.errors import ExperimentError, SpecError
from modelfactory.models import Decoder
from modelfactory.models.lora import Adapted, unadapted
from modelfactory.spec import check_types, difference, not_identity, require
from modelfactory.train.muon import Muon
from modelfactory.train.soap import SOAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.spec import Change
    from modelfactory.train.training import Training

START = "start"
"""Name of the input: a training or import stage."""
MOST_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model from elsewhere, which was not trained by this factory; pinned by content when it is planned."""

    path: str = not_identity()
    """A folder in Hugging Face format, or another that `modelfactory.interchange.import_model` reads;
    relative to the working directory. Its content is what counts."""

    def __post_init__(self) -> None:
        """Refuse no path; what lies there is read at plan time."""
        check_types(self)
        require(self.path != "", place="Pretrained.path", found=self.path, wanted="a folder or file")


class Run(Protocol):
    """What `FromRun` asks of an Experiment."""

    @property
    def name(self) -> str: ...  # noqa: D102 - see Experiment
    @property
    def tokenizer(self) -> Any: ...  # noqa: D102
    @property
    def mixture(self) -> Any: ...  # noqa: D102
    @property
    def model(self) -> Any: ...  # noqa: D102
    @property
    def training(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class FromRun:
    """A checkpoint of another experiment, which is trained up to there first unless it is stored."""

    experiment: Run
    """An Experiment."""
    step: int | None = None
    """One of its checkpoints; None for the last."""

    def __post_init__(self) -> None:
        """Refuse what is no experiment, and a step at which it keeps no checkpoint."""
        check_types(self)
        known = getattr(getattr(self.experiment, "training", None), "checkpoint_steps", None)
        require(
            known is not None,
            place="FromRun.experiment",
            found=self.experiment,
            wanted="an Experiment",
        )
        require(
            known is None or self.step is None or self.step in known,
            place="FromRun.step",
            found=self.step,
            wanted=f"a checkpoint of {getattr(self.experiment, 'name', '')}: {_listed(known or ())}, or None",
            remedy="Change n_checkpoints of that experiment, or take another step.",
        )

    @property
    def at_step(self) -> int:
        """The step of the checkpoint."""
        return int(self.experiment.training.checkpoint_steps[-1] if self.step is None else self.step)


Start: TypeAlias = Pretrained | FromRun
"""Weights that a run begins with. Optimizer, step count, schedule and order of data are the run's own."""


def start_faults(name: str, *, model: Any, tokenizer: Any, training: Training) -> Iterator[ExperimentError]:
    """Yield what is known to be wrong with a start before anything is read.

    Args:
        name: of the experiment.
        model: of the experiment, as the next two.
        tokenizer: whose ids the model's rows stand for.
        training: whose start it is.
    """
    if isinstance(model, Adapted):
        yield from _adapter_faults(name, training)
    if isinstance(training.start, FromRun):
        before = training.start.experiment
        yield from model_faults(f"{name}: training.start", before.model, model)
        if before.tokenizer != tokenizer:
            yield ExperimentError(
                place=f"{name}: tokenizer",
                found=f"another than that of {before.name}, which training starts from",
                wanted="the same: rows of the embedding are tokens",
                remedy="Use the tokenizer of the experiment in training.start.",
            )


def _adapter_faults(name: str, training: Training) -> Iterator[ExperimentError]:
    if training.start is None:
        yield ExperimentError(
            place=f"{name}: training.start",
            found="nothing, with a model of which only adapters are trained",
            wanted="weights to adapt",
            remedy="Give Pretrained(path=...) or FromRun(experiment=...).",
        )
    if isinstance(training.optimizer, Muon | SOAP):
        yield ExperimentError(
            place=f"{name}: training.optimizer",
            found=f"{type(training.optimizer).__name__} for adapters",
            wanted="an optimizer that is not for the hidden matrices, which are frozen",
            remedy="Use AdamW.",
        )


def model_faults(place: str, found: Any, wanted: Any) -> Iterator[ExperimentError]:
    """Yield an error that names the fields in which a start is another model than the one to be trained."""
    differing = unlike(found, wanted)
    if differing:
        more = f" and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
        shown = "; ".join(
            f"{each.path} is {each.before}, not {each.after}" for each in differing[:MOST_SHOWN]
        )
        yield ExperimentError(
            place=place,
            found=f"weights of another model: {shown}{more}",
            wanted="the architecture of the experiment",
            remedy="Give the experiment the model of its start: that of the other experiment, or "
            "modelfactory.interchange.architecture_of(path).",
        )


def unlike(start: Any, model: Any) -> list[Change]:
    """Return the fields in which `start` differs from `model`, but for those that no weight depends on.

    Adapters do not count, on neither side: those of a start are merged into it, or go on if they are the
    same. Neither do initial values, learning rates, and a context that is shorter than the start's, where
    positions are not learned.
    """
    found, wanted = unadapted(start), unadapted(model)
    is_decoder = isinstance(found, Decoder) and isinstance(wanted, Decoder)
    if not is_decoder:
        return difference(found, wanted)
    free = {"hidden_lr_scale"}
    if not wanted.learned_positions and wanted.max_seq_len <= found.max_seq_len:
        free.add("max_seq_len")
    return [
        change
        for change in difference(found, wanted)
        if change.path not in free and change.path.partition(".")[0] != "initial"
    ]


def check_start(place: str, start: Any, model: Any) -> None:
    """Raise SpecError unless weights of `start` are those of `model`."""
    for error in model_faults(place, start, model):
        raise SpecError(place=error.place, found=error.found, wanted=error.wanted, remedy=error.remedy)


def _listed(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps))
