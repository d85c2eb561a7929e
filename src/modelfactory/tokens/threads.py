"""How many threads `tokenizers` may use."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def tokenizer_threads(n_threads: int) -> Iterator[None]:
    """Let `tokenizers` use `n_threads` threads inside the block.

    It takes no argument for this: it reads TOKENIZERS_PARALLELISM at each call and RAYON_NUM_THREADS when
    its pool is first used, so in a process that lives on, the first number above 1 stays. 1 always holds.
    Results do not depend on it.
    """
    wanted = {
        "TOKENIZERS_PARALLELISM": "true" if n_threads > 1 else "false",
        "RAYON_NUM_THREADS": str(n_threads),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
