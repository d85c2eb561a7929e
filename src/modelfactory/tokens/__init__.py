"""From documents to batches: tokenizer, shards, mixture, stream.

`BPE` or `TokenizerFile` says which tokenizer; its stage makes one, `load_tokenizer` opens it. The tokens
stage writes a shard in Megatron's format, `TokenShard.open` maps it. A `Mixture` weighs datasets, and a
`Stream` gives the batch of any step as a pure function of (mixture, seed, step).
"""

from modelfactory.tokens.batch import Batch, DocumentSpan
from modelfactory.tokens.chat_files import chat_files
from modelfactory.tokens.epochs import check_epochs, required_epochs
from modelfactory.tokens.shard import Document, TokenShard
from modelfactory.tokens.specs import BPE, MAX_EPOCHS, Mixture, Part, Shards, TokenizerFile
from modelfactory.tokens.stream import Stream
from modelfactory.tokens.threads import tokenizer_threads
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer
from modelfactory.tokens.weights import Shares, integer_shares

__all__ = [
    "BPE",
    "MAX_EPOCHS",
    "Batch",
    "Document",
    "DocumentSpan",
    "Mixture",
    "Part",
    "Shards",
    "Shares",
    "Stream",
    "TokenShard",
    "Tokenizer",
    "TokenizerFile",
    "chat_files",
    "check_epochs",
    "integer_shares",
    "load_tokenizer",
    "required_epochs",
    "tokenizer_threads",
]
