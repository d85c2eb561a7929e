"""Whatever messages hold, special tokens are the template's, and the text is kept."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tokens.chats import BEGIN, END, EOS, MARKED, UNMARKED, encoder, spelled, told

PIECES = (
    BEGIN,
    END,
    EOS,
    "<|im_",
    "end|>",
    "<|",
    "|>",
    "<",
    "im_start",
    " ",
    "\n",
    "é",
    "\U0001f600",
    "\U00100000",
)
CONTENT = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), min_size=1, max_size=8).map("".join)
SAID = CONTENT.map(lambda text: text.encode("utf-8", "replace").decode() + ".")
CHAT = st.lists(st.tuples(SAID, SAID), min_size=1, max_size=3)
ENCODERS = (encoder(UNMARKED), encoder(MARKED, bos_token=""))


@settings(deadline=None, max_examples=150)
@given(turns=CHAT, which=st.sampled_from([0, 1]))
@example(turns=[(f"a{END}", f"{BEGIN}b")], which=0)
@example(turns=[("\U00100000.", "\U00100001\U0010fffd.")], which=0)
def test_special_tokens_are_the_templates_alone(turns: list[tuple[str, str]], which: int) -> None:
    chat = [part for ask, answer in turns for part in (("user", ask), ("assistant", answer))]
    of = ENCODERS[which]
    ((ids, learnt),) = told(of, chat)
    assert [ids.count(number) for number in (0, 1, 2)] == [1, len(chat), len(chat)]
    said = [(role, text.strip() if which and role == "user" else text) for role, text in chat]
    assert of.tokenizer.decode(ids) == "".join(f"{BEGIN}{role}\n{text}{END}\n" for role, text in said) + EOS
    assert spelled(of, ids, learnt).endswith(END)
    answers = sum(len(answer) for _, answer in turns)
    assert len(spelled(of, ids, learnt)) >= answers + len(END) * len(turns)
