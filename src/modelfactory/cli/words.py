"""A parser of words that refuses them as the rest of the factory refuses bad input."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from modelfactory.errors import CommandError, closest, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Parser(argparse.ArgumentParser):
    """Says place, found, wanted and remedy; where the words hold `--json`, as one JSON object on stdout."""

    _as_json = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words of the program or of a verb; here, where the verb is known, none may be left."""
        words = list(sys.argv[1:] if args is None else args)
        self._as_json = "--json" in words
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            options = [each for each in self._option_string_actions if each.startswith("--")]
            self._refuse(f"unknown words: {' '.join(unknown)}", self._wanted(), _near(unknown[0], options))
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            place = f" {action.metavar or '/'.join(action.option_strings)}"
            self._refuse(repr(value), f"one of {', '.join(known)}", _near(str(value), known), place)

    def error(self, message: str) -> NoReturn:
        """Refuse the words; a message of ours already says what was found and what was wanted."""
        ours = re.fullmatch(r"argument (.+): found (.+), wanted (.+)", message)
        if ours:
            self._refuse(ours[2], ours[3], place=f" {ours[1]}")
        number = re.fullmatch(r"argument (.+): expected (.+ arguments?)", message)
        if number:
            self._refuse("another number of words after it", number[2], place=f" {number[1]}")
        missing = message.removeprefix("the following arguments are required: ")
        self._refuse(f"no {missing}" if missing != message else message, self._wanted())

    def _wanted(self) -> str:
        return f"words as `{self.prog} --help` shows them"

    def _refuse(self, found: str, wanted: str, remedy: str = "", place: str = "") -> NoReturn:
        fault = CommandError(place=f"{self.prog}{place}", found=found, wanted=wanted, remedy=remedy)
        if self._as_json:
            told = {"place": fault.place, "found": found, "wanted": wanted, "remedy": remedy}
            sys.stdout.write(json.dumps({"error": str(fault), "faults": [told]}, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        self.exit(fault.exit_code, f"{fault}\n")


def _near(word: str, known: Iterable[str]) -> str:
    """Return the closest word as a remedy; what is known stands in the text already."""
    return closest(word, known) if nearest(word, known) else ""


def at_least_one(text: str) -> int:
    """Return the whole number that a word is, from 1 up."""
    return _whole(text, least=1)


def at_least_zero(text: str) -> int:
    """Return the whole number that a word is, from 0 up."""
    return _whole(text, least=0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a whole number of at least {least}")
    return number
