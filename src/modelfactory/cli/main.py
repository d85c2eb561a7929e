"""Entry point: arguments in, exit code out."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from modelfactory.cli.arguments import make_parser
from modelfactory.errors import FactoryError, InvalidInput, InvalidInputs
from modelfactory.loading import flattened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.cli.answer import Answer

GC_THRESHOLD = 200_000
"""Objects between two collections of cycles. A plan makes many small values and no cycles: at Python's 700
a sixth of the time of a plan of 1,000 experiments went into looking for some."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
PIPED_WIDTH = 10_000
"""Columns of what is not printed on a terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Returns:
        0 done, 1 work failed, 2 bad input, 130 interrupted.
    """
    gc.set_threshold(GC_THRESHOLD)
    arguments = make_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        answer: Answer = arguments.verb(arguments)
        _print(answer, as_json=arguments.json)
    except InvalidInput as error:
        return _refuse(error, as_json=arguments.json)
    except FactoryError as error:
        return _fail(error, as_json=arguments.json)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command to go on\n")
        return INTERRUPTED
    except BrokenPipeError:  # `factory ... | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return answer.code


def _print(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(answer.data, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        _print_text(answer)
    sys.stdout.flush()


def _print_text(answer: Answer) -> None:
    """Fit the width of a terminal; in a pipe or a file cut and wrap nothing: it is searched there."""
    if sys.stdout.isatty():
        answer.text(Console(highlight=False))
        return
    buffer = io.StringIO()
    answer.text(Console(file=buffer, width=PIPED_WIDTH, highlight=False, color_system=None))
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _refuse(error: InvalidInput, *, as_json: bool) -> int:
    faults = list(flattened(error))
    whole = InvalidInputs(faults)
    sys.stderr.write(f"{whole}\n")
    if as_json:
        listed = [
            {"place": e.place, "found": e.found, "wanted": e.wanted, "remedy": e.remedy} for e in faults
        ]
        sys.stdout.write(json.dumps({"error": str(whole), "faults": listed}, ensure_ascii=False) + "\n")
    return whole.exit_code


def _fail(error: FactoryError, *, as_json: bool) -> int:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    if as_json:
        sys.stdout.write(json.dumps({"error": str(error)}, ensure_ascii=False) + "\n")
    return error.exit_code
