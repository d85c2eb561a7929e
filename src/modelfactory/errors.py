"""One family of errors.

```
FactoryError
├── InvalidInput            the user can mend it; exit code 2; raised before work starts where possible
│   ├── SpecError           a field of a spec
│   ├── ExperimentError     an experiment file, or two experiments that do not fit together
│   ├── SourceError         a file or folder that documents or tokenizers come from
│   ├── WorkspaceError      the folder the factory keeps its state in
│   ├── CommandError        words on the command line
│   ├── SandboxMissing      code of a model cannot be executed safely on this machine
│   └── InvalidInputs       several of the above at once
└── WorkFailed              the input was good, the work was not; exit code 1, but for the two marked
    ├── StageFailed         a stage raised, was killed, or ran out of memory
    ├── NonFiniteLoss       training met NaN or infinity before an update; exit code 2
    ├── CheckpointDamaged   the bytes of a checkpoint are not those that were written
    ├── StageDamaged        the bytes of a stage are not those of its manifest
    ├── ClaimLost           another process took over the stage that was being published
    ├── DiskFull            no space left; exit code 2
    └── Stopped             the user asked to stop
```

Exit code 2 says that the same command cannot succeed before the user has changed something: a spec, a file, a
learning rate, the space on a disk. Exit code 1 says that work broke, which another try may get through.
"""

from __future__ import annotations

import difflib
import errno
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_LISTED = 20
"""Known names in the remedy of an unknown one."""
_NO_MEMORY = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cannot allocate memory (12)",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
)
"""What torch writes where it raises a plain RuntimeError; other texts with such words are their author's."""


class FactoryError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code: ClassVar[int] = 1


class InvalidInput(FactoryError):
    """What the user gave cannot be used.

    The text names the place (dotted path, file, stage), what was found, what was wanted, and the remedy.
    """

    exit_code = 2

    def __init__(self, *, place: str, found: str, wanted: str, remedy: str) -> None:
        self.place = place
        self.found = found
        self.wanted = wanted
        self.remedy = remedy
        super().__init__(f"{place}: found {found}, wanted {wanted}. {remedy}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by keywords, so that errors cross from a worker to its driver whole."""
        return _rebuild, (type(self), self.place, self.found, self.wanted, self.remedy)

    def at(self, prefix: str) -> InvalidInput:
        """Return the same error, placed below `prefix`."""
        place = f"{prefix}.{self.place}" if self.place else prefix
        return type(self)(place=place, found=self.found, wanted=self.wanted, remedy=self.remedy)


def _rebuild(kind: type[InvalidInput], place: str, found: str, wanted: str, remedy: str) -> InvalidInput:
    return kind(place=place, found=found, wanted=wanted, remedy=remedy)


class SpecError(InvalidInput):
    """A field of a spec holds what it must not hold."""


class ExperimentError(InvalidInput):
    """An experiment file cannot be loaded, or its experiments contradict each other."""


class SourceError(InvalidInput):
    """A file or folder that documents or tokenizers come from cannot be used."""


class WorkspaceError(InvalidInput):
    """The folder that holds the factory's state cannot be used."""


class CommandError(InvalidInput):
    """Words on the command line name nothing that exists."""


class SandboxMissing(InvalidInput):
    """Programs that a model wrote cannot be run safely on this machine."""


class InvalidInputs(InvalidInput):
    """Several faults at once, so that one reading of the message mends them all."""

    def __init__(self, errors: Sequence[InvalidInput]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(place=first.place, found=first.found, wanted=first.wanted, remedy=first.remedy)
        lines = "\n".join(f"  {n}. {error}" for n, error in enumerate(self.errors, start=1))
        self.args = (f"{len(self.errors)} faults:\n{lines}" if len(self.errors) > 1 else str(first),)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the whole list."""
        return type(self), (self.errors,)


class WorkFailed(FactoryError):
    """The input was good; the work was not."""


class StageFailed(WorkFailed):
    """A stage raised, was killed, or ran out of memory."""


class NonFiniteLoss(WorkFailed):
    """Training met NaN or infinity; nothing was updated and the last good checkpoint stands."""

    exit_code = 2


class CheckpointDamaged(WorkFailed):
    """The bytes of a checkpoint are not those that were written."""


class StageDamaged(WorkFailed):
    """The bytes of a stage are not those of its manifest."""


class ClaimLost(WorkFailed):
    """Another process holds the stage now; what this one made is thrown away."""


class DiskFull(WorkFailed):
    """No space is left where the stage is written."""

    exit_code = 2


class Stopped(WorkFailed):
    """The user asked to stop; the stage ended at the next safe place."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception is what Python, the system or torch raises for want of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's for devices
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def closest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" or the list of known names, for the remedy of an unknown name.

    All names are searched; of very many the first are listed, with how many more there are.
    """
    names = sorted(known)
    near = nearest(name, names)
    return f"Did you mean {near!r}?" if near else f"Known: {listed(names, most=MOST_LISTED) or 'none'}."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` was probably meant to be, or nothing."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return near[0] if near else ""


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Return names with commas between them, in quotes where one could be read as two.

    With `most`, as many of them at most, and how many more there are.
    """
    shown = names[:most]
    plain = all(name and not set(name) & set(", '\"") for name in shown)
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown if plain else map(repr, shown)) + more
