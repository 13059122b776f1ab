"""AnswerCache: syntaxes of recent answers, since agents send the same tools with every turn."""

from __future__ import annotations

import json
from collections import OrderedDict

from app.text.tools.answer import AnswerSyntax

MAX_CACHED = 64  # answers
MAX_CACHED_BYTES = 4 << 20  # of the costs together; a grammar is some times as long as the tools in its key
BYTES_PER_TOOL = 1024


class AnswerCache:
    """Syntaxes of the answers of one model, with their grammars, by all that distinguishes them."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, AnswerSyntax] = OrderedDict()
        self._bytes = 0

    def find(self, answer: AnswerSyntax) -> AnswerSyntax:
        """Return an earlier answer that is equal, or `answer` itself."""
        key = _key(answer)
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key, answer)

    def keep(self, answer: AnswerSyntax) -> None:
        """Keep an answer with its grammar for later ones."""
        key = _key(answer)
        if key not in self._answers:
            self._answers[key] = answer
            self._bytes += _cost(key, answer)
        while len(self._answers) > MAX_CACHED or self._bytes > MAX_CACHED_BYTES:
            self._bytes -= _cost(*self._answers.popitem(last=False))


def _cost(key: bytes, answer: AnswerSyntax) -> int:
    """Return the bytes as which an answer counts: of its key, and of the parsers' tables of its tools."""
    return len(key) + BYTES_PER_TOOL * len(answer.use.tools if answer.use is not None else ())


def _key(answer: AnswerSyntax) -> bytes:
    """Return everything on which the syntax of an answer of one model depends."""
    use, form = answer.use, answer.form
    tools = () if use is None else [(tool.name, tool.parameters, tool.strict) for tool in use.tools]
    choice = None if use is None else (use.choice, use.name, use.allows_several)
    content = None if form is None else (form.kind, form.value, form.param, form.is_strict)
    flags = answer.is_reasoning, answer.may_reason, answer.constrains_all
    return json.dumps([tools, choice, content, flags]).encode()
