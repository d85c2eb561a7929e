"""Conversations to text, by the Jinja template that comes with a tokenizer.

Templates are run as their users expect: in a sandbox, with trim_blocks and lstrip_blocks, loop controls,
`raise_exception`, and the names of special tokens. There is no `strftime_now`: with a date in it, one dataset
would give other tokens every day. Templates that ask for one fall back to a date of their own.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import jinja2
    from jinja2 import nodes

_BEGIN, _END = "begin_of_generation", "end_of_generation"
_FIRST_MARK, _LAST_MARK = 0x100000, 0x10FFFE
"""Private use: characters that texts hardly ever hold; those that they do are passed over."""
_BROKEN = (ArithmeticError, LookupError, RecursionError)
"""What else a template may raise."""
_ANSWER = "An answer."
_ASKED = ({"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER})
_MARK_REMEDY = "Put {% generation %} and {% endgeneration %} around what the assistant says in the template."


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    learnt: list[tuple[int, int]]
    """What the assistant said, with what ends its turn: first character and one past the last."""
    special: list[tuple[int, int]]
    """Special tokens that the template wrote."""
    is_plain: bool
    """Whether no message spells out a special token."""


def default_template(told: Any) -> str | None:
    """Return the template in a tokenizer's configuration; of several by name the one called `default`.

    Args:
        told: the value of `chat_template` there, whatever it is.
    """
    if isinstance(told, list):
        named = {each.get("name"): each.get("template") for each in told if isinstance(each, dict)}
        told = named.get("default")
    return told if isinstance(told, str) else None


class ChatTemplate:
    """A template of chats.

    Args:
        source: Jinja.
        names: of special tokens, such as `bos_token`, which templates use as variables.
        place: names the template in errors.

    Raises:
        SourceError: it is no Jinja.
    """

    def __init__(self, source: str, names: Mapping[str, str], place: str) -> None:
        import jinja2

        self.source, self.place = source, place
        self.names = dict(names)
        self._is_marked = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:  # the last two: nested too deep
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise SourceError(
                place=place,
                found=f"a template that is no Jinja ({error}{line})",
                wanted="the template of chats that belongs to the tokenizer",
                remedy="Take it from the model that the tokenizer is of.",
            ) from error

    def render(
        self, messages: Sequence[Mapping[str, str]], special: re.Pattern[str], document: str
    ) -> Rendered:
        """Return the text of a conversation, what of it is learnt, and which special tokens are meant.

        What a template marks by `{% generation %}` is learnt. In a template without these marks it is what an
        assistant's message adds to the text, from the prompt for it to its last special token; then the text
        up to a message may not depend on those after it.

        A message that spells out a special token is shown to the template with one strange character in its
        place. (A template that writes one half of a special token, next to a message, is not foreseen.)

        Args:
            messages: role and content of each.
            special: matches the special tokens of the tokenizer.
            document: names the conversation in errors.

        Raises:
            SourceError: the template refuses the conversation, or it cannot be told what is learnt.
        """
        whole = self._rendered(messages, special, document)
        if self._is_marked:
            return whole
        answers = (n for n, message in enumerate(messages) if message["role"] == "assistant")
        learnt = [self._added(whole, messages, n, special, document) for n in answers]
        return whole._replace(learnt=learnt)

    def prompt(
        self, messages: Sequence[Mapping[str, str]], special: re.Pattern[str], document: str
    ) -> Rendered:
        """Return the text after which the assistant's next message begins.

        Args:
            messages: role and content of each, the user's last.
            special: matches the special tokens of the tokenizer.
            document: names the conversation in errors.

        Raises:
            SourceError: the template refuses the conversation.
        """
        return self._rendered(messages, special, document, add_generation_prompt=True)

    def end_of_turn(self, special: re.Pattern[str]) -> str | None:
        """Return the special token that follows what an assistant says; None where there is none.

        Args:
            special: matches the special tokens of the tokenizer.
        """
        try:
            whole = self._rendered(_ASKED, special, "a conversation of two messages")
        except SourceError:
            return None  # a template for other conversations
        end = whole.text.rfind(_ANSWER) + len(_ANSWER)
        following = next((span for span in whole.special if span[0] >= end), None)
        if following is None or _ANSWER not in whole.text or whole.text[end : following[0]].strip():
            return None
        return whole.text[slice(*following)]

    def _added(
        self,
        whole: Rendered,
        messages: Sequence[Mapping[str, str]],
        n: int,
        special: re.Pattern[str],
        document: str,
    ) -> tuple[int, int]:
        """Return which part of the text an assistant's message is."""
        before = self._rendered(messages[:n], special, document, add_generation_prompt=True).text
        after = self._rendered(messages[: n + 1], special, document).text
        if not (after.startswith(before) and whole.text.startswith(after)):
            raise SourceError(
                place=f"{self.place}, {document}",
                found=f"a text up to messages[{n}] that depends on the messages after it",
                wanted="a template under which a conversation only grows, or one that marks answers",
                remedy=_MARK_REMEDY,
            )
        start, end = len(before), len(after)
        ends = [last for first, last in whole.special if first >= start and last <= end]
        if ends and not whole.text[ends[-1] : end].strip():
            end = ends[-1]  # the line break between two turns is not the assistant's
        return start, end

    def _rendered(
        self, messages: Sequence[Mapping[str, str]], special: re.Pattern[str], document: str, **more: Any
    ) -> Rendered:
        import jinja2

        marks = _Marks([self.source, *(message["content"] for message in messages)])
        told = [{**message, "content": marks.quoting(message["content"], special)} for message in messages]
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **self.names, **more}
        try:
            marked = self._template.render(messages=told, **variables, **marks.variables)
        except (jinja2.TemplateError, TypeError, ValueError, *_BROKEN) as error:
            raise SourceError(
                place=f"{self.place}, {document}",
                found=f"a conversation that the template cannot render ({error})",
                wanted="messages of the kind that the template is for",
                remedy="Leave such conversations out, or give another template.",
            ) from error
        return marks.taken_out(marked, special)


class _Marks:
    """Characters that stand for something else while a template runs; `texts` hold none of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        taken = set("".join(texts))
        self._free = (chr(n) for n in range(_FIRST_MARK, _LAST_MARK) if chr(n) not in taken)
        self._begin, self._end = next(self._free), next(self._free)
        self._marks: dict[str, str] = {}
        """Special token that a message spells out -> what stands for it."""

    @property
    def variables(self) -> dict[str, str]:
        """What the tag `generation` writes before and after its body."""
        return {_BEGIN: self._begin, _END: self._end}

    def quoting(self, content: str, special: re.Pattern[str]) -> str:
        """Return a message without the special tokens that it spells out."""
        for name in set(special.findall(content)) - self._marks.keys():
            self._marks[name] = next(self._free)
        return special.sub(lambda found: self._marks[found[0]], content)

    def taken_out(self, marked: str, special: re.Pattern[str]) -> Rendered:
        """Return the text without marks, and what they said."""
        names = {mark: name for name, mark in self._marks.items()}
        parts, length, bounds, meant = list[str](), 0, list[int](), list[tuple[int, int]]()
        for part in re.split(f"([{self._begin}{self._end}{''.join(names)}])", marked):
            if part in (self._begin, self._end):
                bounds.append(length)
                continue
            if part not in names:
                meant += [(length + found.start(), length + found.end()) for found in special.finditer(part)]
            parts.append(names.get(part, part))
            length += len(parts[-1])
        learnt = list(zip(bounds[::2], bounds[1::2], strict=True))
        return Rendered(text="".join(parts), learnt=learnt, special=meant, is_plain=not names)


def _environment() -> jinja2.Environment:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around what an assistant says: its body, between two marks."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (nodes.Output([nodes.Name(name, "load")], lineno=line) for name in (_BEGIN, _END))
            return [begin, *body, end]

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
