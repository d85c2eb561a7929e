"""What an import gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

from modelfactory.models import Decoder
from modelfactory.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model from elsewhere, as a spec with its weights."""

    spec: Decoder
    vocab_size: int
    """Rows of the vocabulary matrix; may be more than the tokenizer has tokens."""
    state: Mapping[str, Any]
    """Tensors by our names, float32."""
    tokenizer: Tokenizer | None
    """None where none lies beside the weights."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: format, architecture, dtype, chat_template, ..."""

    @property
    def prefix_id(self) -> int | None:
        """The token that starts every text: that for its beginning, where the tokenizer has one."""
        if self.tokenizer is None:
            return None
        return self.tokenizer.eos_id if self.tokenizer.bos_id is None else self.tokenizer.bos_id

    def build(self) -> torch.nn.Module:
        """Return the module with its weights, in evaluation mode: float32, on the CPU."""
        module = cast("torch.nn.Module", self.spec.build(self.vocab_size, seed=0))
        module.load_state_dict(dict(self.state), assign=True)
        return module.eval()
