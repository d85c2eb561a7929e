"""What a user says to a model that was tuned on conversations, in tokens, and where its answer ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInput
from modelfactory.interchange.ends import chat_names
from modelfactory.tokens.chat_template import ChatTemplate
from modelfactory.tokens.chats import ChatEncoder
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer
from modelfactory.train.loading import chat_template_of, model_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from modelfactory.generate.sampling import Sampling


@dataclass(frozen=True)
class Chat:
    """Turns conversations into prompts by the template of a checkpoint."""

    encoder: ChatEncoder
    end_of_turn: int | None
    """The special token that ends an answer beside the end-of-text token, where the template writes one."""

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids after which the answer begins: those of transformers' `apply_chat_template`.

        Give them to `LanguageModel.generate_from(..., prefixed=False)`. Special tokens come from the template
        alone; one that a message spells out is the characters it is made of.

        Args:
            messages: role and content of each, the user's last.

        Raises:
            SourceError: the template cannot render them.
            InvalidInput: there is no message of a user, or it is empty.
        """
        last = messages[-1] if messages else {}
        if last.get("role") != "user" or not last.get("content", "").strip():
            found = f"a message of {last['role']!r} at the end, or an empty one" if last else "no message"
            raise InvalidInput(
                place="messages",
                found=found,
                wanted="what the user says",
                remedy="Give a prompt.",
            )
        return self.encoder.prompt(messages, "the prompt")

    def until_end_of_turn(self, sampling: Sampling) -> Sampling:
        """Return a sampling that ends where an answer does."""
        if self.end_of_turn is None or self.end_of_turn in sampling.stop_ids:
            return sampling
        return replace(sampling, stop_ids=(*sampling.stop_ids, self.end_of_turn))


def load_chat(checkpoint: Path, tokenizer: Path | Tokenizer) -> Chat:
    """Return the chat template of a training or import stage, ready to be used.

    Args:
        checkpoint: directory of the stage.
        tokenizer: directory of the tokenizer stage it was trained with, or what was loaded from there.

    Raises:
        InvalidInput: the checkpoint has no template.
        SourceError: the template is no Jinja, or the tokenizer's files are damaged.
    """
    facts = model_facts(checkpoint)
    source = chat_template_of(facts)
    if not source:
        raise InvalidInput(
            place=str(checkpoint),
            found="a model without a chat template: it was not tuned on conversations",
            wanted="one that was, or that was imported with a template",
            remedy="Leave --chat out, or tune the model on Chats; see docs/how-to/fine-tune.md.",
        )
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    template = ChatTemplate(source, chat_names(loaded, facts), f"{checkpoint}: chat_template")
    encoder = ChatEncoder(loaded, template)
    return Chat(encoder, encoder.end_of_turn())
