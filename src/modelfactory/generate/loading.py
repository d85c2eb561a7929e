"""From the directories of finished stages to something that can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer
from modelfactory.train.loading import architecture_of, load_model, model_facts

if TYPE_CHECKING:
    from modelfactory.generate.language_model import LanguageModel


def load_language_model(
    checkpoint: str | Path, tokenizer: str | Path | Tokenizer, **options: Any
) -> LanguageModel:
    """Load the model of a training stage with its tokenizer.

    Args:
        checkpoint: directory of a training stage.
        tokenizer: directory of the tokenizer stage it was trained with, or what was loaded from there.
        options: those of `LanguageModel`.

    Raises:
        InvalidInput: checkpoint and tokenizer do not belong together.
        CheckpointDamaged: the checkpoint's bytes are not those that were written.
        SourceError: the tokenizer's files are missing or damaged.
    """
    from modelfactory.generate.language_model import LanguageModel

    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(Path(tokenizer))
    checkpoint = Path(checkpoint)
    facts = model_facts(checkpoint)
    # the matrix of an imported model may have more rows than there are tokens
    _check_vocabulary(facts.get("tokenizer_vocab_size", facts["vocab_size"]), loaded, checkpoint)
    for name in ("prefix_id", "adds_prefix"):
        if name in facts:
            options.setdefault(name, facts[name])
    max_seq_len = architecture_of(facts).max_seq_len
    return LanguageModel(load_model(checkpoint), loaded, max_seq_len=max_seq_len, **options)


def _check_vocabulary(vocab_size: int, tokenizer: Tokenizer, checkpoint: Path) -> None:
    if vocab_size != tokenizer.vocab_size:
        raise InvalidInput(
            place=str(checkpoint),
            found=f"a model of {vocab_size} tokens beside a tokenizer of {tokenizer.vocab_size}",
            wanted="the tokenizer the model was trained with",
            remedy="Give the tokenizer stage that the training's tokens were made with.",
        )
