"""The package `gguf`, which is installed only where it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from modelfactory.errors import CommandError


def the_library() -> Any:
    """Return the module `gguf`.

    Raises:
        CommandError: it is not installed.
    """
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise CommandError(
            place="GGUF",
            found="no package `gguf`",
            wanted="it, to read and write such files",
            remedy="pip install 'modelfactory[gguf]'",
        ) from error
