"""Tool formats: how each model family writes tool calls and reasoning, by name or by the chat template's text."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from app.text.content_format import ContentFormat
from app.text.output_parser import MISTRAL_TAGS, THINK_TAGS, OutputParser, SequentialParser, Tags, ThinkTagParser
from app.text.tools import harmony
from app.text.tools.call_parser import CallParser
from app.text.tools.definitions import ToolUse
from app.text.tools.grammar import answer_grammar
from app.text.tools.grammar_families import SYNTAXES
from app.text.tools.harmony import HarmonyParser
from app.text.tools.json_calls import DeepSeekParser, HermesParser, Llama3Parser, MistralParser
from app.text.tools.pythonic_calls import PythonicParser
from app.text.tools.tagged_calls import GlmParser, Qwen3CoderParser

MISTRAL_ID_CHARACTERS = string.ascii_letters + string.digits
MISTRAL_ID_LENGTH = 9  # Mistral's templates refuse other lengths


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of one model family. Reasoning precedes the answer between tags; calls inside of it are reasoning.

    signs: groups of texts; a chat template that has all texts of a group is of this family.
    call_tokens: special tokens of which calls consist. tags: the tags around reasoning.
    """

    name: str
    call_parser: type[CallParser]
    signs: tuple[tuple[str, ...], ...]
    call_tokens: frozenset[str] = field(default_factory=frozenset)
    tags: tuple[Tags, ...] = (THINK_TAGS,)

    @property
    def reasoning_tokens(self) -> frozenset[str]:
        """Return the tokens that the parser must see as text in any case, although they may be special."""
        return frozenset(tag for pair in self.tags for tag in pair)

    @property
    def visible_tokens(self) -> frozenset[str]:
        """Return the tokens that the parser must see as text if the request has tools."""
        return self.call_tokens | self.reasoning_tokens

    def call_id(self) -> str:
        """Return the id of a new call."""
        return f"call_{secrets.token_hex(12)}"

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends with the beginning of reasoning."""
        return prompt.rstrip().endswith(tuple(pair.open for pair in self.tags))

    def parser(
        self, tools: ToolUse | None, *, is_reasoning: bool = False, may_reason: bool = True
    ) -> OutputParser | None:
        """Return a parser of one answer; None if all of it is content.

        tools: None, or choice none: no text is a call. is_reasoning: the prompt ends with the beginning of reasoning.
        may_reason: the answer may begin with reasoning; False for the continuation of a message that has content.
        """
        calls = self.call_parser(tools, self.call_id) if tools is not None and tools.choice != "none" else None
        if not (may_reason or is_reasoning):
            return calls
        reasoning = ThinkTagParser(is_open=is_reasoning, tags=self.tags)
        return reasoning if calls is None else SequentialParser(reasoning, calls)

    def grammar(
        self,
        use: ToolUse | None,
        form: ContentFormat | None = None,
        *,
        special_tokens: Mapping[str, int] | None = None,
        is_reasoning: bool = False,
        may_reason: bool = True,
        constrains_all: bool = False,
    ) -> str | None:
        """Return the grammar of one answer in the form of `engine.constraints.grammars`; None for a free answer.

        form: format of an answer without calls. special_tokens: ids of the tokenizer's special tokens by text.
        is_reasoning, may_reason: as in `parser`. constrains_all: all arguments must satisfy their schema, not only
        those of strict tools and required calls. Raises `InvalidFormat`.
        """
        if use is not None and (use.choice == "none" or not use.tools):
            use = None
        if form is None and use is None:
            return None
        answer = answer_grammar(
            SYNTAXES[self.name],
            use,
            form.expression() if form is not None else None,
            special_tokens or {},
            tags=self.tags,
            is_reasoning=is_reasoning,
            may_reason=may_reason,
            constrains_all=constrains_all,
        )
        others = form.grammars if form is not None else {}
        grammars = [{"lark_grammar": answer}, *({"name": k, "lark_grammar": v} for k, v in others.items())]
        return json.dumps({"grammars": grammars}, ensure_ascii=False)


class MistralFormat(ToolFormat):
    """Format of Mistral's models, which need ids of their own kind."""

    def call_id(self) -> str:
        """Return an id of nine letters and digits."""
        return "".join(secrets.choice(MISTRAL_ID_CHARACTERS) for _ in range(MISTRAL_ID_LENGTH))


class HarmonyFormat(ToolFormat):
    """Format of gpt-oss, in which reasoning is a message as calls are."""

    @property
    def reasoning_tokens(self) -> frozenset[str]:
        """Return the tokens of which all messages consist."""
        return self.call_tokens

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends with the header of an analysis message."""
        return prompt.endswith(f"{harmony.CHANNEL}analysis{harmony.MESSAGE}")

    def parser(
        self, tools: ToolUse | None, *, is_reasoning: bool = False, may_reason: bool = True
    ) -> OutputParser | None:
        """Return a parser of one answer. `may_reason` is ignored: any message may follow another."""
        is_offered = tools is not None and tools.choice != "none"
        return HarmonyParser(tools if is_offered else None, self.call_id, is_reasoning=is_reasoning)


# The order matters: templates of a format may also have the signs of formats after it.
FORMATS: tuple[ToolFormat, ...] = (
    HarmonyFormat(
        "harmony",
        HarmonyParser,
        (("<|channel|>", "<|message|>"),),
        frozenset({harmony.START, harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE, *harmony.ENDS}),
        (),
    ),
    ToolFormat(
        "deepseek",
        DeepSeekParser,
        (("<｜tool▁call▁begin｜>",),),
        frozenset(
            {
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
            }
        ),
    ),
    ToolFormat(
        "qwen3_coder",
        Qwen3CoderParser,
        (("<function=", "<parameter="),),
        frozenset({"<tool_call>", "</tool_call>"}),
    ),
    ToolFormat(
        "glm",
        GlmParser,
        (("<arg_key>", "<arg_value>"),),
        frozenset({"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
    ),
    MistralFormat(
        "mistral",
        MistralParser,
        (("[TOOL_CALLS]",),),
        frozenset({"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}),
        (MISTRAL_TAGS, THINK_TAGS),
    ),
    ToolFormat(
        "pythonic",
        PythonicParser,
        (("[func_name1(",), ("func1(param1=",), ("func1(params_name1=",)),
        frozenset({"<|python_start|>", "<|python_end|>"}),
    ),
    ToolFormat(
        "llama3_json",
        Llama3Parser,
        (("<|python_tag|>",), ('{"name": function name, "parameters"',), ('"parameters": ', "<|start_header_id|>")),
        frozenset({"<|python_tag|>", "<|python_start|>", "<|python_end|>"}),
    ),
    ToolFormat("hermes", HermesParser, (("<tool_call>",),), frozenset({"<tool_call>", "</tool_call>"})),
)
NO_FORMAT = "none"
FORMAT_NAMES = (*sorted(each.name for each in FORMATS), NO_FORMAT)  # choices of the option


def format_by_name(name: str) -> ToolFormat | None:
    """Return the format with a name of `FORMAT_NAMES`; None for none."""
    return next((each for each in FORMATS if each.name == name), None)


def find_format(template: str, special_tokens: Collection[str] = ()) -> ToolFormat | None:
    """Return the format that a chat template's text shows; None if it shows none, as one without tools does.

    template: the source, or all literal text. special_tokens: texts of the tokenizer's special tokens; a template that
    adds tools to the prompt in its own words may leave the markers of calls to them.
    """
    for each in FORMATS:
        if any(all(sign in template for sign in signs) for signs in each.signs):
            return each
    if "tools" not in template:
        return None
    likeliest = max(reversed(FORMATS), key=lambda each: len(each.call_tokens.intersection(special_tokens)))
    return likeliest if likeliest.call_tokens.intersection(special_tokens) else None
