"""Control tokens inside messages are encoded as plain text, so that no message can forge a turn of the conversation.

Each control token in a caller's string is wrapped between two edges before the chat template sees it, so that template
code which looks for the token still finds it. In the rendered text, breaks are put between the characters of a wrapped
token. The tokenizer looks for its added tokens before it normalizes a text, and its first normalizer removes the
breaks: the token is not matched, and its characters are split and merged together with the text around them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tokenizers import Tokenizer, normalizers

Messages: TypeAlias = Sequence[dict[str, Any]]
Variables: TypeAlias = Mapping[str, Any]

MAX_CONTROL_TOKENS = 16_384  # control tokens in one conversation: more would hold up the event loop
NONCE_DIGITS = 12
SEARCH_SLICE_CHARACTERS = 64 << 10  # searched at a time


class TooManyControlTokens(Exception):
    """A conversation contains more control tokens than the limit."""


class ControlTokens:
    """The control tokens of one tokenizer: its special tokens, and the added tokens that its chat template writes."""

    def __init__(self, tokenizer: Tokenizer, template_text: str) -> None:
        """Prepare `tokenizer` to remove breaks. template_text: the literal text of the chat template."""
        # Digits survive filters such as `upper` and `tojson`. A caller that guesses them gains nothing: its own edge
        # does not unwrap a token, and a break only removes itself.
        nonce = f"{secrets.randbelow(10**NONCE_DIGITS):0{NONCE_DIGITS}}"
        self._break, self._start, self._end = (f"{nonce}{digit}" for digit in "012")
        added = tokenizer.get_added_tokens_decoder().values()
        # A token of one character cannot be broken; white space is ordinary text in templates too.
        self._tokens = {
            token.content
            for token in added
            if len(token.content) > 1
            and (token.special or (token.content in template_text and not token.content.isspace()))
        }
        self._any = _any_of(self._tokens)
        self._longest = max(map(len, self._tokens), default=1)
        self._reach = self._longest - 1 or 1  # characters that could form a token together with an adjacent text
        self._edges = re.compile(f"({self._start}|{self._end})")
        # Some tokens are matched in the normalized text, where breaks are gone and other characters may have become a
        # token.
        normalized = {token.content for token in added if token.normalized} & self._tokens
        self._any_normalized = _any_of(normalized)
        self._normalizer = tokenizer.normalizer if normalized else None
        self.tokenizer = _not_normalized(tokenizer, normalized) if normalized else tokenizer
        for prepared in {id(each): each for each in (tokenizer, self.tokenizer)}.values():
            self._remove_breaks(prepared)

    def wrap_tokens(
        self, messages: Messages, variables: Variables | None, tools: Sequence[dict[str, Any]] = ()
    ) -> tuple[Messages, Variables, Sequence[dict[str, Any]]] | None:
        """Return messages, template variables and tools with their control tokens wrapped, or None if there are none.
        Roles are unchanged. Raises `TooManyControlTokens`.
        """
        count = 0

        def wrap(value: Any) -> Any:
            nonlocal count
            if isinstance(value, dict):
                return {wrap(key): wrap(item) for key, item in value.items()}
            if isinstance(value, list):
                return [wrap(item) for item in value]
            if not isinstance(value, str):
                return value
            pieces, done = [], 0
            for start, end in self._find(value, self._any):
                pieces += [value[done:start], self._start, value[start:end], self._end]
                done = end
                count += 1
                if count > MAX_CONTROL_TOKENS:
                    message = f"the conversation contains more than {MAX_CONTROL_TOKENS:,} control tokens"
                    raise TooManyControlTokens(message)
            if pieces:
                return "".join([*pieces, value[done:]])
            if self._normalizes_to_token(value):
                count += 1
                return value + self._start  # makes `tokenizer` encode the text, which matches no normalized token
            return value

        turns = [{key: value if key == "role" else wrap(value) for key, value in turn.items()} for turn in messages]
        for index in range(len(messages) - 1):
            if self._joins(messages[index].get("content"), messages[index + 1].get("content")):
                content = turns[index]["content"]
                end = len(content.rstrip())  # a template may trim the rest
                turns[index]["content"] = content[:end] + self._start + content[end:]
                count += 1
        more = {name: wrap(value) for name, value in (variables or {}).items()}
        wrapped_tools = [wrap(tool) for tool in tools]
        return (turns, more, wrapped_tools) if count else None

    def _find(self, text: str, tokens: re.Pattern[str]) -> Iterator[tuple[int, int]]:
        """Yield start and end of each control token, in slices: a search does not release the interpreter lock."""
        at = 0
        while at < len(text):
            found = tokens.search(text, at, at + SEARCH_SLICE_CHARACTERS + self._longest)
            if found is None or found.start() >= at + SEARCH_SLICE_CHARACTERS:
                at += SEARCH_SLICE_CHARACTERS
            else:
                yield found.span()
                at = found.end()

    def insert_breaks(self, text: str) -> str:
        """Return a rendered text with breaks in place of the edges and inside each wrapped token."""
        pieces = self._edges.split(text)  # text, edge, text, edge, ..., text
        sealed = [pieces[0]]
        for at in range(1, len(pieces), 2):
            is_wrapped = pieces[at] == self._start and pieces[at + 2 : at + 3] == [self._end]
            sealed.append(self._break.join(pieces[at + 1]) if is_wrapped else pieces[at + 1])
        return self._break.join(sealed)

    def unwrap(self, text: str) -> str:
        """Return a text without edges and breaks."""
        return self._edges.sub("", text).replace(self._break, "")

    def is_sealed(self, text: str) -> bool:
        """Return whether `text` has breaks."""
        return self._break in text

    def _joins(self, text: Any, following: Any) -> bool:
        """Return whether the ends of two contents, joined by a template with or without trimming, would form a control
        token.
        """
        if not isinstance(text, str) or not isinstance(following, str):
            return False
        tail, head = text.rstrip()[-self._reach :], following.lstrip()[: self._reach]
        return any(found.start() < len(tail) < found.end() for found in self._any.finditer(tail + head))

    def _normalizes_to_token(self, text: str) -> bool:
        if self._normalizer is None:
            return False
        found = self._find(self._normalizer.normalize_str(text), self._any_normalized)
        return next(found, None) is not None

    def _remove_breaks(self, tokenizer: Tokenizer) -> None:
        first, given = normalizers.Replace(self._break, ""), tokenizer.normalizer
        tokenizer.normalizer = first if given is None else normalizers.Sequence([first, given])


def _any_of(contents: set[str]) -> re.Pattern[str]:
    """Return a pattern of any of `contents`, the longest first."""
    return re.compile(_longest_of(contents) if contents else "(?!)")


def _not_normalized(tokenizer: Tokenizer, contents: set[str]) -> Tokenizer:
    """Return a copy of `tokenizer` that matches these added tokens before it normalizes a text."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["normalized"] = token["normalized"] and token["content"] not in contents
    copy = Tokenizer.from_str(json.dumps(content))
    copy.encode_special_tokens = tokenizer.encode_special_tokens
    return copy


def _longest_of(words: Iterable[str]) -> str:
    """Return a pattern that matches the longest of `words`, as a tree of their common prefixes: text that begins like a
    thousand words is compared with one branch rather than with each word.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        branches = [re.escape(character) + pattern(rest) for character, rest in sorted(node.items()) if character]
        if not branches:
            return ""
        joined = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
        return joined + ("?" if "" in node else "")

    return pattern(tree)
