"""ChoiceOutput: the tokens of one choice on their way to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.streams.stream_log import Delta, TokenInfo
from app.text.detokenizer import Detokenizer, StopMatcher
from app.text.marks import NO_MARKS, Marks
from app.text.output_parser import OutputParser, ParsedText
from engine.types import FinishReason, StatusEvent, TokenEvent

MAX_ECHOED_INFOS = 128  # log-probabilities in one piece of an echoed prompt


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """Text of a prompt at the beginning of an answer, and the offset of each of its tokens in it."""

    text: str
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Conversion of tokens to text.

    stop: stop strings. includes_stop: a stop string or token that ends the text is part of it. shown_tokens: texts of
    control tokens that are shown. marks: special tokens that the output parser reads. discards_tokens: the answer has
    no tokens of its own (max_tokens 0). lists_prompt: the answer has the log-probabilities of the prompt apart from its
    text. counts_prediction: the usage has the tokens of a prediction.
    """

    stop: tuple[str, ...] = ()
    includes_stop: bool = False
    shown_tokens: Mapping[int, str] = field(default_factory=dict)
    marks: Marks = NO_MARKS
    echo: EchoedPrompt | None = None
    discards_tokens: bool = False
    lists_prompt: bool = False
    counts_prediction: bool = False


class ChoiceOutput:
    """Token pipeline of one choice: detokenizer, stop strings, output parser.

    Holds back text that may still become part of a character, a stop string or a tag, and counts the tokens whose text
    is held back. Log-probabilities of a token go with the piece of text in which it begins.
    """

    __slots__ = (
        "_characters",
        "_detokenizer",
        "_has_calls",
        "_has_marks",
        "_infos",
        "_min_tokens",
        "_on_call",
        "_options",
        "_parser",
        "_shown",
        "_stops",
        "_tokens",
        "finish_reason",
        "first_token",
        "generated",
        "index",
        "is_started",
        "last_token",
        "reasoning_tokens",
        "status",
        "stop_string",
    )

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        options: OutputOptions,
        parser: OutputParser | None,
        min_tokens: int,
        on_call: Callable[[], None],
    ) -> None:
        """min_tokens: number of tokens before which no stop string may end (as in vLLM). on_call: called once, when the
        text has a tool call.
        """
        self.index = index
        self._options = options
        self._detokenizer = detokenizer
        # A stop string may be, or have, a special token that is a mark here.
        stops = dict.fromkeys((*options.stop, *map(options.marks.encode, options.stop)))
        self._stops = StopMatcher(tuple(stops), is_included=options.includes_stop)
        self._parser = parser
        self._min_tokens = min_tokens
        self._on_call = on_call
        self._infos: list[TokenInfo] = []  # of tokens whose text is still held back
        self._tokens = 0  # number of tokens whose text is still held back
        self._shown = 0  # characters that the stop strings have let through
        # Characters so far, including held-back ones; counted only with log-probabilities.
        self._characters = len(options.echo.text) if options.echo is not None else 0
        self._has_calls = False
        self._has_marks = False
        self.generated = 0  # tokens so far
        self.reasoning_tokens = 0
        self.first_token: float | None = None  # arrival, in monotonic seconds
        self.last_token: float | None = None
        self.status: StatusEvent | None = None
        self.is_started = False  # its first record is written
        self.finish_reason: str | None = None  # None while it may continue
        self.stop_string: str | None = None  # the stop string that ended it

    @property
    def is_finished(self) -> bool:
        """Return whether its last token has arrived or it was aborted."""
        return self.finish_reason is not None

    def push(self, event: TokenEvent) -> list[Delta]:
        """Return the output that a token completes. Sets `finish_reason` if it is the last token."""
        finish = event.finish
        if self._options.discards_tokens:
            self.finish_reason = "length"
            return []
        self.generated += 1
        self._tokens += 1
        is_hidden = finish is FinishReason.STOP and not self._options.includes_stop
        text = "" if is_hidden else self._detokenizer.push(event.token_id)
        self._has_marks = self._has_marks or event.token_id in self._options.marks.shown
        if finish is not None and not (self._parser is not None and self._parser.is_inside_call):
            text += self._detokenizer.flush()  # in the arguments of a call, a part of a character would be another one
        if event.logprob is not None:
            self._infos.append(TokenInfo(event.token_id, event.logprob, event.top, self._characters))
            self._characters += len(text)
        shown, stop = self._stops.push(text, counts=self.generated >= self._min_tokens)
        if stop is not None:
            self.finish_reason, self.stop_string = "stop", self._options.marks.decode(stop)
        elif finish is not None:
            shown += self._stops.flush()
            self.finish_reason = finish.value
        elif not shown and self._parser is None:
            return []
        return self._deltas(event.token_id, shown, is_whole=stop is None and finish is not None)

    def echo(self, prompt: list[TokenInfo]) -> list[Delta]:
        """Return the prompt as the beginning of the answer, if it is echoed. prompt: its log-probabilities, if any."""
        echo = self._options.echo
        if echo is None:
            return []
        self._shown = len(echo.text)
        if not prompt:
            return [Delta(self.index, echo.text, 0)]
        size = max(1, MAX_ECHOED_INFOS // (1 + max(len(info.top) for info in prompt)))
        parts = [tuple(prompt[first : first + size]) for first in range(0, len(prompt), size)]
        ends = [*(part[0].offset for part in parts[1:]), len(echo.text)]
        starts = [0, *ends[:-1]]
        return [
            Delta(self.index, echo.text[start:end], 0, part)
            for part, start, end in zip(parts, starts, ends, strict=True)
        ]

    @property
    def is_calling(self) -> bool:
        """Return whether the output has a tool call, or ends inside of one."""
        return self._has_calls or (self._parser is not None and self._parser.is_inside_call)

    def abort(self, reason: str) -> list[Delta]:
        """End the choice. Return output that was held back because it might have begun a stop string or a tag."""
        self.finish_reason = reason
        held = self._deltas(-1, self._stops.flush(), is_whole=False)
        return [delta for delta in held if delta.text or delta.reasoning or delta.calls]

    def _deltas(self, token_id: int, text: str, *, is_whole: bool) -> list[Delta]:
        """Return pieces of output; the first has the log-probabilities of the tokens that begin in `text`. With
        `is_whole`, which completes the answer, it has those of all remaining tokens. Those of text after a stop string
        are never returned.
        """
        self._shown += len(text)
        parsed = [ParsedText(text)] if self._parser is None else self._parse(self._parser, token_id, text)
        if not parsed:
            if self.finish_reason is None:
                return []
            parsed = [ParsedText()]
        infos = self._infos
        begun = len(infos) if is_whole else sum(info.offset < self._shown for info in infos)
        if self._has_marks:
            parsed = [self._without_marks(piece) for piece in parsed]
        first, *others = parsed
        tokens, self._tokens = self._tokens, 0
        deltas = [Delta(self.index, first.content, tokens, tuple(infos[:begun]), first.reasoning, first.calls)]
        del infos[:begun]
        deltas += [Delta(self.index, other.content, 0, (), other.reasoning, other.calls) for other in others]
        return deltas

    def _parse(self, parser: OutputParser, token_id: int, text: str) -> list[ParsedText]:
        was_reasoning = parser.is_reasoning
        parsed = parser.push(token_id, text)
        if token_id >= 0 and (was_reasoning or parser.is_reasoning):
            self.reasoning_tokens += 1
        if self.finish_reason is None and parser.is_complete:
            self.finish_reason = "stop"
        if self.finish_reason is not None:
            parsed += parser.flush()
        elif parser.is_finished:
            self._parser = None
        if not self._has_calls and any(piece.calls for piece in parsed):
            self._has_calls = True
            self._on_call()
        # The arguments of a call inside of which a stop string is found are cut.
        if self._has_calls and self.finish_reason == "stop" and not parser.is_inside_call:
            self.finish_reason = "tool_calls"
        return parsed

    def _without_marks(self, parsed: ParsedText) -> ParsedText:
        """Return output with the texts of special tokens in place of their marks."""
        decode = self._options.marks.decode
        return ParsedText(decode(parsed.content), decode(parsed.reasoning), parsed.calls)
