"""AnswerSyntax: reasoning, content and calls of one answer, of which its grammar and its parsers are made."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.text.content_format import ContentFormat
from app.text.marks import Marks
from app.text.output_parser import OutputParser, SequentialParser, Tags, ThinkTagParser
from app.text.tools import harmony
from app.text.tools.call_lists import CallListParser
from app.text.tools.definitions import ToolOffer, ToolUse
from app.text.tools.grammar import calls_expression, text_with_calls
from app.text.tools.grammar_rules import GrammarRules, any_of
from app.text.tools.harmony import HarmonyParser
from app.text.tools.syntax import CallOffer, CallSyntax

GAP = "/[ \\n]{0,4}/"  # white space after reasoning


@dataclass(frozen=True, kw_only=True)
class AnswerSyntax(ABC):
    """Syntax of one answer.

    use: tools that it may call; None: no text is a call. form: format of an answer without calls; None: any text.
    is_reasoning: the prompt ends with the beginning of reasoning. may_reason: the answer may begin with reasoning;
    False for the continuation of a message that has content. constrains_all: all arguments satisfy their schemas, not
    only those of strict tools and forced calls. call_id: returns the id of the call with a name.
    """

    use: ToolUse | None
    form: ContentFormat | None
    marks: Marks
    call_id: Callable[[str], str]
    is_reasoning: bool = False
    may_reason: bool = True
    constrains_all: bool = False

    @property
    def is_forced(self) -> bool:
        """Return whether the answer must have a call."""
        return self.use is not None and self.use.choice == "required"

    @property
    def has_grammar(self) -> bool:
        """Return whether `grammar` needs no more work."""
        return "_grammar" in self.__dict__

    def grammar(self) -> str | None:
        """Return the grammar in the form of `engine.constraints.grammars`; None for a free answer.

        Raises `InvalidFormat`.
        """
        return self._grammar

    @cached_property
    def _grammar(self) -> str | None:
        if self.form is None and self.use is None:
            return None
        rules = GrammarRules(self.marks)
        rules.add("start", self._expression(rules))
        others = self.form.grammars if self.form is not None else {}
        grammars = [{"lark_grammar": str(rules)}, *({"name": k, "lark_grammar": v} for k, v in others.items())]
        return json.dumps({"grammars": grammars}, ensure_ascii=False)

    @abstractmethod
    def _expression(self, rules: GrammarRules) -> str:
        """Return an expression for the whole answer."""

    @abstractmethod
    def parser(self, name: str = "") -> OutputParser | None:
        """Return a parser of the choice with a name, from which its calls have ids; None if all text is content."""

    def _new_id(self, name: str) -> Callable[[int], str]:
        """Return a function for the ids of a choice's calls by their numbers."""
        return lambda number: self.call_id(f"{name}-{number}")


@dataclass(frozen=True, kw_only=True)
class TaggedAnswer(AnswerSyntax):
    """Answer with reasoning between tags, which precedes it. Calls inside of reasoning are reasoning."""

    calls: CallSyntax
    tags: Sequence[Tags]

    @cached_property
    def _offer(self) -> CallOffer | None:
        if self.use is None:
            return None
        return CallOffer(self.use, self.constrains_all, syntax=self.calls, marks=self.marks)

    @property
    def _allows_reasoning(self) -> bool:
        """Return whether a block of reasoning may precede the answer.

        A format that mentions its tag describes the whole answer, so that the block is content.
        """
        is_described = self.form is not None and any(self.form.mentions(pair.open) for pair in self.tags)
        return self.is_reasoning or (self.may_reason and not is_described)

    def _expression(self, rules: GrammarRules) -> str:
        answers: list[str] = []
        if self._offer is not None:
            self._offer.prepare()
            write = text_with_calls if self.form is None and not self.is_forced else calls_expression
            answers.append(rules.add("with_calls", write(rules, self._offer)))
        if self.form is not None and not self.is_forced:
            answers.append(rules.add("content", self.form.expression()))
        reasoning = self._reasoning(rules) if self._allows_reasoning else ""
        if not reasoning or self.is_reasoning:
            return f"{reasoning} {any_of(answers)}"
        if self.form is None or self.form.kind != "regex" or self.is_forced:
            return f"({reasoning})? {any_of(answers)}"
        *calls, _ = answers
        return any_of([f"{reasoning} {any_of(answers)}", *calls, self._content_without_tag(rules, self.form)])

    def _reasoning(self, rules: GrammarRules) -> str:
        """Return an expression for reasoning."""
        blocks = []
        for index, pair in enumerate(self.tags):
            block = rules.until(f"reasoning_{index}", pair.close)
            if not self.is_reasoning:
                begin = rules.text(pair.open)
                if self._is_text(pair.open):
                    begin = rules.add_lazy(f"open_{index}", begin)
                block = f"({begin} {block})"
            blocks.append(block)
        return f"{any_of(blocks)} {rules.add('gap', GAP)}"

    def _content_without_tag(self, rules: GrammarRules, form: ContentFormat) -> str:
        """Return an expression for content in the format of a regular expression that does not begin like reasoning."""
        tags = "|".join(re.escape(pair.open) for pair in self.tags if self._is_text(pair.open))
        return rules.add("PLAIN_CONTENT", f"{form.expression()} & ~/(?s:\\s*({tags}).*)/") if tags else "content"

    def _is_text(self, tag: str) -> bool:
        """Return whether a tag is no special token."""
        return self.marks.encode(tag) == tag

    def parser(self, name: str = "") -> OutputParser | None:
        """Return a parser of one choice; None if all text is content."""
        calls = CallListParser(self._offer, self._new_id(name)) if self._offer is not None else None
        if not self._allows_reasoning:
            return calls
        tags = [Tags(*map(self.marks.encode, pair)) for pair in self.tags]
        is_json = self.form is not None and self.form.kind == "json_schema"
        reasoning = ThinkTagParser(is_open=self.is_reasoning, tags=tags, drops_cut_tag=is_json or self.is_forced)
        return reasoning if calls is None else SequentialParser(reasoning, calls)


@dataclass(frozen=True, kw_only=True)
class HarmonyAnswer(AnswerSyntax):
    """Answer in messages, of which some are reasoning. Any message may follow another."""

    @property
    def _offer(self) -> ToolOffer | None:
        return None if self.use is None else ToolOffer(self.use, self.constrains_all)

    def _expression(self, rules: GrammarRules) -> str:
        answers: list[str] = []
        if self._offer is not None:
            call = harmony.call_expression(rules, self._offer)
            answers.append(call if self.is_forced or self.form is not None else f"{harmony.preamble(rules)} {call}")
        if not self.is_forced:
            content = rules.add("content", self.form.expression()) if self.form is not None else None
            answers.append(harmony.final_message(rules, content))
        before = harmony.analysis(rules, is_open=self.is_reasoning) if self.is_reasoning or self.may_reason else ""
        return f"{before} {any_of(answers)}"

    def parser(self, name: str = "") -> OutputParser | None:
        """Return a parser of one choice."""
        return HarmonyParser(self._offer, self._new_id(name), self.marks, is_reasoning=self.is_reasoning)
