"""What holds for any text and any cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from modelfactory.generate import EncodedPair, Sampling, rolling_windows, windows_of_pair
from modelfactory.generate.text import Growing, first_stop

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS = st.lists(st.integers(0, 255), max_size=60)
LENGTHS = st.integers(1, 12)


class Bytes:
    eos_id = 256
    vocab_size = 257

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@given(TOKENS, LENGTHS, st.data())
def test_rolling_windows_score_every_token_once(tokens: list[int], max_len: int, data: st.DataObject) -> None:
    min_context = data.draw(st.integers(1, max_len))
    windows = list(rolling_windows(tokens, prefix_id=256, max_len=max_len, min_context=min_context))
    assert [target for window in windows for target in window.targets] == tokens
    n_before = 0
    for window in windows:
        assert len(window.inputs) <= max_len
        assert window.first_scored + 1 >= min(min_context, n_before + 1)
        n_before += len(window.targets)


@given(TOKENS, TOKENS.filter(bool), LENGTHS)
def test_every_token_of_a_continuation_is_scored_once(
    context: list[int], continuation: list[int], max_len: int
) -> None:
    pair = EncodedPair(tuple(context), tuple(continuation))
    windows, n_cut = windows_of_pair(pair, prefix_id=256, max_len=max_len)
    assert [target for window in windows for target in window.targets] == continuation
    assert windows[0].inputs[0] == 256
    assert 0 <= n_cut <= len(context)


@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), st.text(max_size=2))
def test_a_stream_shows_what_decoding_the_whole_gives(said: bytes, stop: str) -> None:
    sampling = Sampling(max_new_tokens=99, stops=(stop,) if stop else ())
    growing = Growing(Bytes(), sampling)
    shown = ""
    for token in said:
        growing.push(token)
        shown += growing.take()
        if growing.stopped:
            break
    growing.finish()
    shown += growing.take(final=True)
    whole = said.decode("utf-8", errors="replace")
    assert shown == whole[: first_stop(whole, sampling)]
