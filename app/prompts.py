"""Prompts: bodies, conversations and texts of requests, on their way to token ids.

Short ones are handled on the event loop, long ones in bounded queues of threads, so that no client holds up others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Any

from app.admission.thread_queue import Caller, ThreadQueue
from app.errors import ApiError
from app.generation.choice import EchoedPrompt
from app.generation.prepared import PreparedPrompt
from app.generation.request import ChatPrompt, GenerationRequest
from app.generation.truncation import drop_oldest
from app.http.json_body import MAX_INLINE_BYTES, check_structure, decode_json
from app.protocols.schema import Schema, validate
from app.text.chat_template import MessagesRefused, ReservedVariable
from app.text.detokenizer import Detokenizer
from app.text.schemas.errors import InvalidFormat
from app.text.text_model import TextModel
from app.text.tokenize_queue import TokenizeQueue
from app.text.tools.answer import AnswerSyntax
from app.text.tools.answer_cache import AnswerCache
from app.text.tools.definitions import ToolUse
from app.text.tools.formats import ToolFormat
from engine.errors import ContextExceeded, RequestRefused
from engine.host import num_cores
from engine.types import ModelInfo, ReasoningLimit

MAX_INLINE_TURNS = 64  # of a conversation that is rendered on the event loop; a template takes about 20 us per turn
MAX_INLINE_ECHO_TOKENS = 1024  # of a prompt whose text is made on the event loop; a token takes about 3 us
MAX_INLINE_SCHEMA_CHARACTERS = 256  # of schemas that are translated on the event loop
VALUE_CHARACTERS = 16  # as which any value in a schema counts
MAX_GRAMMAR_CHARACTERS = 1 << 20  # some 500,000 of a schema
MAX_CACHED_SCHEMA_CHARACTERS = 1 << 17  # of an answer whose grammar is kept
# Per token of the context, in the longest text that /tokenize accepts, and in a prediction, of which the rest is cut.
CHARACTERS_PER_TOKEN = 16
# Of a prediction, tokenized at once: its tokens, up to four for each, are created with the interpreter lock held.
PREDICTION_CHARACTERS = 1 << 15
MAX_TRUNCATIONS = 16  # attempts to make a conversation fit
ANSWER_SHARE = 8  # one part in so many of the context is left for the answer to a truncated conversation, or max_tokens
CPU_SHARE = min(0.5, 0.05 * num_cores())  # share of a core for large bodies, and for texts of /tokenize and /detokenize
BYTE_MARKS = (b"\xfe", b"\xff")  # stand for the special tokens around reasoning; no text in UTF-8 has them
READ_SECONDS_PER_BYTE = 2.5e-9  # CPU time of reading a body on the event loop


def with_names(error: RequestRefused, names: Mapping[str, str]) -> ApiError:
    """Return an engine's refusal with the protocol's parameter names."""
    message = str(error)
    if "max_tokens" in names:
        message = message.replace("max_tokens", names["max_tokens"])
    return ApiError(400, message, param=names.get(error.param or "", error.param), code=error.code)


def constraint_param(request: GenerationRequest) -> str:
    """Return the parameter that constrains an answer: its format, or its tools if there is none or a call is required,
    which has no format.
    """
    tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else None
    is_call = tools is not None and tools.choice == "required"
    return "tools" if request.content_format is None or is_call else request.content_format.param


def _text_size(value: Any) -> int:
    """Return the number of characters in all texts of a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _text_size(item) for key, item in value.items())
    return sum(map(_text_size, value)) if isinstance(value, list) else 0


def opens_reasoning(form: ToolFormat, prompt: ChatPrompt, rendered: str) -> bool:
    """Return whether an answer begins inside of a reasoning block."""
    if prompt.continue_final_message:
        begun = prompt.turns[-1]["content"].lstrip()
        return any(begun.startswith(tags.open) and tags.close not in begun for tags in form.tags)
    return prompt.add_generation_prompt and form.opens_reasoning(rendered)


def _schema_size(answer: AnswerSyntax) -> int:
    """Return the size of the format and of the tools of an answer, in characters; any value counts as some of them."""
    size, pending = 0, [answer.form.value if answer.form is not None else None]
    for tool in answer.use.tools if answer.use is not None else ():
        size += VALUE_CHARACTERS + len(tool.name)
        pending.append(tool.parameters)
    while pending:
        value = pending.pop()
        size += len(value) if isinstance(value, str) else VALUE_CHARACTERS
        if isinstance(value, dict):
            size += sum(map(len, value))
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return size


@dataclass
class Prompts:
    """Decoding, rendering and tokenization for one model.

    model: returns the loaded one, or raises `ApiError`. strict_tools: the schema of every tool holds. check_model:
    raises `ApiError` (404) for the name of another model.
    """

    text: TextModel
    model: Callable[[], ModelInfo]
    strict_tools: bool = False
    check_model: Callable[[str], None] = lambda _: None
    tokenize_queue: TokenizeQueue = field(init=False)
    _answers: AnswerCache = field(default_factory=AnswerCache)
    # Decoding and rendering of large bodies.
    body_queue: ThreadQueue = field(default_factory=lambda: ThreadQueue(1, max_cpu_share=CPU_SHARE))
    # /tokenize and /detokenize, on which no answer depends.
    tokenizer_queue: ThreadQueue = field(default_factory=lambda: ThreadQueue(1, max_cpu_share=CPU_SHARE))

    def __post_init__(self) -> None:
        self.tokenize_queue = TokenizeQueue(self.text)

    async def prepare(self, request: GenerationRequest, caller: Caller) -> PreparedPrompt:
        """Return a request's prompt and prediction, tokenized in turn. Raises `ApiError`."""
        prompt = await self._prepare_prompt(request, caller)
        if not request.prediction:
            return prompt
        return replace(prompt, prediction=await self._encode_prediction(request.prediction, caller))

    async def _encode_prediction(self, text: str, caller: Caller) -> tuple[int, ...]:
        """Return the first tokens of a prediction, as many as the context has.

        Between two parts a token may differ from that of the whole text, which is a wrong draft.
        """
        most, ids = self.model().max_model_len, list[int]()
        text = text[: CHARACTERS_PER_TOKEN * most]
        for begin in range(0, len(text), PREDICTION_CHARACTERS):
            part = text[begin : begin + PREDICTION_CHARACTERS]
            ids += await self.tokenize_queue.encode(part, caller, add_special_tokens=False)
            if len(ids) >= most:
                break
        return tuple(ids[:most])

    async def _prepare_prompt(self, request: GenerationRequest, caller: Caller) -> PreparedPrompt:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            prompt, text, ids = await self._encode_chat(prompt, request, caller)
            return await self._with_answer(request, prompt, text, ids, caller)
        ids = list(prompt) if not isinstance(prompt, str) else []
        if isinstance(prompt, str):
            ids = await self._encode(prompt, True, request.parameter_names, caller)
        echo = await self._echo(prompt, ids, caller) if request.echo else None
        answer = self._answer(request, None, False, may_reason=False)
        return PreparedPrompt(ids, echo=echo, grammar=await self._grammar(request, answer, caller))

    async def _echo(self, prompt: str | Sequence[int], ids: list[int], caller: Caller) -> EchoedPrompt:
        """Return a prompt as text, with the offset of each token."""
        if len(ids) > self.model().max_model_len:
            return EchoedPrompt("", ())  # the engine refuses it

        def work() -> EchoedPrompt:
            detokenizer, pieces, offsets, at = Detokenizer(self.text), [], [], 0
            for token_id in ids:
                offsets.append(at)
                piece = detokenizer.push(token_id)
                pieces.append(piece)
                at += len(piece)
            pieces.append(detokenizer.flush())
            text = prompt if isinstance(prompt, str) else "".join(pieces)
            return EchoedPrompt(text, [min(offset, len(text)) for offset in offsets])

        if len(ids) <= MAX_INLINE_ECHO_TOKENS:
            return work()
        return await self.tokenizer_queue.run(work, caller, size=16 * len(ids))

    async def _with_answer(
        self, request: GenerationRequest, prompt: ChatPrompt, rendered: str, ids: list[int], caller: Caller
    ) -> PreparedPrompt:
        """Return the prompt with parser and constraints of its answer."""
        tools, form = prompt.tools, self.text.tool_format
        is_reasoning = opens_reasoning(form, prompt, rendered)
        is_message = not prompt.continue_final_message or not prompt.turns[-1]["content"].strip()
        ends_reasoning = rendered.rstrip().endswith(tuple(tags.close for tags in form.tags))
        reasons = is_reasoning or (is_message and self.text.writes_reasoning and not ends_reasoning)
        # Where nothing but a format or a call is admitted, only a model that is known to reason may do so before.
        is_free = request.content_format is None and (tools is None or tools.choice != "required")
        answer = self._answer(request, tools, is_reasoning, may_reason=reasons or (is_message and is_free))
        return PreparedPrompt(
            ids,
            answer.parser,
            answer.marks,
            grammar=await self._grammar(request, answer, caller),
            reasoning_limit=self._reasoning_limit(request.thinking_budget, is_reasoning, reasons),
        )

    def _answer(
        self, request: GenerationRequest, tools: ToolUse | None, is_reasoning: bool, *, may_reason: bool
    ) -> AnswerSyntax:
        """Return the syntax of a request's answer. Raises `ApiError` (400) for tools if no text is a call."""
        if tools is not None and tools.choice != "none" and not self.text.calls_tools:
            message = "tools are not supported, because this server runs with --tool-parser none"
            raise ApiError(400, message, param="tools", code="unsupported_parameter")
        answer = self.text.tool_format.answer(
            tools,
            request.content_format,
            special_tokens={text: token_id for token_id, text in self.text.special_texts.items()},
            is_reasoning=is_reasoning,
            may_reason=may_reason,
            constrains_all=self.strict_tools,
        )
        return self._answers.find(answer) if _schema_size(answer) <= MAX_CACHED_SCHEMA_CHARACTERS else answer

    async def _grammar(self, request: GenerationRequest, answer: AnswerSyntax, caller: Caller) -> str | None:
        """Return the grammar of a request's answer, of large schemas in turn. Raises `ApiError` (400) for a format that
        cannot be enforced.
        """
        size = _schema_size(answer)
        try:
            is_short = answer.has_grammar or size <= MAX_INLINE_SCHEMA_CHARACTERS
            grammar = answer.grammar() if is_short else await self.body_queue.run(answer.grammar, caller, size=size)
            if grammar is not None and size <= MAX_CACHED_SCHEMA_CHARACTERS:
                self._answers.keep(answer)
        except InvalidFormat as error:
            param = error.param or "tools"
            raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from None
        if grammar is not None and len(grammar) > MAX_GRAMMAR_CHARACTERS:
            param, most = constraint_param(request), f"at most {MAX_GRAMMAR_CHARACTERS:,} are enforced"
            message = f"{param}: its grammar has {len(grammar):,} characters, and {most}; simplify it"
            raise ApiError(400, message, param=param, code="invalid_value")
        if grammar is not None and request.ignore_eos:
            name = constraint_param(request)
            raise ApiError(400, f"ignore_eos cannot be combined with {name}", param="ignore_eos", code="invalid_value")
        return grammar

    def _reasoning_limit(self, budget: int | None, is_open: bool, may_reason: bool) -> ReasoningLimit | None:
        """Return a limit of `budget` tokens, if there is a budget and the answer may reason."""
        form = self.text.tool_format
        if budget is None or not may_reason or not form.tags:
            return None
        tags = form.tags[0]
        special = {text: token_id for token_id, text in self.text.special_texts.items()}
        marks = {tag: mark for tag, mark in zip(tags, BYTE_MARKS, strict=True) if tag in special}
        opening, close = (marks.get(tag, tag.encode()) for tag in tags)
        closing = self.text.encode(f"\n{tags.close}\n\n", add_special_tokens=False)
        marked = {special[tag]: mark for tag, mark in marks.items()}
        return ReasoningLimit(budget, tuple(closing), b"" if is_open else opening, close, marked)

    async def parse(self, schema: type[Schema], body: bytes, caller: Caller) -> Schema:
        """Return `body` as `schema`. Raises `ApiError`: 404 for an unknown model, whatever its parameters are, else 400
        that names the first wrong field.
        """

        def parse() -> Schema:
            fields = decode_json(body)
            name = fields.get("model") if isinstance(fields, dict) else None
            if isinstance(name, str):
                self.check_model(schema.served_model(name))
            return validate(schema, fields)

        if len(body) <= MAX_INLINE_BYTES:
            return parse()

        def work() -> Schema:
            check_structure(body)
            return parse()

        return await self.body_queue.run(
            work, caller, size=len(body), cpu_seconds_spent=READ_SECONDS_PER_BYTE * len(body)
        )

    async def render(self, chat: ChatPrompt, caller: Caller, names: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the rendered text of a conversation. Raises `ApiError` if the template refuses it, with the name of
        `prompt` in `names`.
        """
        tools = chat.tools.tools if chat.tools is not None and chat.tools.choice != "none" else ()
        size = _text_size([chat.turns, chat.variables, [tool.template_form() for tool in tools]])
        is_short = len(chat.turns) <= MAX_INLINE_TURNS and size <= MAX_INLINE_BYTES

        def work() -> str:
            return self.text.render_chat(
                chat.turns,
                chat.variables,
                tools=tools,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
            )

        try:
            return work() if is_short else await self.body_queue.run(work, caller, size=size)
        except ReservedVariable as error:
            name = "chat_template_kwargs"
            raise ApiError(400, f"{name}: {error}", param=name, code="invalid_value") from None
        except MessagesRefused as error:
            name = names.get("prompt", "messages")
            raise ApiError(400, f"{name}: {error}", param=name, code="template_refused") from None

    async def _encode_chat(
        self, chat: ChatPrompt, request: GenerationRequest, caller: Caller
    ) -> tuple[ChatPrompt, str, list[int]]:
        """Return a conversation without the turns that were dropped to make it fit, its rendered text, and the token
        ids. Raises `ApiError`.
        """
        names = request.parameter_names
        for attempt in count():
            text = await self.render(chat, caller, names)
            try:
                ids = await self._encode(text, False, names, caller)
            except ApiError:
                shorter = self._shorter(chat, request, text, 0, attempt)
                if shorter is None:
                    raise
            else:
                shorter = self._shorter(chat, request, text, len(ids), attempt)
                if shorter is None:
                    return chat, text, ids
            chat = shorter
        raise AssertionError  # `count` has no end

    def _shorter(
        self, chat: ChatPrompt, request: GenerationRequest, text: str, tokens: int, attempt: int
    ) -> ChatPrompt | None:
        """Return a conversation without its oldest turns; None if it fits or must not or cannot be truncated further.

        text: the rendered conversation. tokens: their number in it; 0 if they are too many to count. attempt: number of
        earlier truncations; each drops a larger part, because the oldest turns may have few tokens for their length.
        """
        if not request.truncates_prompt or attempt == MAX_TRUNCATIONS:
            return None
        share = (tokens - self._prompt_room(request.max_tokens)) / tokens if tokens else 0.5
        if share <= 0:
            return None
        turns = drop_oldest(chat.turns, math.ceil(len(text) * share * (1 + attempt / 4)))
        return None if turns is None else replace(chat, turns=turns)

    def _prompt_room(self, max_tokens: int | None) -> int:
        """Return the maximum tokens of a truncated prompt, which leaves room for an answer."""
        most = self.model().max_sequence_tokens
        share = most // ANSWER_SHARE
        return most - max(1, share if max_tokens is None else min(max_tokens, share))

    async def _encode(self, text: str, add_special_tokens: bool, names: Mapping[str, str], caller: Caller) -> list[int]:
        """Return the token ids of a prompt, tokenized in turn. Raises `ApiError` if it is far too long."""
        most = self.model().max_model_len
        try:
            return await self.tokenize_queue.encode(
                text, caller, add_special_tokens=add_special_tokens, max_tokens=most
            )
        except ContextExceeded as error:
            raise with_names(error, names) from None

    async def tokenize(
        self, text: str, caller: Caller, *, add_special_tokens: bool, param: str = "prompt"
    ) -> list[int]:
        """Return the token ids of a text on which no answer depends. Raises `ApiError` (400) about `param` if it is
        longer than `CHARACTERS_PER_TOKEN` times the context.
        """
        most = CHARACTERS_PER_TOKEN * self.model().max_model_len
        if len(text) > most:
            raise ApiError(
                400,
                f"the text has {len(text):,} characters; at most {most:,} are tokenized at once, "
                f"{CHARACTERS_PER_TOKEN} for each token of the context",
                param=param,
                code="context_length_exceeded",
            )
        return await self.tokenizer_queue.run(
            lambda: self.tokenize_queue.encode_inline(text, add_special_tokens), caller, size=len(text)
        )

    async def detokenize(self, token_ids: list[int], caller: Caller) -> str:
        """Return the text of `token_ids`. Raises `ApiError` (400) for one that is not in the vocabulary."""
        vocab_size = self.model().vocab_size

        def work() -> str:
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    message = f"tokens: {token_id} is not a token id"
                    raise ApiError(400, message, param="tokens", code="invalid_value")
            return self.text.decode(token_ids, skip_special_tokens=False)

        return await self.tokenizer_queue.run(work, caller, size=16 * len(token_ids))
