"""Print docs/commands.md: the command line, described by itself."""

from __future__ import annotations

import argparse
import os
import re

from modelfactory.cli.arguments import make_parser

HEAD = """# Command reference

Written by `make docs` from the command line itself; a test holds it against the parser.

Every verb takes `--json` (one JSON object on stdout, all else on stderr) and `--workspace DIR`
(default: `$FACTORY_WORKSPACE`, else `./.factory`). Exit codes: 0 done, 1 work failed, 2 bad input
or something else that only you can mend (a loss that became NaN, a full disk),
130 interrupted. Completion: `factory --print-completion bash` (or `zsh`, `tcsh`) prints a script to source.
"""


def main() -> None:
    """Print one section for each verb."""
    os.environ["COLUMNS"] = "100"
    parser = make_parser()
    print(HEAD)
    for name, verb in verbs(parser).items():
        for action in verb._actions:  # noqa: SLF001
            if {"--jobs", "--threads"} & set(action.option_strings) and action.help:
                action.help = re.sub(
                    r"default: \d+(, the cores here)?", "default: the cores here", action.help
                )
        print(f"## factory {name}\n\n```\n{verb.format_help().rstrip()}\n```\n")


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the sub-parsers by name."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]  # noqa: SLF001
    return dict(actions[0].choices)


if __name__ == "__main__":
    main()
