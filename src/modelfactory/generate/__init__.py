"""The inference engine: log-likelihoods and generation, batched, with a key/value cache.

`LanguageModel` answers the three questions of lm-evaluation-harness about any module that keeps the
protocol of `models`. It takes no gradient, draws from no global random generator, and leaves the module in
the mode it found it in, so it can be used beside training. Importing this package imports no torch; the
first use of `LanguageModel` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.generate.answers import Completion, RollingScore, Score
from modelfactory.generate.chatting import Chat, load_chat
from modelfactory.generate.encoding import EncodedPair, Encoder, encode_pairs
from modelfactory.generate.loading import load_language_model
from modelfactory.generate.sampling import Sampling
from modelfactory.generate.windows import Window, rolling_windows, windows_of_pair

if TYPE_CHECKING:
    from modelfactory.generate.language_model import LanguageModel


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name == "LanguageModel":
        from modelfactory.generate.language_model import LanguageModel

        return LanguageModel
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


__all__ = [
    "Chat",
    "Completion",
    "EncodedPair",
    "Encoder",
    "LanguageModel",
    "RollingScore",
    "Sampling",
    "Score",
    "Window",
    "encode_pairs",
    "load_chat",
    "load_language_model",
    "rolling_windows",
    "windows_of_pair",
]
