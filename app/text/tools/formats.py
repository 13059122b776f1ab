"""Tool formats: how each model family writes tool calls and reasoning, by name or by the chat template's text."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from app.text.content_format import ContentFormat
from app.text.marks import Marks
from app.text.output_parser import MISTRAL_TAGS, THINK_TAGS, Tags
from app.text.tools import families, harmony
from app.text.tools.answer import AnswerSyntax, HarmonyAnswer, TaggedAnswer
from app.text.tools.definitions import ToolUse
from app.text.tools.syntax import CallSyntax

CALL_ID_BYTES = 12
MISTRAL_ID_CHARACTERS = string.ascii_letters + string.digits
MISTRAL_ID_LENGTH = 9  # Mistral's templates refuse other lengths


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of one model family. Reasoning precedes the answer between tags; calls inside of it are reasoning.

    calls: syntax of calls; None for harmony. signs: groups of texts; a chat template that has all texts of a group is
    of this family. tags: the tags around reasoning.
    """

    name: str
    calls: CallSyntax | None
    signs: tuple[tuple[str, ...], ...]
    tags: tuple[Tags, ...] = (THINK_TAGS,)

    @property
    def call_tokens(self) -> frozenset[str]:
        """Return the texts of which calls consist and that may be special tokens."""
        return self.calls.markers if self.calls is not None else harmony.MARKERS

    @property
    def reasoning_tokens(self) -> frozenset[str]:
        """Return the texts around reasoning that may be special tokens."""
        return frozenset(tag for pair in self.tags for tag in pair) if self.calls is not None else harmony.MARKERS

    @property
    def visible_tokens(self) -> frozenset[str]:
        """Return the texts that may be special tokens of an answer with tools."""
        return self.call_tokens | self.reasoning_tokens

    def call_id(self, name: str) -> str:
        """Return the id of the call with a name, always the same one: an answer that is made again has its ids."""
        return f"call_{_digest(name).hex()}"

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends with the beginning of reasoning."""
        if self.calls is None:
            return prompt.endswith(harmony.ANALYSIS)
        return prompt.rstrip().endswith(tuple(pair.open for pair in self.tags))

    def answer(
        self,
        use: ToolUse | None = None,
        form: ContentFormat | None = None,
        *,
        special_tokens: Mapping[str, int] = MappingProxyType({}),
        is_reasoning: bool = False,
        may_reason: bool = True,
        constrains_all: bool = False,
    ) -> AnswerSyntax:
        """Return the syntax of one answer. special_tokens: ids of the tokenizer's special tokens by text. The others
        are those of `AnswerSyntax`, but tools that an answer must not call count as none.
        """
        if use is not None and (use.choice == "none" or not use.tools):
            use = None
        marks = Marks(special_tokens, self.visible_tokens if use is not None else self.reasoning_tokens)
        make: Callable[..., AnswerSyntax] = HarmonyAnswer
        if self.calls is not None:
            make = partial(TaggedAnswer, calls=self.calls, tags=self.tags)
        return make(
            use=use,
            form=form,
            marks=marks,
            call_id=self.call_id,
            is_reasoning=is_reasoning,
            may_reason=may_reason,
            constrains_all=constrains_all,
        )


class MistralFormat(ToolFormat):
    """Format of Mistral's models, which need ids of their own kind."""

    def call_id(self, name: str) -> str:
        """Return an id of nine letters and digits."""
        number, count = int.from_bytes(_digest(name)), len(MISTRAL_ID_CHARACTERS)
        return "".join(MISTRAL_ID_CHARACTERS[number // count**place % count] for place in range(MISTRAL_ID_LENGTH))


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=CALL_ID_BYTES).digest()


# The order matters: templates of a format may also have the signs of formats after it.
FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("harmony", None, (("<|channel|>", "<|message|>"),), ()),
    ToolFormat("deepseek", families.DEEPSEEK, (("<｜tool▁call▁begin｜>",),)),
    ToolFormat("qwen3_coder", families.QWEN3_CODER, (("<function=", "<parameter="),)),
    ToolFormat("glm", families.GLM, (("<arg_key>", "<arg_value>"),)),
    MistralFormat("mistral", families.MISTRAL, (("[TOOL_CALLS]",),), (MISTRAL_TAGS, THINK_TAGS)),
    ToolFormat("pythonic", families.PYTHONIC, (("[func_name1(",), ("func1(param1=",), ("func1(params_name1=",))),
    ToolFormat(
        "llama3_json",
        families.LLAMA3_JSON,
        (("<|python_tag|>",), ('{"name": function name, "parameters"',), ('"parameters": ', "<|start_header_id|>")),
    ),
    ToolFormat("hermes", families.HERMES, (("<tool_call>",),)),
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
