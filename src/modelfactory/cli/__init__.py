"""The command `factory`: parse, call, print."""

from modelfactory.cli.main import main

__all__ = ["main"]
