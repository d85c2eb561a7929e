"""The three questions, asked of a module and its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput
from modelfactory.generate.answers import Completion, RollingScore, Score
from modelfactory.generate.choosing import draws
from modelfactory.generate.decoding import Decoding, Prompt, fitted, room_for_prompt
from modelfactory.generate.encoding import EncodedPair, Encoder, encode_pairs
from modelfactory.generate.preambles import runs, saves_reading, score_run
from modelfactory.generate.products import PackedProducts
from modelfactory.generate.quiet import keeps_states
from modelfactory.generate.scoring import MAX_LOGITS, WindowScore, batches, score_windows
from modelfactory.generate.shared import grouped, is_worth_it, score_groups
from modelfactory.generate.text import Growing, first_stop
from modelfactory.generate.windows import rolling_windows, windows_of_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modelfactory.generate.sampling import Sampling
    from modelfactory.generate.shared import Group
    from modelfactory.generate.windows import Window

BATCH_TOKENS = 2_048
"""On one core, 1,024 to 4,096 are equally fast (1 M parameters); fewer pad less and read ahead less."""


def _nobody_listens(n_done: int, n_total: int) -> None:
    """Stand in for a caller that wants no progress."""


class LanguageModel:
    """A module and its tokenizer, ready to be asked; see the package docstring.

    Every sequence starts with one prefix token, also where a context was cut; of a model whose tokenizer puts
    none before a text (`adds_prefix` False), only a sequence without context does, as lm-evaluation-harness
    has it. A text yields no special token:
    `<|im_end|>` in a prompt is the characters it is made of; `generate_from` takes ids. Answers depend on the
    batch only by the order of floating-point sums (below 1e-5 per token in float32).
    """

    def __init__(
        self,
        module: Any,
        tokenizer: Encoder,
        *,
        max_seq_len: int,
        prefix_id: int | None = None,
        adds_prefix: bool = True,
        batch_tokens: int = BATCH_TOKENS,
        on_batch: Callable[[int, int], None] = _nobody_listens,
    ) -> None:
        """Borrow `module`, which stays the caller's.

        Args:
            module: of the protocol of `models`: `forward(tokens_BT, cache)`, `new_cache(batch, max_len)`.
            tokenizer: the one it was trained with.
            max_seq_len: positions it can read.
            prefix_id: the token every sequence starts with. Default: the end-of-text token, which comes
                before each document in this factory's shards. For a model from elsewhere that was trained
                with a token for the beginning of text, give that.
            adds_prefix: whether the prefix comes before a context or prompt that has tokens. False for a
                model from elsewhere whose texts began without.
            batch_tokens: positions passed at once, of a generation those of all rows at their end.
            on_batch: called with the number of windows or prompts done and their total after each batch,
                and at each step of a generation; may raise to stop.
        """
        self.module = module
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.prefix_id = tokenizer.eos_id if prefix_id is None else prefix_id
        self.adds_prefix = adds_prefix
        self.batch_tokens = batch_tokens
        self.on_batch = on_batch
        self._products = PackedProducts()

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Score each continuation after its context; see `encode_pairs` for the boundary."""
        return self.score_pairs(encode_pairs(self.tokenizer, pairs))

    def score_pairs(self, pairs: Sequence[EncodedPair], *, prefixed: bool = True) -> list[Score]:
        """Do `loglikelihood` on tokens: they are the same for every checkpoint, so callers can keep them.

        Args:
            pairs: context and continuation of each.
            prefixed: whether the prefix comes before each context. Without it the first token of a context,
                which may then not be empty, stands there, also where the context is cut.
        """
        cut = [self._windows(pair, prefixed=prefixed) for pair in pairs]
        scores = iter(self._score([window for windows, _ in cut for window in windows]))
        found = []
        for pair, (windows, n_cut) in zip(pairs, cut, strict=True):
            parts = [next(scores) for _ in windows]
            logprob = sum(part.logprob for part in parts)
            greedy = all(part.is_greedy for part in parts)
            found.append(Score(logprob, greedy, len(pair.continuation), n_cut))
        return found

    def loglikelihood_rolling(self, texts: Sequence[str], *, min_context: int = 1) -> list[RollingScore]:
        """Score each text as a whole, every token once; see `rolling_windows`. An empty text scores 0."""
        return self.score_texts(self.tokenizer.encode_batch(texts), min_context=min_context)

    def score_texts(self, texts: Sequence[Sequence[int]], *, min_context: int = 1) -> list[RollingScore]:
        """Do `loglikelihood_rolling` on tokens."""
        options = {"prefix_id": self.prefix_id, "max_len": self.max_seq_len, "min_context": min_context}
        cut = [list(rolling_windows(tokens, **options)) for tokens in texts]
        scores = iter(self._score([window for windows in cut for window in windows]))
        return [
            RollingScore(sum((next(scores).logprob for _ in windows), 0.0), len(tokens))
            for tokens, windows in zip(texts, cut, strict=True)
        ]

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Completion]:
        """Continue each prompt; an empty one is continued from the prefix."""
        return self.generate_from(self.tokenizer.encode_batch(prompts), sampling)

    def generate_from(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, prefixed: bool = True
    ) -> list[Completion]:
        """Do `generate` on tokens, special ones among them if need be.

        Args:
            prompts: ids of each.
            sampling: how tokens are chosen, and where a completion ends.
            prefixed: whether the prefix comes before each prompt. Without it, as chats are encoded, prompts
                may not be empty.

        Raises:
            InvalidInput: an id that is no token, or an empty prompt without a prefix.
        """
        fitting = [self._fitted(ids, sampling, prefixed=prefixed) for ids in prompts]
        found: dict[int, Completion] = {}
        lengths = [len(prompt.ids) + sampling.max_new_tokens for prompt in fitting]
        add = self._counting(len(prompts))
        for numbers in batches(lengths, self.batch_tokens):
            batch = [fitting[number] for number in numbers]
            for row, completion in self._complete(batch, numbers, sampling, add):
                found[numbers[row]] = completion
        return [found[number] for number in range(len(prompts))]

    def stream(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """Yield the completion of one prompt as it is made: whole characters, never part of a stop."""
        return self.stream_from(self.tokenizer.encode_batch([prompt])[0], sampling)

    def stream_from(
        self, prompt: Sequence[int], sampling: Sampling, *, prefixed: bool = True
    ) -> Iterator[str]:
        """Do `stream` on tokens; see `generate_from`."""
        fitting = self._fitted(prompt, sampling, prefixed=prefixed)
        growing = Growing(self.tokenizer, sampling)
        for new in self._decoding([fitting], sampling).steps(draws(sampling, [0])):
            if self._is_end(new[0], sampling):
                break
            growing.push(new[0])
            if piece := growing.take():
                yield piece
            if growing.stopped or len(growing.ids) == sampling.max_new_tokens:
                break
        growing.finish()
        if piece := growing.take(final=True):
            yield piece

    def _score(self, windows: Sequence[Window]) -> list[WindowScore]:
        """Score windows in their order; what neighbours share is read once."""
        with self._products:
            return self._scored(windows)

    def _scored(self, windows: Sequence[Window]) -> list[WindowScore]:
        scores: dict[int, WindowScore] = {}
        most = self.batch_tokens if keeps_states(self.module) else MAX_LOGITS // self.tokenizer.vocab_size
        budget = max(1, min(self.batch_tokens, most))
        options: Any = {"batch_tokens": budget, "on_batch": self._counting(len(windows))}
        groups: list[Group] = []
        for run in runs(list(grouped(windows))):
            if saves_reading(run, budget):
                scores.update(score_run(self.module, run, **options))
            else:
                groups.extend(run.groups)
        shared = [group for group in groups if is_worth_it(group)]
        scores.update(score_groups(self.module, shared, **options))
        alone = [number for group in groups if not is_worth_it(group) for number in group.numbers]
        found = score_windows(self.module, [windows[number] for number in alone], **options)
        scores.update(zip(alone, found, strict=True))
        return [scores[number] for number in range(len(windows))]

    def _counting(self, n_total: int) -> Callable[[int], None]:
        """Return a function that adds up what is done and tells `on_batch`."""
        done = [0]

        def add(n_done: int) -> None:
            done[0] += n_done
            self.on_batch(done[0], n_total)

        return add

    def _is_end(self, token: int, sampling: Sampling) -> bool:
        return token == self.tokenizer.eos_id or token in sampling.stop_ids

    def _windows(self, pair: EncodedPair, *, prefixed: bool) -> tuple[list[Window], int]:
        ids, n_cut = pair.context, 0
        if prefixed and not self.adds_prefix:
            ids, n_cut = self._last_of(ids, self.max_seq_len + 1 - len(pair.continuation))
            prefixed = not ids
        first, context = self._parted(ids, prefixed=prefixed)
        whole = EncodedPair(context, pair.continuation)
        windows, n_more = windows_of_pair(whole, prefix_id=first, max_len=self.max_seq_len)
        return windows, n_cut + n_more

    @staticmethod
    def _last_of(ids: Sequence[int], room: int) -> tuple[tuple[int, ...], int]:
        """Return the last tokens of a text without a beginning to keep, and how many were cut."""
        n_cut = min(max(0, len(ids) - max(room, 1)), max(len(ids) - 1, 0))
        return tuple(ids[n_cut:]), n_cut

    def _parted(self, ids: Sequence[int], *, prefixed: bool) -> tuple[int, tuple[int, ...]]:
        """Return the token that comes first, and those after it."""
        odd = [number for number in ids if not 0 <= number < self.tokenizer.vocab_size]
        if odd or not (ids or prefixed):
            raise InvalidInput(
                place="prompt",
                found=f"the id {odd[0]}" if odd else "no token, and no prefix",
                wanted=f"ids from 0 to {self.tokenizer.vocab_size - 1}, at least one without a prefix",
                remedy="Encode the text with the tokenizer of the model.",
            )
        return (self.prefix_id, tuple(ids)) if prefixed else (ids[0], tuple(ids[1:]))

    def _fitted(self, ids: Sequence[int], sampling: Sampling, *, prefixed: bool) -> Prompt:
        kept, n_cut = tuple(ids), 0
        if prefixed and not self.adds_prefix:
            kept, n_cut = self._last_of(ids, room_for_prompt(self.max_seq_len, sampling.max_new_tokens))
            prefixed = not kept
        first, rest = self._parted(kept, prefixed=prefixed)
        prompt = fitted(
            rest,
            prefix_id=first,
            max_len=self.max_seq_len,
            max_new_tokens=sampling.max_new_tokens,
        )
        return replace(prompt, n_cut=prompt.n_cut + n_cut)

    def _decoding(self, batch: Sequence[Prompt], sampling: Sampling) -> Decoding:
        return Decoding(self.module, batch, sampling, max_len=self.max_seq_len, products=self._products)

    def _complete(
        self,
        batch: Sequence[Prompt],
        numbers: Sequence[int],
        sampling: Sampling,
        add: Callable[[int], None],
    ) -> Iterator[tuple[int, Completion]]:
        """Continue one batch until every row has ended; yield each (row, completion)."""
        rows = [Growing(self.tokenizer, sampling) for _ in batch]
        open_rows = set(range(len(batch)))
        decoding = self._decoding(batch, sampling)
        for new in decoding.steps(draws(sampling, numbers)):
            ended = {
                row: finish
                for row in open_rows & new.keys()
                if (finish := self._finish(rows[row], new[row], sampling))
            }
            open_rows -= ended.keys()
            for row, finish in ended.items():
                yield row, self._completion(rows[row], finish, batch[row], decoding.n_moves)
            add(len(ended))
            if not open_rows:
                return

    def _finish(self, growing: Growing, token: int, sampling: Sampling) -> Any:
        """Add a token to a completion; return why it ends here, if it does."""
        if self._is_end(token, sampling):
            return "eos"
        growing.push(token)
        if growing.stopped:
            return "stop"
        return "length" if len(growing.ids) == sampling.max_new_tokens else None

    def _completion(self, growing: Growing, finish: Any, prompt: Prompt, n_moves: int) -> Completion:
        """Decode the whole at once: exact also where single tokens were broken characters."""
        text = self.tokenizer.decode(growing.ids)
        stop = first_stop(text, growing.sampling)
        return Completion(
            text=text[:stop],
            ids=tuple(growing.ids),
            finish="stop" if stop is not None else finish,
            n_cut=prompt.n_cut,
            n_moves=n_moves,
        )
