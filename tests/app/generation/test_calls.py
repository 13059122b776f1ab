"""Tool calls on their way from tokens to the answers of all protocols that have them, cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.generation.request import AnswerHead
from app.protocols.answers import UsageReports
from app.protocols.chat import ChatEncoder
from app.streams.stream_log import ChoiceFinished, StreamLog
from app.streams.timeline import IntakeTimeline
from app.text.marks import Marks
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMATS, format_by_name
from engine.config import EngineConfig
from engine.types import FinishReason, Request, SamplingParams, TokenEvent
from tests.app.protocols import test_anthropic, test_responses_stream
from tests.app.text.tools.test_grammar import PICK, write_call
from tests.app.text_models import MODEL

NAMES = [each.name for each in FORMATS]
ARGUMENTS = {"color": "red", "count": 3, "note": 'é "x"\n</b>'}
SPECIAL_IDS = 100_000  # first id of the special tokens in these tests
Parts = tuple[str, list[tuple[str, str]]]


def generated(
    name: str,
    use: ToolUse,
    text: str,
    *,
    length: int | None = None,
    finish: FinishReason | None = FinishReason.STOP,
    stop: tuple[str, ...] = (),
    has_special: bool = False,
) -> StreamLog:
    """Return the log of an answer with the first `length` tokens of `text`, after which the client may cancel it.

    finish: reason of the end by the engine; None: cancelled.
    """
    tool_format = format_by_name(name)
    assert tool_format is not None
    special = {token: SPECIAL_IDS + at for at, token in enumerate(sorted(tool_format.visible_tokens) * has_special)}
    answer = tool_format.answer(use, special_tokens=special, may_reason=False)
    ids: list[int] = []
    for part in answer.marks.split(answer.marks.encode(text)):
        ids += [answer.marks.ids[part]] if part in answer.marks.ids else MODEL.encode(part)
    ids = ids[:length]
    log = StreamLog("r", "e", "")
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=len(ids) or 1)),
        MODEL,
        OutputOptions(stop, marks=answer.marks),
        log,
        None,
        EngineClient(EngineConfig(model="none")),
        IntakeTimeline(0.0),
        parser=answer.parser,
    )
    for at, token_id in enumerate(ids, start=1):
        is_last = at == len(ids) and finish is FinishReason.LENGTH
        generation.handle_event(TokenEvent("r", 0, token_id, finish if is_last else None))
    if finish is FinishReason.STOP:
        generation.handle_event(TokenEvent("r", 0, MODEL.encode("!")[0], finish))
    generation.cancel()
    return log


def reason_of(log: StreamLog) -> str:
    """Return the finish reason of an answer."""
    [finished] = [record for record in log.records if isinstance(record, ChoiceFinished)]
    return finished.reason


def chat(log: StreamLog) -> Parts:
    """Return content and calls of a chat completion."""
    [choice] = ChatEncoder(AnswerHead("m", "default", MODEL, 1), UsageReports()).body(log, 1)["choices"]
    calls = choice["message"].get("tool_calls") or []
    return choice["message"]["content"] or "", [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


def responses(log: StreamLog) -> Parts:
    """Return content and calls of a response."""
    output = test_responses_stream.encoder().body(log, 1)["output"]
    content = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
    return content, [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]


def messages(log: StreamLog) -> Parts:
    """Return content and calls of a streamed message."""
    content, calls = "", []
    for event in test_anthropic.events(b"".join(test_anthropic.encoded(log, test_anthropic.encoder()))):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        delta = event.get("delta", {})
        content += delta.get("text", "")
        if "partial_json" in delta:
            calls[-1][1] += delta["partial_json"]
    return content, [(name, arguments) for name, arguments in calls]


PROTOCOLS = {"chat": chat, "responses": responses, "messages": messages}


@pytest.mark.parametrize("has_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, None], ids=["length", "cancelled"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_cut_has_cut_arguments_in_every_protocol(
    name: str, finish: FinishReason | None, has_special: bool
):
    """After any token, no markup is content, and the arguments are a beginning of the whole ones, never a shorter
    object.
    """
    text, use = write_call(name, "pick", ARGUMENTS), ToolUse((PICK,), "required")
    whole = PROTOCOLS["chat"](generated(name, use, text, has_special=has_special))
    assert whole[0] == "" and [json.loads(arguments) for _, arguments in whole[1]] == [ARGUMENTS]
    [(_, arguments)] = whole[1]
    for length in range(1, len(MODEL.encode(text))):
        log = generated(name, use, text, length=length, finish=finish, has_special=has_special)
        for read in PROTOCOLS.values():
            content, calls = read(log)
            assert content == "" and len(calls) <= 1
            assert all(arguments.startswith(cut) for _, cut in calls)
            assert all(cut == arguments or not is_object(cut) for _, cut in calls)


def is_object(text: str) -> bool:
    """Return whether a text is a complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_stop_string_inside_of_arguments_is_no_end_of_the_calls(name: str):
    """The client must not run a call that was cut."""
    text = write_call(name, "pick", {"count": 3, "note": "a STOP b"})
    log = generated(name, ToolUse((PICK,)), text, stop=("STOP",))
    assert reason_of(log) == "stop" and not is_object(chat(log)[1][0][1])


def test_a_stop_string_after_the_arguments_ends_the_calls():
    """Some frameworks stop at the end marker, which may be a special token."""
    text = write_call("hermes", "pick", {"count": 3})
    for has_special in (False, True):
        log = generated("hermes", ToolUse((PICK,)), text, stop=("</tool_call>",), has_special=has_special)
        assert reason_of(log) == "tool_calls" and chat(log) == ("", [("pick", '{"count": 3}')])


PING = Tool("ping")


def forced(calls: Sequence[dict[str, Any]], tools: Sequence[Tool] = (PICK, PING)) -> tuple[str, list[dict[str, Any]]]:
    """Return the finish reason and the arguments of an answer that must have calls and may have several."""
    text = "\n".join(write_call("hermes", "pick", arguments) for arguments in calls)
    log = generated("hermes", ToolUse(tuple(tools), "required", parallel=True), text, finish=None)
    return reason_of(log), [json.loads(arguments) for _, arguments in chat(log)[1]]


def test_a_forced_answer_ends_before_a_call_that_it_has_had():
    """Small models repeat themselves until the limit. The repeated call is never shown, not even its beginning."""
    ones = [{"count": 1}, {"count": 12}, {"count": 1}, {"count": 7}]
    assert forced(ones) == ("tool_calls", [{"count": 1}, {"count": 12}])
    assert forced([{"count": 1}, {"count": 12}]) == ("abort", [{"count": 1}, {"count": 12}])


def test_a_forced_answer_has_a_limited_number_of_calls():
    """Eight, or as many as there are tools."""
    many = [{"count": index} for index in range(30)]
    assert forced(many) == ("tool_calls", many[:8])
    tools = [PICK, *(Tool(f"t{index}") for index in range(11))]
    assert forced(many, tools) == ("tool_calls", many[:12])


def test_free_answers_may_repeat_calls():
    """A model that may choose rolls two dice."""
    text = "\n".join([write_call("hermes", "ping", {})] * 12)
    log = generated("hermes", ToolUse((PING,)), text)
    assert chat(log) == ("", [("ping", "{}")] * 12) and reason_of(log) == "tool_calls"


def test_marks_are_never_shown():
    """A special token outside of its place is shown as its text."""
    marks = Marks({"</tool_call>": 1}, ["</tool_call>"])
    log = generated("hermes", ToolUse((PING,)), "a</tool_call>b", has_special=True)
    assert chat(log)[0] == "a</tool_call>b" and marks.encode("</tool_call>") not in chat(log)[0]
